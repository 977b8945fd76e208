//! The receiving end against a bare sender.
#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

mod fixture;
mod mock_nic;

use super::*;
use fixture::{Bare, Rig, low, record};

const KINDS: [(Mode, usize); 4] = [
    (Mode::Write, 1),
    (Mode::Write, 3),
    (Mode::Send, 1),
    (Mode::Send, 3),
];

/// A rig that a sender is connected with.
fn connected(mode: Mode, rails: usize, slots: usize) -> (Rig, Bare) {
    let mut rig = Rig::new(mode, Service::Rc, rails, slots);
    let mut bare = Bare::new(mode, Service::Rc, rails, 1);
    rig.streams.push(1);
    dial(&mut rig, &mut bare).unwrap();
    (rig, bare)
}

/// Dials until a sender that is gone is seen to be.
fn dial_in_place_of_another(rig: &mut Rig, bare: &mut Bare) {
    while dial(rig, bare).is_err() {}
}

fn dial(rig: &mut Rig, bare: &mut Bare) -> Result<(), crate::connect::ConnectError> {
    let address = rig.address;
    rig.meanwhile(|| bare.try_dial(address))
}

/// Sends frames as credits allow.
fn send(rig: &mut Rig, bare: &mut Bare, frames: std::ops::Range<u64>) {
    for n in frames {
        while bare.credits() <= n {
            rig.pump();
        }
        bare.send(n);
        bare.finish();
        assert_eq!(bare.failed, None, "frame {n}");
    }
}

#[test]
fn frames_over_all_rails_arrive_in_order() {
    for (mode, rails) in KINDS {
        let (mut rig, mut bare) = connected(mode, rails, 5);
        send(&mut rig, &mut bare, 0..100);
        rig.until(|rig| rig.got.len() == 100);
        assert_eq!(rig.numbers(), (0..100).collect::<Vec<_>>());
        assert!(
            rig.got
                .iter()
                .all(|got| (got.missing, got.passed, got.epoch) == (0, 0, 1))
        );
        assert_eq!(rig.faults.iter().sum::<u64>(), 0);
    }
}

#[test]
fn credits_never_exceed_free_slots() {
    for (mode, rails) in KINDS {
        let (mut rig, mut bare) = connected(mode, rails, 4);
        rig.gives = false;
        send(&mut rig, &mut bare, 0..4);
        rig.until(|rig| rig.got.len() == 4);
        assert_eq!(bare.credits(), 4);
        rig.engine.credit(1);
        while bare.credits() < 5 {
            rig.pump();
        }
        send(&mut rig, &mut bare, 4..5);
        rig.until(|rig| rig.got.len() == 5);
        assert_eq!(bare.credits(), 5);
    }
}

#[test]
fn frame_without_credit_ends_link() {
    let (mut rig, mut bare) = connected(Mode::Write, 1, 4);
    rig.gives = false;
    send(&mut rig, &mut bare, 0..4);
    rig.until(|rig| rig.got.len() == 4);
    bare.send(4);
    rig.until(|rig| rig.fault("beyond-credit") == 1);
    assert_eq!(rig.numbers(), [0, 1, 2, 3]);
    bare.finish();
    bare.send(5);
    bare.await_failure();
}

#[test]
fn message_without_credit_finds_no_receive() {
    let (mut rig, mut bare) = connected(Mode::Send, 1, 4);
    rig.gives = false;
    (0..5).for_each(|n| bare.send(n));
    assert_eq!(bare.await_failure(), crate::verbs::Status::NotReady);
    rig.until(|rig| rig.got.len() == 4);
}

#[test]
fn partial_frame_is_requested_again() {
    let (mut rig, mut bare) = connected(Mode::Write, 2, 4);
    send(&mut rig, &mut bare, 0..6);
    // Frame 7 is there in full and frame 6 lacks its record: neither counts.
    bare.payload(6, true);
    bare.send(7);
    bare.finish();
    dial(&mut rig, &mut bare).unwrap();
    assert_eq!(bare.offers[0].next, 6);
    send(&mut rig, &mut bare, 6..20);
    rig.until(|rig| rig.got.len() == 20);
    assert_eq!(rig.numbers(), (0..20).collect::<Vec<_>>());
    assert!(rig.got.iter().all(|got| got.missing == 0));
}

#[test]
fn frame_completed_at_link_break_is_delivered_once() {
    for (mode, rails) in KINDS {
        let (mut rig, mut bare) = connected(mode, rails, 5);
        rig.most = 0;
        send(&mut rig, &mut bare, 0..5);
        // Nobody has taken them when the sender comes anew, who is answered once they are.
        bare.link = None;
        let address = rig.address;
        std::thread::scope(|scope| {
            let dialled = scope.spawn(|| bare.try_dial(address));
            for _ in 0..100 {
                rig.pump();
            }
            assert!(rig.got.is_empty());
            rig.most = 1;
            while !dialled.is_finished() {
                rig.pump();
            }
            dialled.join().unwrap().unwrap();
        });
        assert_eq!(bare.offers[0].next, 5);
        assert_eq!(rig.numbers(), [0, 1, 2, 3, 4]);
        send(&mut rig, &mut bare, 5..9);
        rig.until(|rig| rig.got.len() == 9);
    }
}

