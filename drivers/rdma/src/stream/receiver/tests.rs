//! Tests of the receiver with a baseline sender.
#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

mod fixture;
mod mock_nic;

use super::*;
use daq_testkit::assert_contains;
use fixture::{BaselineSender, Fixture, low, record};

const KINDS: [(Mode, usize); 4] = [
    (Mode::Write, 1),
    (Mode::Write, 3),
    (Mode::Send, 1),
    (Mode::Send, 3),
];

/// Returns a fixture with a connected sender.
fn connected(mode: Mode, rails: usize, slots: usize) -> (Fixture, BaselineSender) {
    let mut fixture = Fixture::new(mode, Service::Rc, rails, slots);
    let mut sender = BaselineSender::new(mode, Service::Rc, rails, 1);
    fixture.streams.push(1);
    connect(&mut fixture, &mut sender).unwrap();
    (fixture, sender)
}

/// Connects until the receiver has detected that the previous sender is gone.
fn connect_in_place_of_another(fixture: &mut Fixture, sender: &mut BaselineSender) {
    while connect(fixture, sender).is_err() {}
}

fn connect(
    fixture: &mut Fixture,
    sender: &mut BaselineSender,
) -> Result<(), crate::connect::ConnectError> {
    let address = fixture.address;
    fixture.meanwhile(|| sender.try_connect(address))
}

/// Sends frames within the limit of the credits.
fn send(fixture: &mut Fixture, sender: &mut BaselineSender, frames: std::ops::Range<u64>) {
    for n in frames {
        while sender.credits() <= n {
            fixture.pump();
        }
        sender.send(n);
        sender.finish();
        assert_eq!(sender.failed, None, "frame {n}");
    }
}

#[test]
fn frames_over_all_rails_arrive_in_order() {
    for (mode, rails) in KINDS {
        let (mut fixture, mut sender) = connected(mode, rails, 5);
        send(&mut fixture, &mut sender, 0..100);
        fixture.until(|fixture| fixture.got.len() == 100);
        assert_eq!(fixture.numbers(), (0..100).collect::<Vec<_>>());
        assert!(
            fixture
                .got
                .iter()
                .all(|got| (got.missing, got.passed, got.epoch) == (0, 0, 1))
        );
        assert_eq!(fixture.faults.iter().sum::<u64>(), 0);
    }
}

#[test]
fn credits_never_exceed_free_slots() {
    for (mode, rails) in KINDS {
        let (mut fixture, mut sender) = connected(mode, rails, 4);
        fixture.gives = false;
        send(&mut fixture, &mut sender, 0..4);
        fixture.until(|fixture| fixture.got.len() == 4);
        assert_eq!(sender.credits(), 4);
        fixture.engine.credit(1);
        while sender.credits() < 5 {
            fixture.pump();
        }
        send(&mut fixture, &mut sender, 4..5);
        fixture.until(|fixture| fixture.got.len() == 5);
        assert_eq!(sender.credits(), 5);
    }
}

#[test]
fn frame_without_credit_ends_link() {
    let (mut fixture, mut sender) = connected(Mode::Write, 1, 4);
    fixture.gives = false;
    send(&mut fixture, &mut sender, 0..4);
    fixture.until(|fixture| fixture.got.len() == 4);
    sender.send(4);
    fixture.until(|fixture| fixture.fault("beyond-credit") == 1);
    assert_eq!(fixture.numbers(), [0, 1, 2, 3]);
    sender.finish();
    sender.send(5);
    sender.await_failure();
}

#[test]
fn message_without_credit_finds_no_receive() {
    let (mut fixture, mut sender) = connected(Mode::Send, 1, 4);
    fixture.gives = false;
    (0..5).for_each(|n| sender.send(n));
    assert_eq!(sender.await_failure(), crate::verbs::Status::NotReady);
    fixture.until(|fixture| fixture.got.len() == 4);
}

#[test]
fn partial_frame_is_requested_again() {
    let (mut fixture, mut sender) = connected(Mode::Write, 2, 4);
    send(&mut fixture, &mut sender, 0..6);
    // Frame 7 is complete, but frame 6 has no record, so neither is delivered.
    sender.payload(6, true);
    sender.send(7);
    sender.finish();
    connect(&mut fixture, &mut sender).unwrap();
    assert_eq!(sender.offers[0].next, 6);
    send(&mut fixture, &mut sender, 6..20);
    fixture.until(|fixture| fixture.got.len() == 20);
    assert_eq!(fixture.numbers(), (0..20).collect::<Vec<_>>());
    assert!(fixture.got.iter().all(|got| got.missing == 0));
}

