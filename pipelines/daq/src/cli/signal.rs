//! Signals that end a run.

use crate::sys::signal::{exit_on_repeat, is_ignored};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Signals that end a run. The first signal requests a stop. A later SIGINT or SIGTERM exits immediately, even if threads are
/// blocked.
pub(super) struct Signal {
    came: Arc<AtomicUsize>,
}

impl Signal {
    /// Begins to handle the signals.
    pub(super) fn listen() -> std::io::Result<Self> {
        // With a handler, a file that reaches `ulimit -f` causes a write error instead of ending the process.
        flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
        let came = Arc::new(AtomicUsize::new(0));
        let first = Arc::new(AtomicU64::new(0));
        for (signal, number) in [(SIGINT, 2), (SIGTERM, 15), (SIGHUP, 1)] {
            // Under `nohup`, the run continues after SIGHUP. A closing terminal can send SIGHUP twice, and a service
            // manager can send SIGTERM after SIGHUP. So SIGHUP does not exit immediately, and the signal after SIGHUP
            // does not either.
            if signal == SIGHUP {
                if is_ignored(SIGHUP) {
                    continue;
                }
            } else {
                exit_on_repeat(signal, first.clone())?;
            }
            flag::register_usize(signal, came.clone(), number)?;
        }
        Ok(Self { came })
    }

    /// Returns the name of the received signal.
    pub(super) fn came(&self) -> Option<&'static str> {
        match self.came.load(Ordering::Acquire) {
            0 => None,
            1 => Some("SIGHUP"),
            2 => Some("SIGINT"),
            _ => Some("SIGTERM"),
        }
    }
}
