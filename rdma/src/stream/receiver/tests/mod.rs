//! The receiving end against a bare sender.
#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

mod rig;

use super::*;
use rig::{Bare, Rig, low, record};

const KINDS: [(Mode, usize); 4] = [(Mode::Write, 1), (Mode::Write, 3), (Mode::Send, 1), (Mode::Send, 3)];

/// A rig that a sender is connected with.
fn connected(mode: Mode, rails: usize, slots: usize) -> (Rig, Bare) {
    let mut rig = Rig::new(mode, Service::Rc, rails, slots);
    let mut bare = Bare::new(mode, Service::Rc, rails, 1);
    rig.streams.push(1);
    dial(&mut rig, &mut bare).unwrap();
    (rig, bare)
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
fn frames_come_in_order_over_all_rails() {
    for (mode, rails) in KINDS {
        let (mut rig, mut bare) = connected(mode, rails, 5);
        send(&mut rig, &mut bare, 0..100);
        rig.until(|rig| rig.got.len() == 100);
        assert_eq!(rig.numbers(), (0..100).collect::<Vec<_>>());
        assert!(rig.got.iter().all(|got| (got.missing, got.passed, got.epoch) == (0, 0, 1)));
        assert_eq!(rig.faults.iter().sum::<u64>(), 0);
    }
}
