//! The time since the last packet arrived.

use crate::reorder::shared::Shared;
use crate::sync::Ordering;
use std::time::{Duration, Instant};

/// Maximum length of a period, equal to the longest wait of a source. A thread that was delayed for longer has not polled its socket
/// meanwhile.
const MAX_PERIOD: Duration = Duration::from_millis(50);

/// The time since the last packet arrived.
///
/// It contains only periods after which every thread has polled for packets. Packets may wait in the socket of a thread that a busy
/// machine delays, also when it has just been woken.
#[derive(Debug)]
pub(super) struct Silence {
    /// The horizon and the number of arrived packets at the last tick.
    pub(super) horizon: u64,
    arrived: u64,
    /// The time since then.
    pub(super) length: Duration,
    /// The beginning of the current period.
    last: Option<Instant>,
    /// Length of the period before, which counts once every thread has polled again.
    newest: Duration,
    /// Number of polls of each thread when the current period began.
    rounds: Box<[u64]>,
}

impl Silence {
    pub(super) fn new(writers: usize) -> Self {
        Self {
            horizon: 0,
            arrived: 0,
            length: Duration::ZERO,
            last: None,
            newest: Duration::ZERO,
            rounds: vec![0; writers].into(),
        }
    }

    /// Returns for how long no packet has arrived, or `None` if some have arrived since the last call. `writer` is the thread that
    /// calls.
    pub(super) fn measure(
        &mut self,
        shared: &Shared,
        writer: usize,
        now: Instant,
    ) -> Option<Duration> {
        let horizon = shared.horizon.load(Ordering::Acquire);
        let arrived = shared.arrived.load(Ordering::Acquire);
        if (self.horizon, self.arrived) == (horizon, arrived) {
            if self.have_polled(shared, writer) {
                let last = self.begin_period(shared, now);
                let period = now.saturating_duration_since(last).min(MAX_PERIOD);
                self.length += std::mem::replace(&mut self.newest, period);
            }
            return Some(self.length);
        }
        if self.length >= shared.geometry.close_after {
            shared.silent.store(u64::MAX, Ordering::Release);
            shared.paused.store(u64::MAX, Ordering::Release);
        }
        self.begin_period(shared, now);
        (self.horizon, self.arrived) = (horizon, arrived);
        (self.length, self.newest) = (Duration::ZERO, Duration::ZERO);
        None
    }

    /// Returns whether every other thread has polled since the current period began.
    fn have_polled(&self, shared: &Shared, writer: usize) -> bool {
        let mut rounds = self.rounds.iter().zip(&shared.rounds).enumerate();
        cfg!(loom)
            || rounds.all(|(other, (noted, rounds))| {
                other == writer || rounds.load(Ordering::Acquire) != *noted
            })
    }

    /// Begins a period. Returns when the last one began.
    fn begin_period(&mut self, shared: &Shared, now: Instant) -> Instant {
        for (noted, rounds) in self.rounds.iter_mut().zip(&shared.rounds) {
            *noted = rounds.load(Ordering::Acquire);
        }
        self.last.replace(now).unwrap_or(now)
    }
}
