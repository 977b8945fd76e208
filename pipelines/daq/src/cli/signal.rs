//! Signals that end a run.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Signals that end a run. Their handlers only store to atomic variables. The first signal requests a stop. A second
/// SIGINT or SIGTERM exits immediately, even if threads are blocked.
pub(super) struct Signal {
    came: Arc<AtomicUsize>,
}

impl Signal {
    /// Begins to handle the signals.
    pub(super) fn listen() -> std::io::Result<Self> {
        // With a handler, a file that reaches `ulimit -f` causes a write error instead of ending the process.
        flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
        let came = Arc::new(AtomicUsize::new(0));
        let again = Arc::new(AtomicBool::new(false));
        for (signal, number) in [(SIGINT, 2), (SIGTERM, 15), (SIGHUP, 1)] {
            // Under `nohup`, the run continues after SIGHUP. A closing terminal can send SIGHUP twice, and a service
            // manager can send SIGTERM after SIGHUP. So SIGHUP does not exit immediately, and the signal after SIGHUP
            // does not either.
            if signal == SIGHUP {
                if crate::sys::signal::is_ignored(SIGHUP) {
                    continue;
                }
            } else {
                // Register this handler first, so that it runs before the flag is set.
                flag::register_conditional_shutdown(signal, 128 + signal, again.clone())?;
                flag::register(signal, again.clone())?;
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
