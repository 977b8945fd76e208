//! Waiting for the progress of other threads.

use crate::sync::spin_hint;
use rustix::thread::futex;
use rustix::time::Timespec;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

/// How a thread waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Wait {
    /// Poll continuously: lowest latency, occupies one core.
    Busy,
    /// Poll for a few microseconds, then sleep until woken.
    #[default]
    Adaptive,
    /// Sleep immediately until notified.
    Event,
}

impl Wait {
    /// Returns how long this policy polls before it sleeps; `None` means without limit.
    const fn spin(self) -> Option<Duration> {
        match self {
            Self::Busy => None,
            Self::Adaptive => Some(Duration::from_micros(20)),
            Self::Event => Some(Duration::ZERO),
        }
    }
}

/// Wakes sleeping threads, with a futex eventcount.
///
/// If no thread sleeps, a notification costs only a fence and a load.
#[derive(Debug, Default)]
pub struct Notifier {
    sleepers: AtomicU32,
    word: AtomicU32,
}

impl Notifier {
    /// Wakes all threads that sleep in [`Notifier::wait`]. Call this function after the change that the threads wait
    /// for.
    #[inline]
    pub fn notify(&self) {
        Self::notify_all([self]);
    }

    /// Notifies several notifiers with a single fence. The fence also waits for the CPU's stores to a GPU.
    #[inline]
    pub fn notify_all<'a>(notifiers: impl IntoIterator<Item = &'a Self>) {
        // Pairs with the fence in `sleep`: either a load after this fence sees the sleeper, or the sleeper's check of
        // its condition sees the change.
        fence(Ordering::SeqCst);
        for notifier in notifiers {
            notifier.wake();
        }
    }

    #[inline]
    fn wake(&self) {
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            self.word.fetch_add(1, Ordering::Release);
            let _ = futex::wake(&self.word, futex::Flags::PRIVATE, i32::MAX.cast_unsigned());
        }
    }

    /// Waits until `ready` returns true or about `limit` has passed; returns whether `ready` returned true.
    pub fn wait(&self, policy: Wait, limit: Duration, ready: impl FnMut() -> bool) -> bool {
        self.wait_polling(policy, limit, limit, ready)
    }

    /// Waits as [`wait`](Self::wait) does, for a condition that may become true without a notification. A sleeping
    /// thread checks the condition every `look`.
    pub fn wait_polling(
        &self,
        policy: Wait,
        look: Duration,
        limit: Duration,
        mut ready: impl FnMut() -> bool,
    ) -> bool {
        if ready() {
            return true;
        }
        let start = Instant::now();
        loop {
            for _ in 0..64 {
                spin_hint();
                if ready() {
                    return true;
                }
            }
            let waited = start.elapsed();
            if waited >= limit {
                return false;
            }
            if policy.spin().is_some_and(|spin| waited >= spin)
                && self.sleep(look.min(limit.saturating_sub(waited)), &mut ready)
            {
                return true;
            }
        }
    }

    /// Sleeps without polling until notified or about `limit` has passed; then returns the result of `ready`.
    pub fn sleep(&self, limit: Duration, ready: &mut impl FnMut() -> bool) -> bool {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let word = self.word.load(Ordering::Acquire);
        let mut is_ready = ready();
        if !is_ready {
            let limit = Timespec::try_from(limit).unwrap_or(Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            });
            let _ = futex::wait(&self.word, futex::Flags::PRIVATE, word, Some(&limit));
            is_ready = ready();
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        is_ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn waiter_is_woken_under_every_policy() {
        for policy in [Wait::Busy, Wait::Adaptive, Wait::Event] {
            let notifier = Arc::new((Notifier::default(), AtomicBool::new(false)));
            let ringer = notifier.clone();
            let thread = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(5));
                ringer.1.store(true, Ordering::Release);
                ringer.0.notify();
            });
            assert!(notifier.0.wait(policy, Duration::from_secs(30), || {
                notifier.1.load(Ordering::Acquire)
            }));
            thread.join().unwrap();
        }
    }

    #[test]
    fn polled_condition_without_notification_is_detected() {
        for policy in [Wait::Busy, Wait::Adaptive, Wait::Event] {
            let mut looks = 0;
            let look = Duration::from_micros(10);
            assert!(Notifier::default().wait_polling(
                policy,
                look,
                Duration::from_secs(30),
                || {
                    looks += 1;
                    looks == 1000
                }
            ));
        }
    }

    #[test]
    fn wait_ends_at_timeout() {
        for policy in [Wait::Busy, Wait::Adaptive, Wait::Event] {
            assert!(!Notifier::default().wait(policy, Duration::from_millis(2), || false));
        }
    }
}
