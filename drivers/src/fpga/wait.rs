//! Waits for a device.

use std::time::{Duration, Instant};

/// Polls `holds` until it returns true or `timeout` has passed. Polls at least once, and once after the timeout.
pub fn wait_until(timeout: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    let mut pause = Duration::from_micros(1);
    loop {
        let is_over = start.elapsed() >= timeout;
        if holds() {
            return true;
        }
        if is_over {
            return false;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
}

/// Time after which a wait of a start is logged.
const SLOW_WAIT: Duration = Duration::from_secs(5);

/// Logs once that a start waits for long.
#[derive(Debug)]
pub struct SlowWait {
    since: Instant,
    is_logged: bool,
}

impl SlowWait {
    /// Begins to measure the wait.
    pub fn start() -> Self {
        Self {
            since: Instant::now(),
            is_logged: false,
        }
    }

    /// Logs what the start waits for, if it has waited for long.
    pub fn log(&mut self, what: impl FnOnce() -> String) {
        if !self.is_logged && self.since.elapsed() >= SLOW_WAIT {
            self.is_logged = true;
            tracing::info!("waiting for {}", what());
        }
    }
}
