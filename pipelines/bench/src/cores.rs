//! Selects CPU cores for the threads of a measurement.

use super::BenchError;
use daq_core::gpu::driver::Device;
use daq_core::topology::Topology;
use std::thread::ScopedJoinHandle;

/// CPU cores for the threads of a measurement, one core per thread. The cores must be selected before any thread is
/// pinned, because a pinned thread, and every thread that it starts, can only query its own core.
#[derive(Clone, Debug)]
pub(super) struct Cores {
    /// The selected cores; empty if the process may use too few cores.
    cores: Vec<usize>,
    is_near: bool,
}

impl Cores {
    /// Selects `count` cores that the process may use: the last cores of the GPU's NUMA node or, if that node has too
    /// few cores, the last cores of all nodes.
    pub(super) fn near(device: &Device, count: usize) -> Self {
        let topology = Topology::detect();
        let mut gpus = topology.gpus.iter();
        let gpu = gpus.find(|gpu| gpu.ordinal == device.ordinal());
        let node = gpu.and_then(|gpu| gpu.node);
        let is_near = |core: usize| node.is_some() && topology.node_of(core) == node;
        Self::of(&topology.cores, count, is_near)
    }

    fn of(all: &[usize], count: usize, is_near: impl Fn(usize) -> bool) -> Self {
        let last = || all.iter().rev().copied();
        let near: Vec<_> = last().filter(|core| is_near(*core)).take(count).collect();
        let is_near = near.len() == count;
        let cores = if is_near {
            near
        } else {
            last().take(count).collect()
        };
        let cores = if cores.len() == count {
            cores
        } else {
            Vec::new()
        };
        Self { cores, is_near }
    }

    /// Pins the calling thread to the `n`-th core. Does not pin the thread if there are too few cores.
    pub(super) fn take(&self, n: usize) {
        if let Some(core) = self.cores.get(n)
            && let Err(error) = daq_core::thread::pin(*core)
        {
            tracing::warn!(
                "cannot pin a measuring thread to core {core}: {error}; the results of the thread may vary more"
            );
        }
    }

    /// Describes the `n`-th core, for the report.
    pub(super) fn place(&self, n: usize) -> String {
        match self.cores.get(n) {
            Some(core) if self.is_near => format!("core {core}, on the GPU's node"),
            Some(core) => format!("core {core}"),
            None => "any core".to_owned(),
        }
    }

    /// Runs `work` in a new thread on the first core. The calling thread is not pinned, so that threads that it starts
    /// later are not pinned either.
    pub(super) fn first<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, BenchError> + Send,
    ) -> Result<T, BenchError> {
        std::thread::scope(|scope| {
            joined(scope.spawn(|| {
                self.take(0);
                work()
            }))
        })
    }
}

/// Returns the result of a measuring thread, or an error if the thread panicked.
pub(super) fn joined<T>(
    thread: ScopedJoinHandle<'_, Result<T, BenchError>>,
) -> Result<T, BenchError> {
    thread.join().unwrap_or_else(|_| {
        Err(BenchError::Thread(
            "a measuring thread panicked; this is a defect in daq".to_owned(),
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_last_of_node_or_of_machine_or_none() {
        let all = [0, 1, 2, 3, 8, 9];
        let of = |count| Cores::of(&all, count, |core| core < 4);
        assert_eq!(of(3).cores, [3, 2, 1]);
        assert_eq!(of(3).place(0), "core 3, on the GPU's node");
        assert_eq!(of(5).cores, [9, 8, 3, 2, 1]);
        assert_eq!(of(5).place(4), "core 1");
        assert_eq!(
            (of(7).cores.len(), of(7).place(0).as_str()),
            (0, "any core")
        );
    }

    #[test]
    fn thread_panic_is_returned_as_error() {
        let cores = Cores {
            cores: Vec::new(),
            is_near: false,
        };
        let done = cores.first(|| -> Result<(), _> { panic!("for the test") });
        assert!(done.unwrap_err().to_string().contains("panicked"));
    }
}
