//! Measures the time to submit work to a GPU, and the number of kernels from which a CUDA graph is faster.

use super::chart::Chart;
use super::figures::{micros_since, percentiles, times};
use super::table::{Cell, row};
use super::{BenchError, Common, Publish};
use crate::sys::device_code;
use daq_core::gpu::driver::{CudaError, Device, Function, Grid, Memory, Stream};
use daq_core::staging::BaselineCopy;
use daq_pipelines::kernels::CONVERT_CODE;
use daq_pipelines::kernels::parameters::{Conversion, RingSlots};
use std::time::Instant;

/// A function of the built-in kernel `convert`. The frames are so small that almost all time is spent on the launch.
const ENTRY: &str = "convert_straight";
/// Size of an input frame in bytes. The samples have one byte and are converted to float32.
const FRAME: u64 = 64;
const THREADS: u32 = 64;
/// Number of warm-up bursts per method. The warm-up bursts are not measured, because the first bursts initialise the
/// driver.
const WARM_UP: usize = 16;

/// One burst of GPU work.
struct Work {
    stream: Stream,
    function: Function,
    parameters: Conversion,
    /// Memory of the input and the output, to which the parameters point.
    _memory: Memory,
}

impl Work {
    fn new(device: &'static Device) -> Result<Self, CudaError> {
        let module = device_code::launched(device, "convert", CONVERT_CODE.ptx().as_bytes())?;
        let memory = Memory::new(device, 1 << 16)?;
        let base = memory.address();
        Ok(Self {
            stream: Stream::new(device, 2)?,
            function: module.function(ENTRY)?,
            // The input ring and the output ring have one slot each. The samples have the type int8.
            parameters: Conversion {
                from: RingSlots {
                    base,
                    stride: FRAME,
                    slots: 1,
                    first: 0,
                },
                to: RingSlots {
                    base: base + FRAME,
                    stride: FRAME * 4,
                    slots: 1,
                    first: 0,
                },
                factor: 1.0,
                points: FRAME,
                channels: 1,
                parts: 1,
                ..Conversion::default()
            },
            _memory: memory,
        })
    }

    fn launch(&self, kernels: usize) -> Result<(), CudaError> {
        let grid = Grid::line(1, THREADS);
        let arguments = self.parameters.arguments();
        for _ in 0..kernels {
            self.function.launch(&self.stream, &grid, &arguments)?;
        }
        Ok(())
    }

    /// Runs bursts one after another. `submit` submits each burst, and `wait` waits until the burst is complete. Returns
    /// the median and the 99th percentile of the time on the host, then those of the time until the burst is complete,
    /// in microseconds.
    fn bursts(
        &self,
        count: usize,
        submit: impl Fn(&Stream) -> Result<(), CudaError>,
        wait: impl Fn(&Stream) -> Result<(), CudaError>,
    ) -> Result<[f64; 4], CudaError> {
        let mut host = Vec::with_capacity(WARM_UP + count);
        let done = times(WARM_UP, count, || {
            let start = Instant::now();
            submit(&self.stream)?;
            host.push(micros_since(start));
            wait(&self.stream)
        })?;
        let ([host, host_99, ..], [done, done_99, ..]) =
            (percentiles(&host[WARM_UP..]), percentiles(&done));
        Ok([host, host_99, done, done_99])
    }
}

/// How bursts are submitted and awaited.
#[derive(Clone, Copy)]
enum Method {
    /// Single launches, then the host polls.
    Launch,
    /// A graph that is recorded once and replayed, then the host polls.
    Replay,
    /// Single launches, then a blocking wait of the driver.
    Synchronise,
}

/// Measures the duration of bursts in microseconds. `kernels` contains the numbers of kernels per burst. Only one burst
/// is in flight at a time.
pub(super) fn launch(
    common: &Common,
    bursts: usize,
    kernels: &[usize],
    publish: Publish<'_>,
) -> Result<(), BenchError> {
    let device = common.open()?;
    let work = Work::new(device)?;
    let methods = [Method::Launch, Method::Replay, Method::Synchronise];
    let poll = |stream: &Stream| {
        BaselineCopy::wait(&*stream.record_event()?);
        Ok(())
    };
    let compared = common.compare(kernels, &methods, |&kernels, method| {
        let launch = |_: &Stream| work.launch(kernels);
        Ok(Some(match method {
            Method::Launch => work.bursts(bursts, launch, poll)?,
            Method::Replay => {
                let graph = work.stream.record(Vec::new(), |_| work.launch(kernels))?;
                work.bursts(bursts, |stream| stream.replay(&graph), poll)?
            }
            Method::Synchronise => work.bursts(bursts, launch, Stream::synchronize)?,
        }))
    })?;
    let title = format!(
        "{}: microseconds per burst of nearly empty kernels; {bursts} bursts",
        device.name()
    );
    let columns = "method | kernels | host p50 | host p99 | done p50 | done p99 | × host | × done";
    let chart = |title: &str, column| {
        Chart::times(title, "µs")
            .over("kernels", "number of kernels per burst")
            .by(&["method"], column)
            .own(&["launch"])
    };
    let table = compared.table(&title, columns, |it| {
        let name = match it.method {
            Method::Launch => "launch",
            Method::Replay => "replay",
            Method::Synchronise => "launch + synchronise",
        };
        // Speed-up compared with launching the kernels one by one.
        let gain = |i: usize| it.all[0][i] / it.figures[i];
        let [host, host_99, done, done_99] = it.figures;
        let figures = [host, host_99, done, done_99, gain(0), gain(2)];
        let kernels = Cell::Number(*it.scenario as f64, 0);
        row([name.into(), kernels], figures, 2)
    });
    let table = table.with(chart("CPU time to submit a burst", "host p50"));
    publish(table.with(chart("Time until the GPU has finished a burst", "done p50")));
    Ok(())
}