#[test]
fn memory_regions_of_old_link_are_invalid() {
    let (mut rig, mut bare) = connected(Mode::Write, 1, 4);
    send(&mut rig, &mut bare, 0..1);
    rig.until(|rig| rig.got.len() == 1);
    let old = bare.offers[0];
    bare.link = None;
    dial(&mut rig, &mut bare).unwrap();
    assert_ne!(
        (old.slot_key, old.record_key),
        (bare.offers[0].slot_key, bare.offers[0].record_key)
    );
    for key in [old.slot_key, old.record_key] {
        let before: Vec<u64> = (0..4).map(|slot| rig.word(slot, 0)).collect();
        let verb = crate::verbs::Verb::Write {
            address: bare.offers[0].slot_address,
            key,
            immediate: None,
        };
        bare.post(0, verb, &[(0, 64)], true);
        assert_eq!(bare.await_failure(), crate::verbs::Status::RemoteAccess);
        assert_eq!(
            before,
            (0..4).map(|slot| rig.word(slot, 0)).collect::<Vec<_>>()
        );
        dial(&mut rig, &mut bare).unwrap();
    }
}

#[test]
fn stream_continues_and_new_stream_opens_epoch() {
    let (mut rig, mut bare) = connected(Mode::Write, 2, 4);
    send(&mut rig, &mut bare, 0..3);
    rig.until(|rig| rig.got.len() == 3);
    // 3 and 4 cannot be sent any more.
    bare.link = None;
    bare.hello.first = 5;
    dial(&mut rig, &mut bare).unwrap();
    assert_eq!(bare.offers[0].next, 5);
    send(&mut rig, &mut bare, 5..7);
    rig.until(|rig| rig.got.len() == 5);
    bare.link = None;
    let mut other = Bare::new(Mode::Write, Service::Rc, 2, 2);
    other.hello.first = 40;
    rig.streams.push(2);
    dial_in_place_of_another(&mut rig, &mut other);
    send(&mut rig, &mut other, 40..42);
    rig.until(|rig| rig.got.len() == 7);
    let told: Vec<_> = rig
        .got
        .iter()
        .map(|got| (got.number, got.missing, got.epoch))
        .collect();
    assert_eq!(
        told,
        [
            (0, 0, 1),
            (1, 0, 1),
            (2, 0, 1),
            (5, 2, 1),
            (6, 0, 1),
            (40, 0, 2),
            (41, 0, 2)
        ]
    );
    // The first one comes back: nothing of it is told twice.
    other.link = None;
    rig.streams.push(1);
    dial_in_place_of_another(&mut rig, &mut bare);
    assert_eq!(bare.offers[0].next, 7);
}

#[test]
fn second_sender_waits_for_first_to_disconnect() {
    let (mut rig, mut bare) = connected(Mode::Write, 1, 4);
    let mut other = Bare::new(Mode::Write, Service::Rc, 1, 2);
    let refused = dial(&mut rig, &mut other).unwrap_err().to_string();
    assert!(refused.contains("the receiver receives from"), "{refused}");
    send(&mut rig, &mut bare, 0..3);
    rig.until(|rig| rig.got.len() == 3);
    bare.link.as_mut().unwrap().watch.part(0);
    dial_in_place_of_another(&mut rig, &mut other);
}

#[test]
fn sender_detach_is_clean_and_sender_death_is_fault() {
    for parts in [true, false] {
        let (mut rig, mut bare) = connected(Mode::Write, 1, 4);
        send(&mut rig, &mut bare, 0..3);
        rig.until(|rig| rig.got.len() == 3);
        if parts {
            bare.link.as_mut().unwrap().watch.part(0);
        }
        bare.link = None;
        let counted = |rig: &Rig| {
            let counters = &rig.engine.counters;
            (counters.links.get(), counters.ended.get())
        };
        assert_eq!(counted(&rig), (1, 0));
        rig.until(|rig| rig.engine.link.is_none());
        assert_eq!(counted(&rig), (1, 1));
        assert_eq!(rig.faults.iter().sum::<u64>(), u64::from(!parts));
    }
}

