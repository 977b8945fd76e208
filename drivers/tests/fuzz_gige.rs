//! Fuzz tests of the source `gige`. Arbitrary packets must not cause a panic, and the ledger must add up.
//!
//! `DAQ_FUZZ_SECONDS` is the run time of each target in seconds (default 1).

use daq_core::ledger::Counts;
use daq_drivers::gige::ENTRY;
use daq_drivers::gige::blocks::{CameraCounts, ResendLimits};
use daq_drivers::gige::gvcp::{Acknowledge, Identity};
use daq_drivers::gige::gvsp::{self, Content};
use daq_drivers::gige::pixel::PixelFormat;
use daq_drivers::gige::placer::{Image, Placer, Setup};
use daq_testkit::source::{SourceFixture, new_fixture, spec};
use std::cell::RefCell;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

fn time() -> Duration {
    let seconds = std::env::var("DAQ_FUZZ_SECONDS").ok();
    let seconds = seconds.and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(1))
}

#[test]
fn fuzz_gvsp() {
    bolero::check!()
        .with_test_time(time())
        .for_each(|packet: &[u8]| {
            // Tests the packet unchanged, and with a valid status and each format.
            let mut likely = packet.to_vec();
            for format in [1, 2, 3, 0x81, 0x82, 0x83] {
                for (byte, value) in likely.iter_mut().zip([0, 0, 0, 1, format]) {
                    *byte = value;
                }
                for packet in [packet, &likely] {
                    if let Ok(parsed) = gvsp::parse(packet) {
                        assert!(parsed.block > 0);
                        if let Content::Payload(payload) = parsed.content {
                            assert!(payload.len() < packet.len());
                        }
                    }
                }
            }
        });
}

#[test]
fn fuzz_gvcp() {
    bolero::check!()
        .with_test_time(time())
        .for_each(|message: &[u8]| {
            if let Some(answer) = Acknowledge::parse(message) {
                assert!(answer.data.len() + 8 <= message.len());
            }
            let long = [message, &[0; 248]].concat();
            let shown = Identity::parse(&long).unwrap().to_string();
            assert!(!shown.contains(char::is_control), "{shown:?}");
        });
}

/// A packet, which is nearly valid in most cases: format, step of the block, packet id, and bits that select faults.
type Step = (u8, i8, u8, u8);

/// Returns the packet of `step` in `block`. The image has 6 payload packets of 700 bytes, the last with 100.
pub(super) fn packet((format, _, id, fault): Step, block: u64, is_extended: bool) -> Vec<u8> {
    let format = format % 4;
    let id = u32::from(match format {
        1 => 0,
        2 => 7,
        _ if fault & 1 == 0 => id % 6 + 1,
        _ => id,
    });
    let status = match fault >> 1 & 7 {
        0 => 0x0100,
        1 => 0x800c,
        _ => 0_u16,
    };
    let mut packet = status.to_be_bytes().to_vec();
    if is_extended {
        packet.extend([0, 0, format | 0x80, 0, 0, 0]);
        packet.extend(block.to_be_bytes());
        packet.extend(id.to_be_bytes());
    } else {
        packet.extend(&block.to_be_bytes()[6..]);
        packet.extend((u32::from(format) << 24 | id).to_be_bytes());
    }
    match format {
        1 => {
            packet.extend([0, 0, 0, 1]);
            packet.extend([fault; 8]);
            let width: u32 = if fault == 0xf0 { 61 } else { 60 };
            for field in [0x0108_0001, width, 60, 0, 0, 0] {
                packet.extend(field.to_be_bytes());
            }
        }
        3 => packet.resize(packet.len() + if id == 6 { 100 } else { 700 }, fault),
        _ => packet.extend([0; 8]),
    }
    if fault == 0xff {
        packet.truncate(9);
    }
    packet
}

/// Returns a source with a camera that sends images of 60 × 60 pixels, and is set up.
pub(super) fn camera(is_extended: bool) -> (SourceFixture, Placer, CameraCounts) {
    let text = "[source.camera]\ndriver = \"gige\"\nring = \"raw\"\ncamera = \"127.0.0.1\"\nwidth = 60\nheight = 60\n\
                pixel_format = \"Mono8\"\n";
    let spec = spec(&ENTRY, text).unwrap();
    let mut fixture = new_fixture(&*spec, 3600, 8).unwrap();
    let image = Image {
        width: 60,
        height: 60,
        format: PixelFormat::named("Mono8").unwrap(),
    };
    let limits = ResendLimits {
        distance: 2,
        per_block: None,
    };
    let counts = CameraCounts::of(&Counts::default());
    let open = fixture.geometry.window;
    let mut placer = Placer::new("camera", image, open, Some(limits), counts.clone());
    // 700 bytes of payload per packet.
    let setup = Setup {
        packet_size: 700 + 28 + if is_extended { 20 } else { 8 },
        tick_rate: 1_000_000_000,
        can_resend: true,
    };
    placer.begin(&mut fixture.windows[0], setup);
    (fixture, placer, counts)
}

fn fuzz_packets(is_extended: bool) {
    let (mut fixture, placer, counts) = camera(is_extended);
    let (mut block, mut sent) = (1_u64, 0_u64);
    let mut now = Instant::now();
    let state = RefCell::new((&mut fixture, placer, &mut block, &mut sent, &mut now));
    let shared = AssertUnwindSafe(&state);
    bolero::check!()
        .with_type::<Vec<Step>>()
        .with_test_time(time())
        .for_each(move |steps| {
            let (fixture, placer, block, sent, now) = &mut *shared.borrow_mut();
            for step in steps {
                let jump = if step.3 & 0xc0 == 0xc0 {
                    i64::from(step.1) * 1000
                } else {
                    i64::from(step.1 % 2)
                };
                **block = block.saturating_add_signed(jump).clamp(1, 1 << 61);
                let id = if is_extended {
                    **block
                } else {
                    (**block - 1) % 65_535 + 1
                };
                let bytes = packet(*step, id, is_extended);
                **sent += 1;
                **now += Duration::from_millis(u64::from(step.3 & 15));
                placer.place(&mut fixture.windows[0], [&bytes[..]], **now);
                placer.sweep(**now);
                for request in placer.requests().drain(..) {
                    assert!(
                        request.block > 0 && request.first <= request.last && request.last <= 6
                    );
                }
                while fixture.reader.poll(1).is_some() {}
            }
            fixture.windows[0].tick(**now);
            let report = fixture.report();
            let lost: u64 = report.lost.values().sum();
            assert_eq!(
                report.expected,
                report.delivered + report.pending + lost,
                "{report:?}"
            );
        });
    let (fixture, mut placer, ..) = state.into_inner();
    placer.finish(&mut fixture.windows[0]);
    fixture.windows[0].finish();
    let report = fixture.report();
    let lost = |cause| report.lost.get(cause).copied().unwrap_or(0);
    let lost = lost("late") + lost("ring_full");
    let aside = report.duplicates + report.rejected + report.control + report.before_start;
    let counted = report.delivered + aside + lost;
    assert_eq!(counted, sent, "{report:?}");
    let ended = counts.recovered.get() + counts.reordered.get() + counts.unrecovered.get();
    assert_eq!(counts.requested.get(), ended);
}

#[test]
fn fuzz_packets_with_16_bit_block_ids() {
    fuzz_packets(false);
}

#[test]
fn fuzz_packets_with_64_bit_block_ids() {
    fuzz_packets(true);
}
