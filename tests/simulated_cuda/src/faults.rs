//! Counts operations and injects faults.

use crate::code::{Code, Result};
use crate::options::{Failure, Options};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The options of this process.
///
/// Panics if the options are invalid, because a test must not run with a different configuration than it requested.
pub static OPTIONS: LazyLock<Options> = LazyLock::new(|| {
    let text = std::env::var("DAQ_SIMULATED_CUDA").unwrap_or_default();
    Options::parse(&text).unwrap_or_else(|error| panic!("{error}"))
});

/// Counter of the started operations of one kind.
#[derive(Debug)]
pub struct Executed {
    what: &'static str,
    count: AtomicU64,
}

/// Copies started by streams.
pub static COPIES: Executed = Executed::new("copy");
/// Copies between two devices started by streams.
pub static PEER_COPIES: Executed = Executed::new("peer");
/// Launches started by streams.
pub static LAUNCHES: Executed = Executed::new("launch");
/// Frames started by persistent kernels.
pub static PERSISTENT: Executed = Executed::new("persistent");

/// The outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The operation completes.
    Done,
    /// The operation breaks its context with this error code.
    Fails(Code),
    /// The operation never ends.
    Hangs,
    /// The operation completes, but writes wrong bytes.
    Corrupts,
}

impl Outcome {
    /// Returns the error of an operation that fails. Does not return if the operation hangs.
    pub fn enact(self) -> Result {
        match self {
            Self::Done | Self::Corrupts => Ok(()),
            Self::Fails(code) => Err(code),
            Self::Hangs => loop {
                std::thread::park();
            },
        }
    }
}

impl Executed {
    const fn new(what: &'static str) -> Self {
        Self {
            what,
            count: AtomicU64::new(0),
        }
    }

    /// Counts a new operation and returns its outcome.
    pub fn begin(&self) -> Outcome {
        let nth = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if find(&OPTIONS.hang, self.what, nth).is_some() {
            Outcome::Hangs
        } else if find(&OPTIONS.corrupt, self.what, nth).is_some() {
            Outcome::Corrupts
        } else {
            find(&OPTIONS.fail_async, self.what, nth).map_or(Outcome::Done, Outcome::Fails)
        }
    }

    /// Returns the number of started operations.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

/// Returns the code that the `nth` call of `symbol` must return instead of running.
pub fn of_call(symbol: &str, nth: u64) -> Option<Code> {
    find(&OPTIONS.fail, symbol, nth)
}

fn find(failures: &[Failure], what: &str, nth: u64) -> Option<Code> {
    failures
        .iter()
        .find(|failure| failure.what == what && failure.nth == nth)
        .map(|failure| failure.code)
}