#[test]
fn restarted_receiver_continues_with_available_frames() {
    let (mut rig, mut bare) = connected(Mode::Write, 1, 4);
    send(&mut rig, &mut bare, 0..7);
    rig.until(|rig| rig.got.len() == 7);
    drop(rig.engine);
    let waiting = crate::connect::tcp::listener(rig.address).unwrap();
    let mut anew = Rig::at(waiting, Mode::Write, Service::Rc, 1, 4);
    anew.streams.push(1);
    bare.await_failure_of_link();
    bare.hello.first = 7;
    dial(&mut anew, &mut bare).unwrap();
    send(&mut anew, &mut bare, 7..9);
    anew.until(|rig| rig.got.len() == 2);
    assert_eq!((anew.numbers(), anew.got[0].missing), (vec![7, 8], 0));
}

#[test]
fn protocol_violation_ends_link() {
    let bad = |n: u64, change: fn(&mut crate::stream::wire::Record)| {
        let mut record = record(n);
        change(&mut record);
        record
    };
    type Deed = fn(
        &mut Bare,
        &dyn Fn(u64, fn(&mut crate::stream::wire::Record)) -> crate::stream::wire::Record,
    );
    let deeds: [Deed; 8] = [
        |bare, _| bare.tell(3, &record(3), Some(low(4))),
        |bare, bad| bare.tell(3, &bad(3, |record| record.number = 4), Some(3)),
        |bare, bad| {
            bare.tell(
                3,
                &bad(3, |record| record.length = fixture::SLOT as u64 + 1),
                Some(3),
            );
        },
        |bare, bad| bare.tell(3, &bad(3, |record| record.length = u64::MAX), Some(3)),
        |bare, bad| bare.tell(3, &bad(3, |record| record.places += 1), Some(3)),
        |bare, bad| bare.tell(3, &bad(3, |record| record.arrived = 71), Some(3)),
        |bare, _| {
            let offer = bare.offers[0];
            let verb = crate::verbs::Verb::Write {
                address: offer.slot_address,
                key: offer.slot_key,
                immediate: Some(3),
            };
            bare.post(0, verb, &[(0, 8)], true);
        },
        |bare, _| {
            let verb = crate::verbs::Verb::Send { immediate: None };
            bare.post(0, verb, &[], true);
        },
    ];
    for deed in deeds {
        let (mut rig, mut bare) = connected(Mode::Write, 1, 5);
        send(&mut rig, &mut bare, 0..3);
        deed(&mut bare, &bad);
        rig.until(|rig| rig.fault("bad-record") == 1);
        assert_eq!(rig.numbers(), [0, 1, 2]);
        // It may come back, and does better.
        dial(&mut rig, &mut bare).unwrap();
        assert_eq!(bare.offers[0].next, 3);
        send(&mut rig, &mut bare, 3..9);
        rig.until(|rig| rig.got.len() == 9);
    }
    let lies: [fn(&mut crate::stream::wire::Record); 3] = [
        |record| record.length += 8,
        |record| record.number += 1,
        |record| record.places = u32::MAX,
    ];
    for lie in lies {
        let (mut rig, mut bare) = connected(Mode::Send, 1, 5);
        let record = bad(0, lie);
        bare.message(0, &record);
        rig.until(|rig| rig.fault("bad-record") == 1);
        assert!(rig.got.is_empty());
    }
}

#[test]
fn message_longer_than_slot_is_rejected_by_nic() {
    let (mut rig, mut bare) = connected(Mode::Send, 1, 5);
    let verb = crate::verbs::Verb::Send { immediate: None };
    let bytes = crate::stream::wire::Record::bytes(fixture::PLACES) + fixture::SLOT + 8;
    bare.post(0, verb, &[(0, bytes)], true);
    rig.until(|rig| rig.fault("local") + rig.fault("peer-gone") > 0);
    assert_eq!(rig.fault("local"), 1);
}

#[test]
fn foreign_greetings_are_rejected() {
    let mut rig = Rig::new(Mode::Write, Service::Rc, 2, 4);
    let mut bare = Bare::new(Mode::Write, Service::Rc, 2, 1);
    let address = rig.address;
    let hello = bare.hello;
    let of = |change: fn(&mut crate::stream::wire::Hello)| {
        let greeting = |rail: u8| {
            let mut hello = crate::stream::wire::Hello { rail, ..hello };
            change(&mut hello);
            hello.encode()
        };
        vec![greeting(0), greeting(1)]
    };
    let foreign = [
        (
            vec![b"GET / HTTP/1.1\r\n\r\n".to_vec(), Vec::new()],
            "a greeting",
        ),
        (of(|hello| hello.mode = Mode::Send), "mode"),
        (of(|hello| hello.places = 71), "places"),
        (of(|hello| hello.rails = 3), "rails"),
        (of(|hello| hello.stream += u64::from(hello.rail)), "rail 1"),
        (of(|hello| hello.rail = 0), "rail 1"),
    ];
    for (i, (greetings, why)) in foreign.into_iter().enumerate() {
        let refused = rig
            .meanwhile(|| bare.dial_with(address, &greetings))
            .unwrap_err();
        assert!(refused.to_string().contains(why), "{refused}");
        rig.until(|rig| rig.fault("foreign") == i as u64 + 1);
    }
    bare.hello.slot = fixture::SLOT as u64 + 1;
    let refused = dial(&mut rig, &mut bare).unwrap_err().to_string();
    assert!(refused.contains("set `slot = "), "{refused}");
}