#[test]
fn frame_completed_at_link_break_is_delivered_once() {
    for (mode, rails) in KINDS {
        let (mut fixture, mut sender) = connected(mode, rails, 5);
        fixture.max = 0;
        send(&mut fixture, &mut sender, 0..5);
        // The frames were not polled yet when the sender reconnects. The sender gets an answer only after they were
        // polled.
        sender.link = None;
        let address = fixture.address;
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| sender.try_connect(address));
            for _ in 0..100 {
                fixture.pump();
            }
            assert!(fixture.got.is_empty());
            fixture.max = 1;
            while !connecting.is_finished() {
                fixture.pump();
            }
            connecting.join().unwrap().unwrap();
        });
        assert_eq!(sender.offers[0].next, 5);
        assert_eq!(fixture.numbers(), [0, 1, 2, 3, 4]);
        send(&mut fixture, &mut sender, 5..9);
        fixture.until(|fixture| fixture.got.len() == 9);
    }
}

#[test]
fn memory_regions_of_old_link_are_invalid() {
    let (mut fixture, mut sender) = connected(Mode::Write, 1, 4);
    send(&mut fixture, &mut sender, 0..1);
    fixture.until(|fixture| fixture.got.len() == 1);
    let old = sender.offers[0];
    sender.link = None;
    connect(&mut fixture, &mut sender).unwrap();
    assert_ne!(
        (old.slot_rkey, old.record_rkey),
        (sender.offers[0].slot_rkey, sender.offers[0].record_rkey)
    );
    for key in [old.slot_rkey, old.record_rkey] {
        let before: Vec<u64> = (0..4).map(|slot| fixture.word(slot, 0)).collect();
        let verb = crate::verbs::Verb::write(sender.offers[0].slot_address, key, None);
        sender.post(0, verb, &[(0, 64)], true);
        assert_eq!(sender.await_failure(), crate::verbs::Status::RemoteAccess);
        assert_eq!(
            before,
            (0..4).map(|slot| fixture.word(slot, 0)).collect::<Vec<_>>()
        );
        connect(&mut fixture, &mut sender).unwrap();
    }
}

