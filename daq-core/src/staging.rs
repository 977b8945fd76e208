//! Staging: copies between rings in host memory and rings on GPUs, and between rings on different GPUs.
//!
//! ```text
//!   raw@host ──ring copy──▶┐                   ┌──▶ raw      one copy engine thread per pair of memories (route):
//!   aux@host ──ring copy──▶┤  thread, stream   ├──▶ aux      one stream, its ring copies in turn
//! ```
//! All frames that are ready are copied together, up to the size of a *chunk*. A few copies are in flight at a time. At
//! low load, each copy contains one frame, which gives the lowest latency. At high load, further frames accumulate
//! while copies are in flight, so the copies grow until the bus is saturated. While two copies are in flight, only
//! whole chunks are started. Ring copies take turns with at most one chunk each. A ring copy therefore
//! waits for at most one chunk of every other ring copy.
//!
//! If the CPU can write the target ring, small bursts bypass the copy engine. If a ring copy has no copy in flight, the
//! thread stores bursts up to the measured *CPU-store threshold* with the CPU and publishes them at once. An
//! [inline](RingCopy::inline) ring copy always copies with the CPU. It has no thread; the thread that needs the frames
//! calls it.
//!
//! Every copy is done by a [`CopyMethod`].
//!
//! # Guarantees
//! - A frame is published in the target after its bytes and metadata are complete. Each frame is published once, in the
//!   order of the source.
//! - A slot of the source is freed after its copy is done.
//! - started = frames + failed + pending, in every [`CopyLedger`](crate::ledger::CopyLedger) at any moment.
//! - After a failure, no copy in flight is published, and all its frames are counted.
//! - After startup, no function of this module allocates memory or takes a lock; the CUDA driver may do so.

mod baseline;
mod burst;
mod busy;
mod copy_engine;
mod direction;
mod error;
mod gather;
mod measure;
mod methods;
mod numa;
mod profile;
mod ring_copy;
mod route;
mod selection;
mod store_methods;
#[cfg(test)]
mod tests;
mod tile;

pub use baseline::{BATCH, BaselineCopy};
pub use copy_engine::{CopyEngineThread, CopyThread, Step, Tuning};
pub use direction::Direction;
pub use error::StagingError;
pub use gather::{Gather, Joins, MissingFill, Share};
pub use measure::{MeasureError, measure, measure_peer, measure_with, verify_peer};
pub use methods::{CopyMethod, CopyStream, Division, StreamPath, between, on_stream};
pub use numa::warn_if_remote_numa;
pub(crate) use profile::DEFAULT_CPU_STORE_THRESHOLD;
pub use profile::{Basis, Profile, Profiles, ProfilesError, Rates, Sending};
pub use ring_copy::{Overflow, RingCopy};
pub use route::Route;
pub use selection::Selection;
pub use store_methods::{RawStores, StoreMethod};
pub use tile::{Matrix, Tile};
