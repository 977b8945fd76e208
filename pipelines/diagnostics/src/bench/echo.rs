//! Persistent kernels that answer a doorbell. This is the host code for `echo.cu`.

use super::BenchError;
use crate::sys::device_code;
use daq_core::doorbell::{Credits, Doorbell};
use daq_core::gpu::Event;
use daq_core::gpu::bar_mapping::BarMapping;
use daq_core::gpu::driver::{
    Argument, CudaError, Device, Grid, Memory, Module, Stream, StreamEvent,
};
use daq_pipelines::kernels::ECHO_CODE;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Timeout for a reply, and for a kernel to end.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without a doorbell after which a kernel ends itself, in nanoseconds. This time must be shorter than
/// [`REPLY_TIMEOUT`].
const KERNEL_TIMEOUT_NS: u64 = 3_000_000_000;
/// The bit of the doorbell that stops a kernel.
const STOP: u64 = 1 << 63;
/// Number of polls of the reply between two reads of the clock.
const POLLS_PER_CLOCK_READ: u32 = 1 << 12;

#[derive(Debug)]
pub(crate) struct Echo {
    device: &'static Device,
    module: Arc<Module>,
}

impl Echo {
    pub(crate) fn new(device: &'static Device) -> Result<Self, CudaError> {
        let module = device_code::answering(device, "echo", ECHO_CODE.ptx().as_bytes())?;
        Ok(Self { device, module })
    }

    pub(crate) const fn module(&self) -> &Arc<Module> {
        &self.module
    }

    /// Starts the kernel called `entry` as one block of `threads` threads. Its doorbell is the first word of `bell`.
    /// The kernel's arguments are the doorbell, the reply and the time limit, followed by `arguments`. These must point
    /// into `bell` or `output`, which the returned value keeps alive.
    pub(crate) fn start(
        &self,
        entry: &str,
        threads: u32,
        bell: &Arc<BarMapping>,
        arguments: &[Argument],
        output: Option<Arc<Memory>>,
    ) -> Result<PersistentKernel, BenchError> {
        let function = self.module.function(entry)?;
        bell.copy_to(0, &[0; 8])?;
        let credits = Credits::new(self.device, 1, 1)?;
        let stream = Stream::new(self.device, 1)?;
        let memory = bell.clone();
        let bell = Doorbell::new(memory.clone(), 0)?;
        let mut all = vec![
            Argument::U64(bell.address()),
            Argument::U64(credits.address()),
            Argument::U64(KERNEL_TIMEOUT_NS),
        ];
        all.extend_from_slice(arguments);
        function.launch(&stream, &Grid::line(1, threads), &all)?;
        let mark = stream.record_event()?;
        Ok(PersistentKernel {
            device: self.device,
            memory,
            bell,
            credits,
            mark,
            rung: 0,
            is_over: false,
            _stream: stream,
            _output: output,
        })
    }
}

/// A running kernel. The kernel stops when this value is dropped.
#[derive(Debug)]
pub(crate) struct PersistentKernel {
    device: &'static Device,
    memory: Arc<BarMapping>,
    bell: Doorbell,
    credits: Arc<Credits>,
    mark: Arc<StreamEvent>,
    rung: u64,
    is_over: bool,
    _stream: Stream,
    /// Memory that the kernel writes.
    _output: Option<Arc<Memory>>,
}

impl PersistentKernel {
    /// Rings the doorbell once. Returns the expected answer.
    #[inline]
    pub(crate) fn ring(&mut self) -> Result<u64, BenchError> {
        self.rung += 1;
        self.bell.ring(self.rung)?;
        Ok(self.rung)
    }

    /// Stores a frame at each of `offsets` in the memory of `bell`, then rings the doorbell once for all frames.
    /// Returns the expected answer.
    #[inline]
    pub(crate) fn post(
        &mut self,
        offsets: impl Iterator<Item = usize>,
        frame: &[u8],
    ) -> Result<u64, BenchError> {
        let mut stores = self.memory.stores()?;
        for offset in offsets {
            stores.copy(offset, frame)?;
            self.rung += 1;
        }
        stores.fence();
        stores.word(0, self.rung)?;
        Ok(self.rung)
    }

    /// Polls until the kernel's answer is `at`.
    #[inline]
    pub(crate) fn wait(&self, at: u64) -> Result<(), BenchError> {
        // The loop has no pause between polls, because a pause would increase the measured time.
        for _ in 0..POLLS_PER_CLOCK_READ {
            if self.credits.has(at) {
                return Ok(());
            }
        }
        self.wait_long(at)
    }

    #[cold]
    fn wait_long(&self, at: u64) -> Result<(), BenchError> {
        let start = Instant::now();
        while start.elapsed() < REPLY_TIMEOUT {
            for _ in 0..POLLS_PER_CLOCK_READ {
                if self.credits.has(at) {
                    return Ok(());
                }
            }
            if self.mark.is_done() {
                if let Some(error) = self.mark.failure() {
                    return Err(error.into());
                }
                break;
            }
        }
        Err(BenchError::Silent {
            rung: at,
            seen: self.credits.values().first().copied().unwrap_or(0),
            seconds: REPLY_TIMEOUT.as_secs(),
        })
    }

    /// Stops the kernel. Returns the time until the kernel has stopped.
    pub(crate) fn stop(mut self) -> Result<Duration, BenchError> {
        self.end()
    }

    fn end(&mut self) -> Result<Duration, BenchError> {
        if std::mem::replace(&mut self.is_over, true) {
            return Ok(Duration::ZERO);
        }
        let start = Instant::now();
        // If the CPU cannot store to the mapping, the kernel ends at its own time limit.
        let rung = self.bell.ring(STOP);
        while !self.mark.is_done() {
            if start.elapsed() > REPLY_TIMEOUT {
                self.device.mark_hung();
                self.credits.leak();
                return Err(BenchError::Thread(format!(
                    "a kernel on cuda:{} did not stop within {} s; daq stops using this GPU",
                    self.device.ordinal(),
                    REPLY_TIMEOUT.as_secs()
                )));
            }
        }
        let took = start.elapsed();
        rung?;
        match self.mark.failure() {
            Some(error) => Err(error.into()),
            None => Ok(took),
        }
    }
}

impl Drop for PersistentKernel {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::debug!("cannot stop a measurement kernel: {error}");
        }
    }
}
