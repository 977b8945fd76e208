//! Staging: copies between rings in host memory and rings on a GPU.
//!
//! ```text
//!   raw@host ──ring copy──▶┐                   ┌──▶ raw      one copy engine thread per GPU and direction:
//!   aux@host ──ring copy──▶┤  thread, stream   ├──▶ aux      one stream, its ring copies in turn
//! ```
//! All frames that are ready are copied together, up to a *chunk*; a few copies are in flight at a time. At low load
//! a copy is one frame, with the lowest latency. At high load the copies in flight keep the stream busy while further
//! frames accumulate (with two in flight only whole chunks follow), so the copies grow until the bus is saturated.
//! Ring copies take turns, with at most one chunk each, so that none waits longer than the chunks of the others take.
//!
//! If the CPU can write the target ring, small bursts bypass the copy engine: a ring copy with nothing in flight
//! stores them itself, up to the measured *CPU-store threshold*, and publishes them at once. An [`InlineCopy`] is
//! such a copy without a thread, for a thread that needs its frames without a hand-over.
//!
//! # Guarantees
//! - A frame is published in the target once its bytes and metadata are complete, in the source's order, each once.
//! - A slot of the source is freed once its copy is done.
//! - started = frames + failed + pending, in every [`CopyLedger`](crate::ledger::CopyLedger) at any moment.
//! - After a failure no copy in flight is published, and all its frames are counted.
//! - After startup no call here allocates or locks; calls of the driver may.

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
