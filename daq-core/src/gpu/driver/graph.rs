//! Work that is recorded once and then submitted to a stream as a unit, any number of times.

use super::device::Device;
use super::error::{CudaError, Doing};
use super::module::Module;
use super::stream::Stream;
use crate::sys::cuda::{self, Code, RawGraph, RawRecording};
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

impl Stream {
    /// Records what `work` submits to the stream, without executing it, so that it can be submitted as a unit any
    /// number of times.
    ///
    /// Everything recorded must outlive the graph and the last work that it was [replayed](Self::replay) in: the
    /// memory of kernels, copies and fills, as each of them requires, and the modules of the kernels. The graph keeps
    /// the modules in `keep` alive.
    pub fn record(
        &self,
        keep: Vec<Arc<Module>>,
        work: impl FnOnce(&Self) -> Result<(), CudaError>,
    ) -> Result<Graph, CudaError> {
        let what = || self.what("recording work");
        self.device().enter()?;
        // SAFETY: the stream lives as long as `self`; the driver refuses a nested recording.
        unsafe { cuda::begin_capture(self.raw()) }.doing(what)?;
        let open = Open(self);
        work(self)?;
        let recording = open.end().doing(what)?;
        // SAFETY: the recording is alive.
        let raw = unsafe { cuda::instantiate(recording.raw) }.doing(what)?;
        Ok(Graph {
            device: self.device(),
            raw,
            _keep: keep,
        })
    }

    /// Submits recorded work to the stream.
    pub fn replay(&self, graph: &Graph) -> Result<(), CudaError> {
        self.device().enter()?;
        // SAFETY: graph and stream are alive. What the graph accesses was given to it in `record` under the contracts
        // of each launch and copy, which last as long as the graph.
        unsafe { cuda::launch_graph(graph.raw, self.raw()) }
            .doing(|| self.what("launching a graph"))
    }
}

/// A recording in progress; it ends even if recording fails.
struct Open<'a>(&'a Stream);

impl<'a> Open<'a> {
    fn end(self) -> Result<Recording, Code> {
        let stream = ManuallyDrop::new(self).0;
        Self::ended(stream)
    }

    fn ended(stream: &'a Stream) -> Result<Recording, Code> {
        // SAFETY: creating an `Open` began to record, and this is called once for each.
        let raw = unsafe { cuda::end_capture(stream.raw()) }?;
        Ok(Recording {
            device: stream.device(),
            raw,
        })
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if self.0.device().enter_to_free("a recording") {
            drop(Self::ended(self.0));
        }
    }
}

/// Recorded work, from which a graph is created.
struct Recording {
    device: &'static Device,
    raw: RawRecording,
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.device.enter_to_free("a recording") {
            // SAFETY: created in `Open::ended` and used nowhere else.
            let _ = unsafe { cuda::destroy_recording(self.raw) };
        }
    }
}

/// Work that was recorded once and is submitted as a unit.
pub struct Graph {
    device: &'static Device,
    raw: RawGraph,
    _keep: Vec<Arc<Module>>,
}

// SAFETY: the driver lets any thread use a graph, one at a time, which `&self` of an un-`Sync` type ensures.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.device.enter_to_free("a graph") {
            // SAFETY: created in `record` and used nowhere else.
            let _ = unsafe { cuda::destroy_graph(self.raw) };
        }
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").finish_non_exhaustive()
    }
}
