//! Graphs: work that is recorded once and can then be submitted to a stream as a unit, any number of times.

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
    /// The memory of the recorded kernels, copies and fills, and the modules of the kernels, must outlive the graph and
    /// its last [replay](Self::replay). The graph keeps the modules in `keep` alive.
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
        // SAFETY: the recording was created just above and is not destroyed yet.
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
        // SAFETY: graph and stream are alive. The memory that the graph accesses was recorded under the contracts of
        // each launch and copy, which remain valid as long as the graph.
        unsafe { cuda::launch_graph(graph.raw, self.raw()) }
            .doing(|| self.what("launching a graph"))
    }
}

/// A recording in progress. Dropping this value ends the recording, also after a failure.
struct Open<'a>(&'a Stream);

impl<'a> Open<'a> {
    fn end(self) -> Result<Recording, Code> {
        let stream = ManuallyDrop::new(self).0;
        Self::ended(stream)
    }

    fn ended(stream: &'a Stream) -> Result<Recording, Code> {
        // SAFETY: a recording was started when the `Open` was created, and this is called once for each `Open`.
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

/// A finished recording, from which a graph is created.
struct Recording {
    device: &'static Device,
    raw: RawRecording,
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.device.enter_to_free("a recording") {
            // SAFETY: the recording was created in `Open::ended` and is not used anywhere else.
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

// SAFETY: any thread may use a graph, but only one thread at a time. The type is not `Sync`, so only one thread has a
// reference.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.device.enter_to_free("a graph") {
            // SAFETY: the graph was created in `record` and is not used anywhere else.
            let _ = unsafe { cuda::destroy_graph(self.raw) };
        }
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").finish_non_exhaustive()
    }
}
