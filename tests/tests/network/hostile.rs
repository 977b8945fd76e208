//! Senders that do everything wrong, and what of it stands in the ledger and in the files.
//!
//! Every case is sent on its own port to its own source of one process: its packets are given one by one, and what
//! must come of them is computed by hand, in places of 8 packets a frame and 4 open frames.

mod attack;
mod cases;

use attack::{Attack, Kind, Rate, attack, prepare};
use cases::{Case, Ledger, good, raw_table, spead_table, table};
use daq_tests::network::{Queue, loopback};
use daq_tests::wait_for;
use rustix::process::Signal;
use std::ops::Range;

fn raw_cases() -> Vec<Case> {
    [table(), raw_table()].concat()
}

fn spead_cases() -> Vec<Case> {
    [table(), spead_table()].concat()
}

/// Small packets are copied out of the kernel's messages.
const SMALL: Kind = Kind::Raw(512);
/// Large ones are received where they are guessed to belong.
const LARGE: Kind = Kind::Raw(4096);

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
    attack(
        Kind::Spead {
            rest: 1000,
            first: 1000,
        },
        Rate::Slow,
        &spead_cases(),
    );
}

#[test]
fn spead_heaps_sent_in_bursts_are_accounted() {
    attack(
        Kind::Spead {
            rest: 1000,
            first: 1000,
        },
        Rate::Bursts(48 << 10),
        &spead_cases(),
    );
}

#[test]
fn large_spead_heaps_received_by_gro_are_accounted() {
    attack(
        Kind::Spead {
            rest: 4096,
            first: 4096,
        },
        Rate::Offload(96 << 10),
        &spead_cases(),
    );
}

/// Senders that put all item pointers into a heap's first packet leave it less payload.
#[test]
fn spead_heaps_with_short_first_packet_are_accounted() {
    attack(
        Kind::Spead {
            rest: 1008,
            first: 1000,
        },
        Rate::Bursts(48 << 10),
        &spead_cases(),
    );
}

/// A reader that stands still while far more comes than a small buffer takes.
fn overrun(kind: Kind, offload: bool) {
    const STALLED: Range<u64> = 64..864;
    let case = Case {
        keys: "agree = 1",
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
    // What is still on its way would find room again when the reader goes on.
    loopback::arrived();
    let drops = Queue::drops(attack.port);
    live.signal(Signal::CONT);
    drained();
    attack.shoot(&shots(STALLED.end..1000), 16 << 10, offload, drained);
    live.wait_count("sources.stalled.expected", 1000);
    assert_eq!(
        Queue::drops(attack.port),
        drops,
        "dropped while nobody stood still"
    );
    let outcome = live.stop().ok();
    let lost = 1000 - outcome.count("sources.stalled.delivered");
    assert!(
        lost > 0 && drops > 0,
        "nothing was dropped: {:#}",
        outcome.report
    );
    if !offload {
        assert_eq!(
            lost, drops,
            "the kernel counted other packets than are missing"
        );
    }
    // Once the buffer is full of equal packets everything is dropped until the reader goes on.
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
    overrun(
        Kind::Spead {
            rest: 1000,
            first: 1000,
        },
        false,
    );
}
