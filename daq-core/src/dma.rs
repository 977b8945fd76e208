//! DMA: devices that write to memory without the CPU, and the control over when a device may write.
//!
//! ```text
//!   Region ──▶ DmaMap ──▶ Running ──quiesced──▶ Stopped ──▶ DmaMap ──▶ Region freed
//!              mapped for   the engine may         nothing is      unmapped
//!              the device   write its slots        in flight
//! ```
//! An [`Engine`] gets the addresses of all slots once, yields completions, accepts credits and reports whether it
//! supports backpressure. It belongs to a [`DmaDevice`], which makes memory accessible for it and can be reset.
//!
//! # Guarantees
//! - Memory that an engine was armed with is unmapped only after the engine has stopped, and freed only after it is
//!   unmapped. [`Running`] owns the map and returns it only from [`Running::stop`]. It also keeps the map of a doorbell
//!   until then.
//! - If an engine does not stop in time, its device is reset (bus mastering off, then a reset) before anything is
//!   unmapped. If that fails too, the engine and all its memory are leaked until the process ends.
//!
//! The memory that an engine writes cannot be dropped while it is armed:
//!
//! ```compile_fail,E0382
//! use daq_core::dma::{DmaMap, Engine, SlotLayout, Stopped};
//! fn free_under_it(engine: Box<dyn Engine>, memory: DmaMap, layout: SlotLayout) {
//!     let running = Stopped::new(engine, memory).start(layout, 0, None);
//!     drop(memory);
//! }
//! ```
//! ```compile_fail,E0505
//! use daq_core::dma::Running;
//! fn stop_while_polled(running: Running) {
//!     let engine = running.caps();
//!     let map = running.memory();
//!     running.stop(std::time::Duration::ZERO);
//!     map.address();
//! }
//! ```

mod bounce_copy;
mod buffer;
mod device;
mod engine;
mod host;
mod running;
mod sentinel;
mod sequence;

pub use crate::sys::guard::{Guard, GuardError};
pub use bounce_copy::{BounceCopy, BounceCopyError};
pub use buffer::DmaBuffer;
pub use device::{DmaDevice, DmaError, DmaMap};
pub use engine::{
    ArmError, Caps, CompletionOrder, Completions, Done, Engine, EngineError, EngineInfo, Origin,
    QuiesceTimeout, SlotLayout, SlotLimits, Slots, StopCheck,
};
pub use host::{HostMemory, SlotWriter};
pub use running::{Refused, Running, Stopped};
pub use sentinel::{Seen, Sentinel};
pub use sequence::{FrameSequence, Step};
