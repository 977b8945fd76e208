//! Every datagram ends in exactly one count, whatever the sender and the network do, for each format.

use daq_core::frame::Timestamp;
use daq_core::ledger::{SourceLedger, SourceReport};
use daq_core::reorder::{Geometry, ReorderWindow};
use daq_core::ring::RingOptions;
use daq_drivers::packet::datagram::Depacketizer;
use daq_drivers::packet::spead::SpeadConfig;
use daq_drivers::packet::{Format, RawConfig, VdifConfig};
use daq_testkit::ring::RingFixture;
use proptest::prelude::*;

/// Number of slots, enough for every frame of a test.
const SLOTS: usize = 4096;

/// A fault of the sender or of the network at one packet.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    Lost,
    Twice,
    /// The packet arrives this many packets later.
    Delayed(usize),
    /// The packet is cut to this many bytes.
    Cut(usize),
    /// The sender restarts at this packet number.
    Restart(u64),
    /// A second sender sends packets: their number, and how far ahead they are.
    Strays(u64, u64),
    /// This many of the last packets arrive again.
    Again(usize),
}

fn faults() -> impl Strategy<Value = Vec<Fault>> {
    let fault = prop_oneof![
        30 => Just(Fault::None),
        2 => Just(Fault::Lost),
        2 => Just(Fault::Twice),
        2 => (1_usize..40).prop_map(Fault::Delayed),
        1 => (0_usize..90).prop_map(Fault::Cut),
        1 => (0_u64..300).prop_map(Fault::Restart),
        1 => (1_u64..9, 20_u64..70_000).prop_map(|(count, ahead)| Fault::Strays(count, ahead)),
        1 => (1_usize..20).prop_map(Fault::Again),
    ];
    prop::collection::vec(fault, 1..250)
}

/// Returns the formats whose packets are never fragments, with the number of their packets per frame.
fn formats() -> [(Format, u32); 6] {
    let raw = |keys: &str| {
        let config: RawConfig = toml::from_str(keys).unwrap();
        config.build().unwrap()
    };
    let spead: SpeadConfig = toml::from_str("heap = 256\npacket = 64\nfirst = 56").unwrap();
    let vdif = |keys: &str| toml::from_str::<VdifConfig>(&format!("payload = 64\n{keys}")).unwrap();
    [
        (
            raw("header = 8\npayload = 64\nsequence = { offset = 0, bytes = 8 }"),
            4,
        ),
        (
            raw("header = 8\npayload = 64\nsequence = { offset = 0, bytes = 2 }"),
            4,
        ),
        (
            raw(
                "header = 16\npayload = 64\npackets = 3\nframe = { offset = 0, bytes = 8 }\n\
                 packet = { offset = 8, bytes = 4 }",
            ),
            3,
        ),
        (spead.build().unwrap(), 5),
        (vdif("").build().unwrap(), 4),
        (
            vdif("thread = [1, 0]\npackets = 2\nframes_per_second = 1000")
                .build()
                .unwrap(),
            4,
        ),
    ]
}

/// Returns the datagram that contains packet `number`. `run` is the content of the payload.
fn datagram(format: &Format, number: u64, run: u8) -> Vec<u8> {
    let per_unit = u64::from(format.facts().numbering.packets_per_unit);
    let sub = u32::try_from(number % per_unit).unwrap();
    let layout = format.facts().layout;
    let payload = vec![run; layout.range(sub % layout.count()).len()];
    let unit = (number / per_unit) & format.unit_mask();
    let mut bytes = Vec::new();
    format.build(unit, sub, None, &payload, &mut bytes);
    bytes
}

/// Returns the datagrams in the order in which they arrive.
fn schedule(format: &Format, faults: &[Fault]) -> Vec<Vec<u8>> {
    let (mut next, mut run) = (1000, 1_u8);
    let mut arriving: Vec<(usize, Vec<u8>)> = Vec::new();
    for (i, fault) in faults.iter().enumerate() {
        if let Fault::Restart(number) = fault {
            (next, run) = (*number, run.wrapping_add(1));
        }
        let packet = datagram(format, next, run);
        match *fault {
            Fault::Lost => {}
            Fault::Twice => arriving.extend([(i, packet.clone()), (i, packet)]),
            Fault::Delayed(by) => arriving.push((i + by, packet)),
            Fault::Cut(bytes) => arriving.push((i, packet[..bytes.min(packet.len())].to_vec())),
            Fault::None | Fault::Restart(_) => arriving.push((i, packet)),
            Fault::Strays(count, ahead) => {
                let strays = (0..count).map(|n| (i, datagram(format, next + ahead + n, 0)));
                arriving.extend(strays.chain([(i, packet)]));
            }
            Fault::Again(count) => {
                let first = arriving.len().saturating_sub(count);
                let again: Vec<_> = arriving[first..]
                    .iter()
                    .map(|(_, bytes)| (i, bytes.clone()))
                    .collect();
                arriving.extend(again.into_iter().chain([(i, packet)]));
            }
        }
        next += 1;
    }
    arriving.sort_by_key(|(at, _)| *at);
    arriving.into_iter().map(|(_, bytes)| bytes).collect()
}

/// Receives `datagrams` in batches of `batch`, and returns the counts.
fn receive(format: &Format, packets: u32, datagrams: &[Vec<u8>], batch: usize) -> SourceReport {
    let (layout, numbering) = (format.facts().layout, format.facts().numbering);
    let per_unit = numbering.packets_per_unit;
    let geometry = Geometry {
        numbering,
        first_bytes: layout.first.min(layout.unit_bytes),
        parts: format.facts().parts,
        frame_bytes: layout.unit_bytes
            * format.facts().parts as usize
            * (packets / per_unit) as usize,
        window: 8,
        max_gap: 65_536,
        ..Geometry::new(packets, layout.rest)
    };
    let options = RingOptions {
        packets_per_frame: packets,
        supports_backpressure: false,
        ..RingOptions::new("raw", SLOTS, geometry.frame_bytes)
    };
    let fixture = RingFixture::new(options);
    let ledger = SourceLedger::default();
    let mut window = ReorderWindow::new(fixture.producer, geometry, 1, &ledger).remove(0);
    let mut depacketizer = Depacketizer::new("reference", format.clone());
    for datagrams in datagrams.chunks(batch) {
        let datagrams = datagrams
            .iter()
            .map(|bytes| (&bytes[..], Timestamp::default()));
        depacketizer.place(&mut window, datagrams);
    }
    window.finish();
    SourceReport::of(&ledger)
}

proptest! {
    #[test]
    fn every_datagram_is_in_exactly_one_count(faults in faults(), batch in 1_usize..70) {
        for (format, packets) in formats() {
            let datagrams = schedule(&format, &faults);
            let report = receive(&format, packets, &datagrams, batch);
            let lost = |cause| report.lost.get(cause).copied().unwrap_or(0);
            let counted = report.delivered + report.rejected + report.duplicates + report.control + report.before_start + lost("late") + lost("ring_full");
            prop_assert_eq!(counted, datagrams.len() as u64, "{:?}: {:?}", format, report);
            prop_assert_eq!(report.expected, report.delivered + report.lost_total());
        }
    }
}
