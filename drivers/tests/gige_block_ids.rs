//! Tests that wrong block identifiers of a GigE Vision camera do not stop its stream.

use super::fuzz_gige::{camera, packet};
use daq_core::frame::Timestamp;
use daq_core::ledger::SourceReport;
use daq_core::ring::Frame;
use std::time::{Duration, Instant};

/// Number of blocks of the stream, and the one whose identifier is wrong.
const BLOCKS: u64 = 60;
const WRONG: u64 = 20;
/// Number of payload packets of a block.
const PACKETS: u64 = 6;

/// Which packets of the block have the wrong identifier.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    Leader,
    /// The number of payload packets.
    Payload(u8),
    Trailer,
    Block,
}

impl Part {
    /// Returns whether payload packet `i` has the wrong identifier.
    fn has(self, i: u8) -> bool {
        matches!(self, Self::Payload(packets) if i < packets) || self == Self::Block
    }
}

/// Sends all blocks, with a flipped bit of the identifier in `part` of one block. Returns the ledger at the end, the numbers of
/// complete frames from the first block, and the number of those without a time.
fn receive(is_extended: bool, bit: u32, part: Part) -> (SourceReport, u64, u64) {
    let (mut fixture, mut placer, _) = camera(is_extended);
    let (mut complete, mut timeless) = (0, 0);
    let mut count = |frame: &Frame<'_>| {
        let meta = frame.meta();
        complete += u64::from(!meta.is_incomplete());
        timeless += u64::from(!meta.is_incomplete() && meta.timestamp == Timestamp::default());
    };
    let mut now = Instant::now();
    for block in 1..=BLOCKS {
        let id = |is_wrong: bool| {
            if block == WRONG && is_wrong {
                block ^ 1 << bit
            } else {
                block
            }
        };
        let leader = part == Part::Leader || part == Part::Block;
        let trailer = part == Part::Trailer || part == Part::Block;
        let mut packets = vec![packet((1, 0, 0, 4), id(leader), is_extended)];
        packets.extend((0..6).map(|i| packet((3, 0, i, 4), id(part.has(i)), is_extended)));
        packets.push(packet((2, 0, 0, 4), id(trailer), is_extended));
        for packet in packets {
            placer.place(&mut fixture.windows[0], [&packet[..]], now);
            placer.requests().clear();
        }
        now += Duration::from_millis(10);
        placer.sweep(now);
        fixture.windows[0].tick(now);
        while let Some(lease) = fixture.reader.poll(1) {
            count(&lease.frame(0));
        }
    }
    placer.finish(&mut fixture.windows[0]);
    fixture.windows[0].finish();
    while let Some(lease) = fixture.reader.poll(1) {
        count(&lease.frame(0));
    }
    (fixture.report(), complete, timeless)
}

#[test]
fn wrong_block_identifiers_cost_few_packets() {
    for is_extended in [false, true] {
        for bit in 0..if is_extended { 60 } else { 16 } {
            for part in [
                Part::Leader,
                Part::Payload(1),
                Part::Payload(4),
                Part::Trailer,
                Part::Block,
            ] {
                let case = format!("{is_extended} bit {bit} {part:?}");
                let (report, complete, timeless) = receive(is_extended, bit, part);
                let lost: u64 = report.lost.values().sum();
                assert_eq!(
                    report.expected,
                    report.delivered + lost,
                    "{case}: {report:?}"
                );
                let sent = BLOCKS * (PACKETS + 2);
                let late = ["late", "ring_full"].map(|cause| report.lost.get(cause).unwrap_or(&0));
                let aside =
                    report.duplicates + report.rejected + report.control + report.before_start;
                let counted = report.delivered + aside + late.into_iter().sum::<u64>();
                assert_eq!(counted, sent, "{case}: {report:?}");
                // The block itself, the packets that confirm the old numbers again, and the open frames.
                assert!(
                    report.delivered >= (BLOCKS - 6) * PACKETS && complete >= BLOCKS - 7,
                    "{case}: {complete} complete, {report:?}"
                );
                assert!(
                    timeless <= 2,
                    "{case}: {timeless} frames without a time, {report:?}"
                );
                let wire = lost - late.into_iter().sum::<u64>();
                assert!(wire <= 6 * PACKETS, "{case}: {report:?}");
            }
        }
    }
}
