//! NVIDIA GPUs through the CUDA driver, which is loaded at run time: devices, their memory, streams, events and
//! device code.
//!
//! ```text
//!   Device ◀── Memory, Registration, Stream ◀── Event
//!      ▲────── Module ◀── Function          an arrow points to the object that is kept alive
//! ```
//! On a machine without the driver, no device is found and [`probe`] returns the reason. No function panics.

mod arguments;
mod compile;
mod device;
mod error;
mod external;
mod graph;
mod image;
mod memory;
mod module;
mod persistent;
mod probe;
mod stream;

pub use arguments::Argument;
pub use compile::{CompileError, Compiler, Source, Target};
pub use device::{Attributes, Device, Identity, PeerLink};
pub use error::CudaError;
pub(crate) use external::External;
pub use graph::Graph;
pub use memory::{Backing, DmaBufError, Memory, Registered};
pub use module::{Function, Grid, Module};
pub use persistent::PersistentKernelGuard;
pub use probe::{Found, NoCuda, probe};
pub use stream::{Block, Pitch, Rows, Stream, StreamEvent};