#[test]
fn stream_continues_and_new_stream_opens_epoch() {
    let (mut fixture, mut sender) = connected(Mode::Write, 2, 4);
    send(&mut fixture, &mut sender, 0..3);
    fixture.until(|fixture| fixture.got.len() == 3);
    // Frames 3 and 4 can no longer be sent.
    sender.link = None;
    sender.hello.first = 5;
    connect(&mut fixture, &mut sender).unwrap();
    assert_eq!(sender.offers[0].next, 5);
    send(&mut fixture, &mut sender, 5..7);
    fixture.until(|fixture| fixture.got.len() == 5);
    sender.link = None;
    let mut other = BaselineSender::new(Mode::Write, Service::Rc, 2, 2);
    other.hello.first = 40;
    fixture.streams.push(2);
    connect_in_place_of_another(&mut fixture, &mut other);
    send(&mut fixture, &mut other, 40..42);
    fixture.until(|fixture| fixture.got.len() == 7);
    let reported: Vec<_> = fixture
        .got
        .iter()
        .map(|got| (got.number, got.missing, got.epoch))
        .collect();
    assert_eq!(
        reported,
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
    // The first sender reconnects, and none of its frames may be reported twice.
    other.link = None;
    fixture.streams.push(1);
    connect_in_place_of_another(&mut fixture, &mut sender);
    assert_eq!(sender.offers[0].next, 7);
}

#[test]
fn second_sender_waits_for_first_to_disconnect() {
    let (mut fixture, mut sender) = connected(Mode::Write, 1, 4);
    let mut other = BaselineSender::new(Mode::Write, Service::Rc, 1, 2);
    let refused = connect(&mut fixture, &mut other).unwrap_err().to_string();
    assert_contains!(refused => "the receiver already receives from");
    send(&mut fixture, &mut sender, 0..3);
    fixture.until(|fixture| fixture.got.len() == 3);
    sender.link.as_mut().unwrap().monitor.close(0);
    connect_in_place_of_another(&mut fixture, &mut other);
}

#[test]
fn sender_detach_is_clean_and_sender_death_is_fault() {
    for parts in [true, false] {
        let (mut fixture, mut sender) = connected(Mode::Write, 1, 4);
        send(&mut fixture, &mut sender, 0..3);
        fixture.until(|fixture| fixture.got.len() == 3);
        if parts {
            sender.link.as_mut().unwrap().monitor.close(0);
        }
        sender.link = None;
        let counted = |fixture: &Fixture| {
            let counters = &fixture.engine.counters;
            (counters.links.get(), counters.ended.get())
        };
        assert_eq!(counted(&fixture), (1, 0));
        fixture.until(|fixture| fixture.engine.link.is_none());
        assert_eq!(counted(&fixture), (1, 1));
        assert_eq!(fixture.faults.iter().sum::<u64>(), u64::from(!parts));
    }
}

#[test]
fn restarted_receiver_continues_with_available_frames() {
    let (mut fixture, mut sender) = connected(Mode::Write, 1, 4);
    send(&mut fixture, &mut sender, 0..7);
    fixture.until(|fixture| fixture.got.len() == 7);
    drop(fixture.engine);
    let waiting = crate::connect::tcp::listener(fixture.address).unwrap();
    let mut other = Fixture::at(waiting, Mode::Write, Service::Rc, 1, 4);
    other.streams.push(1);
    sender.await_failure_of_link();
    sender.hello.first = 7;
    connect(&mut other, &mut sender).unwrap();
    send(&mut other, &mut sender, 7..9);
    other.until(|fixture| fixture.got.len() == 2);
    assert_eq!((other.numbers(), other.got[0].missing), (vec![7, 8], 0));
}

#[test]
fn protocol_violation_ends_link() {
    let bad = |n: u64, change: fn(&mut crate::wire::Record)| {
        let mut record = record(n);
        change(&mut record);
        record
    };
    type Deed =
        fn(&mut BaselineSender, &dyn Fn(u64, fn(&mut crate::wire::Record)) -> crate::wire::Record);
    let deeds: [Deed; 8] = [
        |sender, _| sender.send_record(3, &record(3), Some(low(4))),
        |sender, bad| sender.send_record(3, &bad(3, |record| record.number = 4), Some(3)),
        |sender, bad| {
            sender.send_record(
                3,
                &bad(3, |record| record.length = fixture::SLOT as u64 + 1),
                Some(3),
            );
        },
        |sender, bad| sender.send_record(3, &bad(3, |record| record.length = u64::MAX), Some(3)),
        |sender, bad| {
            sender.send_record(3, &bad(3, |record| record.packets_per_frame += 1), Some(3));
        },
        |sender, bad| sender.send_record(3, &bad(3, |record| record.arrived = 71), Some(3)),
        |sender, _| {
            let offer = sender.offers[0];
            let verb = crate::verbs::Verb::write(offer.slot_address, offer.slot_rkey, Some(3));
            sender.post(0, verb, &[(0, 8)], true);
        },
        |sender, _| {
            let verb = crate::verbs::Verb::Send { immediate: None };
            sender.post(0, verb, &[], true);
        },
    ];
    for deed in deeds {
        let (mut fixture, mut sender) = connected(Mode::Write, 1, 5);
        send(&mut fixture, &mut sender, 0..3);
        deed(&mut sender, &bad);
        fixture.until(|fixture| fixture.fault("bad-record") == 1);
        assert_eq!(fixture.numbers(), [0, 1, 2]);
        // The sender may reconnect and then send valid frames.
        connect(&mut fixture, &mut sender).unwrap();
        assert_eq!(sender.offers[0].next, 3);
        send(&mut fixture, &mut sender, 3..9);
        fixture.until(|fixture| fixture.got.len() == 9);
    }
    let lies: [fn(&mut crate::wire::Record); 3] = [
        |record| record.length += 8,
        |record| record.number += 1,
        |record| record.packets_per_frame = u32::MAX,
    ];
    for lie in lies {
        let (mut fixture, mut sender) = connected(Mode::Send, 1, 5);
        let record = bad(0, lie);
        sender.message(0, &record);
        fixture.until(|fixture| fixture.fault("bad-record") == 1);
        assert!(fixture.got.is_empty());
    }
}

#[test]
fn message_longer_than_slot_is_rejected_by_nic() {
    let (mut fixture, mut sender) = connected(Mode::Send, 1, 5);
    let verb = crate::verbs::Verb::Send { immediate: None };
    let bytes = crate::wire::Record::bytes(fixture::PACKETS_PER_FRAME, 0) + fixture::SLOT + 8;
    sender.post(0, verb, &[(0, bytes)], true);
    fixture.until(|fixture| fixture.fault("local") + fixture.fault("peer-gone") > 0);
    assert_eq!(fixture.fault("local"), 1);
}

#[test]
fn foreign_greetings_are_rejected() {
    let mut fixture = Fixture::new(Mode::Write, Service::Rc, 2, 4);
    let mut sender = BaselineSender::new(Mode::Write, Service::Rc, 2, 1);
    let address = fixture.address;
    let hello = sender.hello;
    let of = |change: fn(&mut crate::wire::Hello)| {
        let greeting = |rail: u8| {
            let mut hello = crate::wire::Hello { rail, ..hello };
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
        (
            of(|hello| hello.packets_per_frame = 71),
            "packets_per_frame",
        ),
        (of(|hello| hello.rails = 3), "3 queue pairs"),
        (of(|hello| hello.stream += u64::from(hello.rail)), "rail 1"),
        (of(|hello| hello.rail = 0), "rail 1"),
    ];
    for (i, (greetings, why)) in foreign.into_iter().enumerate() {
        let refused = fixture
            .meanwhile(|| sender.connect_with(address, &greetings))
            .unwrap_err();
        assert!(refused.to_string().contains(why), "{refused}");
        fixture.until(|fixture| fixture.fault("foreign") == i as u64 + 1);
    }
    let foreign = fixture.fault("foreign");
    sender.hello.slot = fixture::SLOT as u64 + 1;
    let refused = connect(&mut fixture, &mut sender).unwrap_err().to_string();
    assert!(refused.contains("set `slot = "), "{refused}");
    let mut sender = BaselineSender::new(Mode::Write, Service::Rc, 1, 1);
    let refused = connect(&mut fixture, &mut sender).unwrap_err().to_string();
    assert!(refused.contains("this sink has 1 queue pair:"), "{refused}");
    fixture.until(|fixture| fixture.fault("foreign") == foreign + 1);
}

#[test]
fn after_quiesce_nothing_is_written() {
    for (mode, rails) in KINDS {
        let (mut fixture, mut sender) = connected(mode, rails, 6);
        send(&mut fixture, &mut sender, 0..4);
        fixture.until(|fixture| fixture.got.len() == 4);
        fixture.gives = false;
        // Frames in flight: some are complete and some are not, and none was reported yet.
        (4..10).for_each(|n| sender.send(n));
        fixture.engine.quiesce(Duration::from_mins(1)).unwrap();
        let words: Vec<u64> = (0..6).map(|slot| fixture.word(slot, 1)).collect();
        sender.send(10);
        sender.await_failure();
        while fixture.pump() > 0 {}
        assert_eq!(
            words,
            (0..6).map(|slot| fixture.word(slot, 1)).collect::<Vec<_>>()
        );
        let known = fixture.got.len() as u64;
        assert!((4..=10).contains(&known));
        assert_eq!(fixture.numbers(), (0..known).collect::<Vec<_>>());
        // No connector gets an answer until the receiver is armed again. Then the remaining frames arrive.
        fixture.gives = true;
        fixture.arm(3);
        connect(&mut fixture, &mut sender).unwrap();
        assert_eq!(sender.offers[0].next, known);
        send(&mut fixture, &mut sender, known..20);
        fixture.until(|fixture| fixture.got.len() == 20);
        assert_eq!(fixture.numbers(), (0..20).collect::<Vec<_>>());
    }
}

/// An action on a sender, a receiver or their connection.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Sends this number of frames, limited by the credits.
    Send(u64),
    /// Polls this number of times.
    Poll(u8),
    /// Sends a payload without its record, and then interrupts the connection.
    Tear,
    /// Interrupts the connection.
    Break,
    /// Stops the receiver, and arms it again with this first slot.
    Quiesce(u8),
    /// Limits the receiver to this number of frames per poll.
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

    /// After any fault at any time, every frame must be reported exactly once, in order and with its own contents.
    #[test]
    fn every_frame_is_delivered_once(acts in acts(), kind in 0..KINDS.len()) {
        let (mode, rails) = KINDS[kind];
        let (mut fixture, mut sender) = connected(mode, rails, 5);
        let mut next = 0;
        for act in acts {
            if sender.link.is_none() {
                connect(&mut fixture, &mut sender).unwrap();
                next = sender.offers[0].next;
            }
            match act {
                Act::Send(frames) => {
                    for _ in 0..frames {
                        if next < sender.credits() {
                            sender.send(next);
                            next += 1;
                        }
                        fixture.pump();
                    }
                }
                Act::Poll(times) => {
                    for _ in 0..times {
                        fixture.pump();
                    }
                }
                Act::Tear => {
                    if mode == Mode::Write && next < sender.credits() {
                        sender.payload(next, false);
                    }
                    sender.link = None;
                }
                Act::Break => sender.link = None,
                Act::Quiesce(first) => {
                    fixture.engine.quiesce(Duration::from_mins(1)).unwrap();
                    while fixture.pump() > 0 {}
                    fixture.arm(first.into());
                    sender.link = None;
                }
                Act::Take(max) => fixture.max = max.into(),
            }
        }
        if sender.link.is_none() {
            connect(&mut fixture, &mut sender).unwrap();
            next = sender.offers[0].next;
        }
        send(&mut fixture, &mut sender, next..next + 7);
        let all = next + 7;
        fixture.until(|fixture| fixture.got.len() as u64 >= all);
        proptest::prop_assert_eq!(fixture.numbers(), (0..all).collect::<Vec<_>>());
        proptest::prop_assert!(fixture.got.iter().all(|got| got.missing == 0 && got.epoch == 1));
        proptest::prop_assert_eq!(fixture.fault("bad-record") + fixture.fault("beyond-credit"), 0);
    }
}
