//! Staging: copies between rings in host memory and rings on a GPU.
//!
//! ```text
//!   raw@host ──ring copy──▶┐                      ┌──▶ raw          one copy engine thread a GPU and direction:
//!   aux@host ──ring copy──▶┤  copy engine thread, its stream  ├──▶ aux          one thread, one stream, its ring copies in turn
//! ```
//! All frames that are ready go in one copy, up to a *chunk*; a few copies are in flight at a time. At low load that
//! is one frame with the least latency. At high load the copies under way keep the stream busy while frames gather
//! behind them (with two under way only whole chunks follow), so the copies grow by themselves until the bus is full.
//! Lanes take turns, one chunk at most each, so that none waits longer than the others' chunks take.
//!
//! Where the CPU can store to the target ring, small bursts go without the copy engine: a ring copy that has nothing under
//! way stores them itself up to the measured *cut-over*, and publishes them at once. A [`InlineCopy`] is such a ring copy
//! without a thread, for one that needs its frames without a hand-over.
//!
//! # Guarantees
//! - A frame is published in the target once its bytes and record are there, in the source's order, each once.
//! - A slot of the source is freed once its copy is done.
//! - taken = frames + failed + pending, in every [`CopyLedger`](crate::ledger::CopyLedger) at any moment.
//! - After a failure nothing that was under way is published, and every frame of it is counted.
//! - After the start no call here allocates or locks; the driver's own calls may.

mod baseline;
mod copy_engine;
mod direction;
mod error;
mod inline_copy;
mod measure;
mod numa;
mod profile;
mod ring_copy;
mod store_methods;
mod target;
#[cfg(test)]
mod tests;

pub use baseline::{BATCH, BaselineCopy};
pub use copy_engine::{CopyBackend, CopyEngineThread, CopyStream, Step, Tuning};
pub use direction::Direction;
pub use error::StagingError;
pub use inline_copy::InlineCopy;
pub use measure::{MeasureError, measure, measure_with};
pub use numa::warn_if_remote_numa;
pub use profile::{Basis, DEFAULT_CPU_STORE_THRESHOLD, Profile, Profiles, Rates, Sending};
pub use ring_copy::RingCopy;
pub use store_methods::{RawStores, StoreMethod};