#[test]
fn after_quiesce_nothing_is_written() {
    for (mode, rails) in KINDS {
        let (mut rig, mut bare) = connected(mode, rails, 6);
        send(&mut rig, &mut bare, 0..4);
        rig.until(|rig| rig.got.len() == 4);
        rig.gives = false;
        // Frames under way: some are finished, some are not, nobody is told of any yet.
        (4..10).for_each(|n| bare.send(n));
        rig.engine.quiesce(Duration::from_mins(1)).unwrap();
        let words: Vec<u64> = (0..6).map(|slot| rig.word(slot, 1)).collect();
        bare.send(10);
        bare.await_failure();
        while rig.pump() > 0 {}
        assert_eq!(
            words,
            (0..6).map(|slot| rig.word(slot, 1)).collect::<Vec<_>>()
        );
        let known = rig.got.len() as u64;
        assert!((4..=10).contains(&known));
        assert_eq!(rig.numbers(), (0..known).collect::<Vec<_>>());
        // Nobody is answered until it is armed again; then the rest comes.
        rig.gives = true;
        rig.arm(3);
        dial(&mut rig, &mut bare).unwrap();
        assert_eq!(bare.offers[0].next, known);
        send(&mut rig, &mut bare, known..20);
        rig.until(|rig| rig.got.len() == 20);
        assert_eq!(rig.numbers(), (0..20).collect::<Vec<_>>());
    }
}

/// What is done with a sender, a receiver and the way between them.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// So many frames are sent, as far as credits go.
    Send(u64),
    /// So many polls.
    Poll(u8),
    /// A payload without its record, then the connection breaks.
    Tear,
    /// The connection breaks.
    Break,
    /// The receiver is made quiet, and armed again with this slot.
    Quiesce(u8),
    /// The receiver takes so many frames a poll at most.
    Take(u8),
}

fn acts() -> impl proptest::strategy::Strategy<Value = Vec<Act>> {
    use proptest::prelude::*;
    let act = prop_oneof![
        6 => (1..12_u64).prop_map(Act::Send),
        4 => (0..20_u8).prop_map(Act::Poll),
        1 => Just(Act::Tear),
        1 => Just(Act::Break),
        1 => (0..5_u8).prop_map(Act::Quiesce),
        1 => (1..4_u8).prop_map(Act::Take),
    ];
    proptest::collection::vec(act, 1..30)
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(24))]

    /// Whatever breaks and whenever: every frame is told once, in order, with its own content.
    #[test]
    fn every_frame_is_delivered_once(acts in acts(), kind in 0..KINDS.len()) {
        let (mode, rails) = KINDS[kind];
        let (mut rig, mut bare) = connected(mode, rails, 5);
        let mut next = 0;
        for act in acts {
            if bare.link.is_none() {
                dial(&mut rig, &mut bare).unwrap();
                next = bare.offers[0].next;
            }
            match act {
                Act::Send(frames) => {
                    for _ in 0..frames {
                        if next < bare.credits() {
                            bare.send(next);
                            next += 1;
                        }
                        rig.pump();
                    }
                }
                Act::Poll(times) => {
                    for _ in 0..times {
                        rig.pump();
                    }
                }
                Act::Tear => {
                    if mode == Mode::Write && next < bare.credits() {
                        bare.payload(next, false);
                    }
                    bare.link = None;
                }
                Act::Break => bare.link = None,
                Act::Quiesce(first) => {
                    rig.engine.quiesce(Duration::from_mins(1)).unwrap();
                    while rig.pump() > 0 {}
                    rig.arm(first.into());
                    bare.link = None;
                }
                Act::Take(most) => rig.most = most.into(),
            }
        }
        if bare.link.is_none() {
            dial(&mut rig, &mut bare).unwrap();
            next = bare.offers[0].next;
        }
        send(&mut rig, &mut bare, next..next + 7);
        let all = next + 7;
        rig.until(|rig| rig.got.len() as u64 >= all);
        proptest::prop_assert_eq!(rig.numbers(), (0..all).collect::<Vec<_>>());
        proptest::prop_assert!(rig.got.iter().all(|got| got.missing == 0 && got.epoch == 1));
        proptest::prop_assert_eq!(rig.fault("bad-record") + rig.fault("beyond-credit"), 0);
    }
}
