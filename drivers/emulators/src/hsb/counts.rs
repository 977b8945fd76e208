//! The counters of a board.

use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of stored descriptions of host mistakes.
const MAX_MISTAKES: usize = 16;

/// The counters of a board.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Number of valid control requests.
    pub requests: u64,
    /// Number of replies that were sent.
    pub replies: u64,
    /// Number of requests that were answered with an error status.
    pub refused: u64,
    /// Number of datagrams at the control port that are not valid requests.
    pub malformed: u64,
    /// Number of requests that arrived before the reply to the previous request was sent.
    pub overlapped: u64,
    /// Number of replies that a fault suppressed or changed.
    pub ecb_faults: u64,
    /// Number of restarts of the board.
    pub reboots: u64,
    /// Number of announcements that were sent.
    pub announcements: u64,
    /// Number of register writes of the host in the wrong order.
    pub order_errors: u64,
    /// Number of writes to registers of an armed sensor. Each write is also counted as an order error.
    pub changed_while_armed: u64,
    /// Descriptions of the host's first mistakes.
    pub mistakes: Vec<String>,
    /// The counters of each sensor.
    pub sensors: Vec<SensorCounts>,
}

/// The counters of a sensor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SensorCounts {
    /// Number of times that the sensor was armed.
    pub arms: u64,
    /// Number of times that the sensor was disarmed.
    pub disarms: u64,
    /// Number of frames that were sent completely.
    pub frames: u64,
    /// Number of frames that were truncated because the sensor was disarmed.
    pub cut: u64,
    /// Number of packet sequence numbers that were used.
    pub numbers: u64,
    /// Number of packets that were sent, including duplicates and damaged packets.
    pub packets: u64,
    /// Number of payload bytes of frames in the sent packets.
    pub bytes: u64,
    /// Number of packets that a fault suppressed.
    pub dropped: u64,
    /// Number of packets that a fault delayed.
    pub late: u64,
    /// Number of packets sent twice because of an injected fault.
    pub duplicates: u64,
    /// Number of packets that a fault damaged.
    pub damaged: u64,
    /// Number of restarts of the packet sequence numbers.
    pub restarts: u64,
    /// Number of times that a fault silenced the sensor.
    pub silences: u64,
    /// Number of packets that the operating system or the NIC failed to send.
    pub send_errors: u64,
}

/// The counters and the control flags of a running board.
#[derive(Debug)]
pub(super) struct Shared {
    counts: Mutex<Counts>,
    /// True if a restart was requested.
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

    /// Requests a restart of the board.
    pub(super) fn reboot(&self) {
        self.reboots.store(true, Ordering::Release);
    }

    /// Returns true if a restart was requested, and clears the request.
    pub(super) fn takes_reboot(&self) -> bool {
        self.reboots.swap(false, Ordering::AcqRel)
    }

    pub(super) fn counts(&self) -> Counts {
        self.lock().clone()
    }

    /// Locks the counts, which are valid even if a thread panicked while it held the lock.
    pub(super) fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the counters of a sensor.
    pub(super) fn sensor(&self, sensor: usize, count: impl FnOnce(&mut SensorCounts)) {
        if let Some(counts) = self.lock().sensors.get_mut(sensor) {
            count(counts);
        }
    }

    /// Counts a mistake of the host and stores its description.
    pub(super) fn mistake(&self, what: String) {
        let mut counts = self.lock();
        counts.order_errors += 1;
        if counts.mistakes.len() < MAX_MISTAKES {
            counts.mistakes.push(what);
        }
    }
}
