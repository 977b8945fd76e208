//! What a board has seen and done.

use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many sentences about a host's mistakes are kept.
const MAX_MISTAKES: usize = 16;

/// What a board has seen and done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Control requests that could be read.
    pub requests: u64,
    /// Replies that were sent.
    pub replies: u64,
    /// Requests that were answered with a status other than success.
    pub refused: u64,
    /// Datagrams at the control port that are no requests.
    pub malformed: u64,
    /// Requests that came before the one before had its reply.
    pub overlapped: u64,
    /// Replies that a fault kept back or changed.
    pub ecb_faults: u64,
    /// Times that the board restarted.
    pub reboots: u64,
    /// Announcements that were sent.
    pub announcements: u64,
    /// Mistakes of the host in the order of register writes.
    pub order_errors: u64,
    /// Registers of a sensor that were written while it was armed; each is an order error as well.
    pub changed_while_armed: u64,
    /// The first of the mistakes, in words.
    pub mistakes: Vec<String>,
    /// Each sensor.
    pub sensors: Vec<SensorCounts>,
}

/// What a sensor has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SensorCounts {
    /// How often it was armed.
    pub arms: u64,
    /// How often it was disarmed.
    pub disarms: u64,
    /// Frames that were sent to their end.
    pub frames: u64,
    /// Frames that disarming cut short.
    pub cut: u64,
    /// Packet sequence numbers that were used.
    pub numbers: u64,
    /// Packets that were sent, duplicates and damaged ones with them.
    pub packets: u64,
    /// Bytes of frames in these packets.
    pub bytes: u64,
    /// Packets that a fault kept back.
    pub dropped: u64,
    /// Packets that a fault sent later than their turn.
    pub late: u64,
    /// Packets that a fault sent once more.
    pub duplicates: u64,
    /// Packets that a fault damaged.
    pub damaged: u64,
    /// Number of restarts of the packet sequence numbers.
    pub restarts: u64,
    /// Times it fell silent.
    pub silences: u64,
    /// Packets that the system did not take.
    pub send_errors: u64,
}

/// The counts of a running board.
#[derive(Debug)]
pub(super) struct Shared {
    counts: Mutex<Counts>,
    /// Whether the board is to restart.
    reboots: AtomicBool,
}

impl Shared {
    pub(super) fn new(sensors: usize) -> Self {
        Self {
            counts: Mutex::new(Counts {
                sensors: vec![SensorCounts::default(); sensors],
                ..Counts::default()
            }),
            reboots: AtomicBool::new(false),
        }
    }

    /// Has the board restart.
    pub(super) fn reboot(&self) {
        self.reboots.store(true, Ordering::Release);
    }

    /// Whether the board is to restart; true once.
    pub(super) fn takes_reboot(&self) -> bool {
        self.reboots.swap(false, Ordering::AcqRel)
    }

    pub(super) fn counts(&self) -> Counts {
        self.lock().clone()
    }

    /// The counts are valid even if a thread panicked while it held the lock.
    pub(super) fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts something of a sensor.
    pub(super) fn sensor(&self, sensor: usize, count: impl FnOnce(&mut SensorCounts)) {
        if let Some(counts) = self.lock().sensors.get_mut(sensor) {
            count(counts);
        }
    }

    /// Counts a mistake of the host.
    pub(super) fn mistake(&self, what: String) {
        let mut counts = self.lock();
        counts.order_errors += 1;
        if counts.mistakes.len() < MAX_MISTAKES {
            counts.mistakes.push(what);
        }
    }
}
