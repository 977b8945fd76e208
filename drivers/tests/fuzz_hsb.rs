//! Fuzz tests of the source `hsb`. Arbitrary packets must not cause a panic or a range outside the frame, and the
//! ledger must add up.
//!
//! `DAQ_FUZZ_SECONDS` is the run time of each target in seconds (default 1).

use daq_drivers::hsb::pages::Pages;
use daq_drivers::hsb::placer::Placer;
use daq_drivers::hsb::{ENTRY, roce};
use daq_testkit::hsb_packet::{Packet, metadata};
use daq_testkit::loopback::free_address;
use daq_testkit::source::{new_fixture, spec};
use std::cell::RefCell;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

fn time() -> Duration {
    let seconds = std::env::var("DAQ_FUZZ_SECONDS").ok();
    let seconds = seconds.and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(1))
}

const PAGES: Pages = Pages {
    base: 0x1000,
    stride: 1024,
    count: 4,
    frame: 700,
    packet: 256,
    queue_pair: 5,
    rkey: 9,
};

#[test]
fn fuzz_roce() {
    bolero::check!()
        .with_test_time(time())
        .for_each(|packet: &[u8]| {
            // Tests the packet unchanged, and with a valid opcode so that more of it is parsed.
            let mut likely = packet.to_vec();
            for (byte, value) in likely.iter_mut().zip([0x2b, 0, 0xff, 0xff]) {
                *byte = value;
            }
            for packet in [packet, &likely] {
                if let Ok(write) = roce::parse(packet) {
                    assert!(write.payload.end + 4 <= packet.len());
                    if let Ok(position) = PAGES.find(&write) {
                        assert!(
                            position.page < 4
                                && position.index <= 3
                                && position.bytes <= write.payload.len()
                        );
                    }
                }
            }
        });
}

/// A packet, which is nearly valid in most cases: page, index, jump of the sequence number, and bits that select
/// faults.
type Step = (u8, u8, i8, u8);

#[test]
fn fuzz_packet_position() {
    let text = format!(
        "[source.camera]\ndriver = \"hsb\"\nring = \"raw\"\nlisten = \"{}\"\nframe = 700\npacket = 256\npages = 4\n\
         queue_pair = 5\nrkey = 9\nbase = 4096\nstride = 1024\ncontrol = false\n",
        free_address()
    );
    let spec = spec(&ENTRY, &text).unwrap();
    let mut fixture = new_fixture(&*spec, 704, 8).unwrap();
    let placer = Placer::new("camera", PAGES, fixture.geometry.window, 4);
    let mut psn = 0_u32;
    let mut frame = 0_u16;
    let mut sent = 0_u64;
    let state = RefCell::new((&mut fixture, placer, &mut psn, &mut frame, &mut sent));
    let shared = AssertUnwindSafe(&state);
    bolero::check!()
        .with_type::<Vec<Step>>()
        .with_test_time(time())
        .for_each(move |steps| {
            let (fixture, placer, psn, frame, sent) = &mut *shared.borrow_mut();
            for (page, index, jump, fault) in steps {
                let index = u64::from(index % 4);
                **psn = psn.wrapping_add_signed(if fault & 1 == 0 {
                    1
                } else {
                    i32::from(*jump) * 1000
                }) & 0xff_ffff;
                **frame = frame.wrapping_add_signed(i16::from(fault & 2 == 0));
                let page = u64::from(page % 5);
                let last = index == 3;
                let mut payload = vec![
                    *fault;
                    match index {
                        0 | 1 => 256,
                        2 => 188,
                        _ => 128,
                    }
                ];
                if last {
                    payload.copy_from_slice(&metadata(**frame, 1, 2, 700));
                }
                if fault & 4 != 0 {
                    payload.push(1);
                }
                let packet = Packet {
                    psn: **psn,
                    address: 0x1000 + page * 1024 + index * 256,
                    immediate: (last || fault & 8 != 0).then(|| u32::try_from(page).unwrap()),
                    payload,
                    ..Packet::default()
                };
                **sent += 1;
                placer.place(&mut fixture.windows[0], [&packet.bytes()[..]]);
                while fixture.reader.poll(1).is_some() {}
            }
            fixture.windows[0].tick(Instant::now());
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
}
