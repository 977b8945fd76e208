//! Checks that network faults are counted and annotated, and have no other effect.

use crate::hsb::setup::{ALL, FRAMES, PACKETS, Run, options};
use crate::needs_room;
use daq_emulators::hsb::pattern::{Pattern, verify, whose};

const EXPECTED: u64 = FRAMES * PACKETS as u64;

fn run(faults: &[&str]) -> Run {
    // The window is longer than the gaps. Beyond the window, packets are accepted only if several successive packets
    // agree.
    Run::new(&options(faults), "window = 8", EXPECTED)
}

#[test]
fn gaps_are_counted_and_annotated() {
    needs_room!();
    // Gaps within a frame, across its end and its metadata, and over several complete frames.
    let gaps = [
        (5, 1),
        (2 * ALL + 3, 3),
        (4 * ALL + 6, 6),
        (10 * ALL + 2, 3 * ALL),
    ];
    let faults = gaps.map(|(at, count)| format!("gap@{at}:{count}"));
    let run = run(&faults.each_ref().map(String::as_str));
    let lost: Vec<(u64, usize)> = gaps
        .iter()
        .flat_map(|(at, count)| *at..at + count)
        .map(|packet| (packet / ALL, usize::try_from(packet % ALL).unwrap()))
        .filter(|(_, packet)| *packet < PACKETS)
        .collect();
    run.is(lost.len() as u64, 0, 0);
    // Frames without any packet are delivered as well, with fill values.
    run.has_all_but(&[], &lost);
    let dropped: u64 = gaps.iter().map(|(_, count)| count).sum();
    assert_eq!(run.counts.sensors[0].dropped, dropped);
}

#[test]
fn reordered_packets_are_not_lost() {
    needs_room!();
    let at = 3 * ALL;
    let reorder = [format!("reorder@{}", at + 2), format!("reorder@{}", at + 7)];
    let run = run(&[
        &reorder[0],
        &reorder[1],
        "late-immediate@20",
        "no-metadata@30",
    ]);
    run.is(0, 0, 0);
    run.has_all_but(&[], &[]);
    assert_eq!(run.counts.sensors[0].late, 3);
}

#[test]
fn duplicate_packets_are_counted() {
    needs_room!();
    let run = run(&["duplicate@10:2", "replay@20", "replay@40"]);
    let again = run.counts.sensors[0].duplicates;
    assert_eq!(again, 2 + 2 * ALL);
    run.is(0, again, 0);
    run.has_all_but(&[], &[]);
}

/// Only the malformed packet itself is rejected, so only its data is lost.
#[test]
fn malformed_packets_change_nothing() {
    needs_room!();
    for fault in ["bad-va", "bad-rkey", "bad-length", "bad-opcode"] {
        let at = 7 * ALL + 2;
        let run = run(&[&format!("{fault}@{at}")]);
        run.is(1, 0, 1);
        run.has_all_but(&[], &[(7, 2)]);
        assert_eq!(run.counts.sensors[0].damaged, 1, "{fault}");
    }
}

/// A UDP socket does not receive the header fields that the invariant CRC covers, so the CRC cannot be checked.
#[test]
fn wrong_icrc_is_not_checked() {
    needs_room!();
    let run = run(&["bad-icrc@30"]);
    run.is(0, 0, 0);
    run.has_all_but(&[], &[]);
}

#[test]
fn device_restart_opens_epoch() {
    needs_room!();
    let board = options(&["restart@20"]);
    let run = Run::new(&board, "", EXPECTED);
    let found = ["epochs", "rejected", "duplicates"].map(|key| run.count(key));
    assert_eq!(found, [2, 0, 0], "{:#}", run.outcome.report);
    let mut frames = Vec::new();
    for bytes in run.file.data.chunks(crate::hsb::setup::FRAME) {
        let at = 4 * crate::hsb::setup::PACKET;
        let (sensor, frame) = whose(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(sensor, 0);
        let wrong = verify(Pattern::Counter, 0, frame, 0, bytes);
        assert_eq!(wrong, None, "frame {frame}");
        frames.push(frame);
    }
    assert_eq!(frames, (0..FRAMES).collect::<Vec<_>>());
}
