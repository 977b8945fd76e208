//! The cost of submitting work to a GPU, and when recording the work once in a graph pays off.

use super::table::{Cell, Table};
use super::{BenchError, Publish, median, quantile};
use crate::sys::device_code;
use daq_core::gpu::driver::{Argument, CudaError, Device, Function, Grid, Memory, Stream};
use daq_core::staging::BaselineCopy;
use std::time::Instant;

/// The built-in kernel `convert`, over frames so small that only the launch takes time.
const CODE: &[u8] = include_bytes!("../../../generated/convert.ptx");
const ENTRY: &str = "convert_straight";
/// Bytes of an input frame: one-byte samples, which are converted to float32.
const FRAME: u64 = 64;
const THREADS: u32 = 64;
/// Bursts at the start of each method that are not counted, because the first ones initialise the driver.
const WARM_UP: usize = 16;

/// One burst of GPU work.
struct Work {
    stream: Stream,
    function: Function,
    arguments: [Argument; 12],
    /// Input and output, which the arguments point to.
    _memory: Memory,
}

/// Times of each burst of one method in microseconds: on the host, and until the GPU has finished.
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
            // One single-slot ring to read and one to write, each given as address, stride, slots and first slot; then
            // the sample type int8, the number of samples, scale and offset.
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

    /// Runs bursts one after another: `put` submits each to the stream, then the host polls until it is complete.
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

/// Runs bursts one after another: `put` submits each to a stream, and `wait` waits until it is complete.
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

/// Measures bursts of each number of `kernels` in microseconds: launched one by one, recorded once and replayed, and
/// launched with a blocking wait of the driver. Only one burst is in flight at a time.
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
    // For each number of kernels and method: median and 99th percentile of the host's time and of the total time, per
    // round.
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
            // Speed-up over launching the kernels one by one.
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
