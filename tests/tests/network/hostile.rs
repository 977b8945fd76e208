//! Sends malformed packets of every kind, and checks their effect on the ledger and the files.
//!
//! Every case is sent to a separate port, and has its own source. All sources are in one process. The packets of a case
//! are listed one by one. The expected ledger is computed by hand, for frames of 8 packets and 4 open frames.

mod attack;
mod cases;

use attack::{Attack, Kind, Rate, attack, prepare};
use cases::{Case, Ledger, good, raw_table, spead_table, table};
use daq_testkit::loopback::{self, Queue};
use daq_testkit::wait_for;
use rustix::process::Signal;
use std::ops::Range;

fn raw_cases() -> Vec<Case> {
    [table(), raw_table()].concat()
}

fn spead_cases() -> Vec<Case> {
    [table(), spead_table()].concat()
}

/// Small packets are copied from the socket's messages.
const SMALL: Kind = Kind::Raw(512);
/// Large packets are received directly at their predicted position in the frame.
const LARGE: Kind = Kind::Raw(4096);
const HEAPS: Kind = Kind::spead(1000, 1000);
const LARGE_HEAPS: Kind = Kind::spead(4096, 4096);
/// Some senders put all item pointers into a heap's first packet, which leaves less payload in this packet.
const UNEVEN_HEAPS: Kind = Kind::spead(1008, 1000);

#[test]
fn raw_packets_sent_singly_are_accounted() {
    attack(SMALL, Rate::Slow, &raw_cases());
}

#[test]
fn raw_packets_sent_in_bursts_are_accounted() {
    attack(SMALL, Rate::Bursts(48 << 10), &raw_cases());
}

#[test]
fn raw_packets_received_by_gro_are_accounted() {
    attack(SMALL, Rate::Offload(48 << 10), &raw_cases());
}

#[test]
fn large_raw_packets_sent_singly_are_accounted() {
    attack(LARGE, Rate::Slow, &raw_cases());
}

#[test]
fn large_raw_packets_sent_in_bursts_are_accounted() {
    attack(LARGE, Rate::Bursts(96 << 10), &raw_cases());
}

#[test]
fn large_raw_packets_received_by_gro_are_accounted() {
    attack(LARGE, Rate::Offload(96 << 10), &raw_cases());
}

#[test]
fn spead_heaps_sent_singly_are_accounted() {
    attack(HEAPS, Rate::Slow, &spead_cases());
}

#[test]
fn spead_heaps_sent_in_bursts_are_accounted() {
    attack(HEAPS, Rate::Bursts(48 << 10), &spead_cases());
}

#[test]
fn large_spead_heaps_received_by_gro_are_accounted() {
    attack(LARGE_HEAPS, Rate::Offload(96 << 10), &spead_cases());
}

#[test]
fn spead_heaps_with_short_first_packet_are_accounted() {
    attack(UNEVEN_HEAPS, Rate::Bursts(48 << 10), &spead_cases());
}

/// Stops the reader process while far more packets arrive than a small buffer can hold.
fn overrun(kind: Kind, offload: bool) {
    const STALLED: Range<u64> = 64..864;
    let case = Case {
        keys: "resync_after = 1",
        ..Case::new(
            "stalled",
            0..1000,
            good(0..1000).collect(),
            &[],
            Ledger::whole(1000),
        )
    };
    let (daq, attacks) = prepare(
        kind,
        "receive_buffer = \"64 KiB\"",
        std::slice::from_ref(&case),
    );
    let attack = &attacks[0];
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    let shots = |range: Range<u64>| good(range).collect::<Vec<_>>();
    let drained = || Queue::drained(attack.port);
    attack.shoot(&shots(0..STALLED.start), 16 << 10, offload, drained);
    live.signal(Signal::STOP);
    wait_for("the stop", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", live.pid())).unwrap();
        stat.rsplit(')')
            .next()
            .unwrap()
            .trim_start()
            .starts_with('T')
            .then_some(())
    });
    attack.shoot(&shots(STALLED), 16 << 10, offload, || ());
    // Packets that are still in transfer when the reader continues would find space in the buffer, so wait for them.
    loopback::arrived();
    let drops = Queue::drops(attack.port);
    live.signal(Signal::CONT);
    drained();
    attack.shoot(&shots(STALLED.end..1000), 16 << 10, offload, drained);
    live.wait_count("sources.stalled.expected", 1000);
    assert_eq!(
        Queue::drops(attack.port),
        drops,
        "packets were dropped although the reader was running"
    );
    let outcome = live.stop().ok();
    let lost = 1000 - outcome.count("sources.stalled.delivered");
    assert!(
        lost > 0 && drops > 0,
        "Linux must have dropped packets: {:#}",
        outcome.report
    );
    if !offload {
        assert_eq!(
            lost, drops,
            "the number of packets that Linux dropped differs from the number of missing packets"
        );
    }
    // All packets have the same size. So once the buffer is full, all packets are dropped until the reader continues.
    let gone = STALLED.end - lost..STALLED.end;
    let ledger = Ledger::lost(1000, &[("kernel_drop", lost)]);
    let case = Case {
        ledger,
        stored: vec![(0..1000, gone.collect())],
        ..case.clone()
    };
    let attack = Attack {
        case: &case,
        source: attack.source.clone(),
        format: attack.format.clone(),
        ..*attack
    };
    if let Err(why) = attack.check(&daq, &outcome, kind.frame()) {
        panic!("{why}\n{}", outcome.stderr);
    }
}

#[test]
fn kernel_drop_of_raw_packets_is_counted() {
    overrun(SMALL, false);
}

#[test]
fn kernel_drop_of_large_packets_is_counted() {
    overrun(LARGE, false);
}

#[test]
fn kernel_drop_of_gro_packets_is_counted() {
    overrun(SMALL, true);
}

#[test]
fn kernel_drop_of_spead_heaps_is_counted() {
    overrun(HEAPS, false);
}
