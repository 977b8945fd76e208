//! Measures the time to submit work to a GPU, and the number of kernels from which a CUDA graph is faster.

use super::table::{Cell, Table};
use super::{BenchError, Publish, median, quantile};
use crate::sys::device_code;
use daq_core::gpu::driver::{Argument, CudaError, Device, Function, Grid, Memory, Stream};
use daq_core::staging::BaselineCopy;
use std::time::Instant;

/// PTX of the built-in kernel `convert`. The frames are so small that almost all time is spent on the launch.
const CODE: &[u8] = include_bytes!("../../../generated/convert.ptx");
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
    arguments: [Argument; 12],
    /// Memory of the input and the output, to which the arguments point.
    _memory: Memory,
}

/// Times of each burst of one method in microseconds: the time on the host, and the time until the GPU has finished the
/// burst.
#[derive(Default)]
struct Times {
    host: Vec<f64>,
    done: Vec<f64>,
}

impl Work {
    fn new(device: &'static Device) -> Result<Self, CudaError> {
        let module = device_code::launched(device, "convert", CODE)?;
        let memory = Memory::new(device, 1 << 16)?;
        let base = memory.address();
        Ok(Self {
            stream: Stream::new(device, 2)?,
            function: module.function(ENTRY)?,
            // The input ring and the output ring have one slot each. Each is given as address, stride, number of slots
            // and first slot. Then follow the sample type int8, the number of samples, the scale and the offset.
            arguments: [
                Argument::U64(base),
                Argument::U64(FRAME),
                Argument::U32(1),
                Argument::U32(0),
                Argument::U64(base + FRAME),
                Argument::U64(FRAME * 4),
                Argument::U32(1),
                Argument::U32(0),
                Argument::U32(0),
                Argument::U64(FRAME),
                Argument::F64(1.0),
                Argument::F64(0.0),
            ],
            _memory: memory,
        })
    }

    fn launch(&self, kernels: usize) -> Result<(), CudaError> {
        let grid = Grid::line(1, THREADS);
        for _ in 0..kernels {
            self.function.launch(&self.stream, &grid, &self.arguments)?;
        }
        Ok(())
    }

    /// Runs bursts one after another. `put` submits each burst to the stream; then the host polls until the burst is
    /// complete.
    fn poll(
        &self,
        bursts: usize,
        put: impl Fn() -> Result<(), CudaError>,
    ) -> Result<Times, CudaError> {
        times(bursts, put, || {
            BaselineCopy::wait(&*self.stream.record_event()?);
            Ok(())
        })
    }
}

/// Runs bursts one after another. `put` submits each burst to a stream, and `wait` waits until the burst is complete.
fn times(
    bursts: usize,
    put: impl Fn() -> Result<(), CudaError>,
    wait: impl Fn() -> Result<(), CudaError>,
) -> Result<Times, CudaError> {
    let mut times = Times::default();
    for i in 0..WARM_UP + bursts {
        let start = Instant::now();
        put()?;
        let host = start.elapsed();
        wait()?;
        let done = start.elapsed();
        if i >= WARM_UP {
            times.host.push(host.as_secs_f64() * 1e6);
            times.done.push(done.as_secs_f64() * 1e6);
        }
    }
    Ok(times)
}

/// Measures the duration of bursts in microseconds. `kernels` contains the numbers of kernels per burst. The methods
/// are: single launches, a graph that is recorded once and replayed, and single launches with a blocking wait of the
/// driver. Only one burst is in flight at a time.
pub fn launch(
    device: u32,
    rounds: usize,
    bursts: usize,
    kernels: &[usize],
    publish: Publish<'_>,
) -> Result<(), BenchError> {
    let device = Device::open(device)?;
    let work = Work::new(device)?;
    let methods = ["launch", "replay", "launch + synchronise"];
    // One entry per number of kernels and method. It contains the median and the 99th percentile of the host's time and
    // of the total time, with one value per round.
    let mut figures = vec![[const { Vec::new() }; 4]; kernels.len() * methods.len()];
    for _ in 0..rounds {
        let mut cells = figures.iter_mut();
        for kernels in kernels {
            let graph = work.stream.record(Vec::new(), |_| work.launch(*kernels))?;
            for method in methods {
                let times = match method {
                    "launch" => work.poll(bursts, || work.launch(*kernels))?,
                    "replay" => work.poll(bursts, || work.stream.replay(&graph))?,
                    _ => {
                        let wait = || work.stream.synchronize();
                        times(bursts, || work.launch(*kernels), wait)?
                    }
                };
                if let Some([host, host_99, done, done_99]) = cells.next() {
                    host.push(median(&times.host));
                    host_99.push(quantile(&times.host, 0.99));
                    done.push(median(&times.done));
                    done_99.push(quantile(&times.done, 0.99));
                }
            }
        }
    }
    let title = format!(
        "{}: microseconds per burst of nearly empty kernels; {bursts} bursts, medians of {rounds} rounds",
        device.identity().name,
    );
    let mut table = Table::new(
        title,
        &[
            "method", "kernels", "host p50", "host p99", "done p50", "done p99", "× host", "× done",
        ],
    );
    for (kernels, rows) in kernels.iter().zip(figures.chunks(methods.len())) {
        for (method, row) in methods.iter().zip(rows) {
            let figure = |i: usize| median(&row[i]);
            // Speed-up compared with launching the kernels one by one.
            let gain = |i: usize| Cell::Number(median(&rows[0][i]) / figure(i), 2);
            table.row(vec![
                (*method).into(),
                Cell::Number(*kernels as f64, 0),
                Cell::Number(figure(0), 2),
                Cell::Number(figure(1), 2),
                Cell::Number(figure(2), 2),
                Cell::Number(figure(3), 2),
                gain(0),
                gain(2),
            ]);
        }
    }
    publish(table);
    Ok(())
}
