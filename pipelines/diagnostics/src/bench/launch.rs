//! What putting work on a GPU costs: where recording it once pays.

use super::table::{Cell, Table};
use super::{BenchError, Publish, median, quantile};
use crate::sys::device_code;
use daq_core::gpu::driver::{Argument, CudaError, Device, Function, Grid, Memory, Stream};
use daq_core::staging::BaselineCopy;
use std::time::Instant;

/// The built-in kernel `convert`, over frames so small that only its launch takes time.
const CODE: &[u8] = include_bytes!("../../../generated/convert.ptx");
const ENTRY: &str = "convert_straight";
/// Bytes of a frame of the input: samples of one byte, which come out as float32.
const FRAME: u64 = 64;
const THREADS: u32 = 64;
/// Bursts that are not counted, at the start of each way: the first ones set things up.
const WARM_UP: usize = 16;

/// A burst's work on the GPU.
struct Work {
    stream: Stream,
    function: Function,
    arguments: [Argument; 12],
    /// Input and output, which the arguments lead to.
    _memory: Memory,
}

/// The host's time and the time until the GPU is done, of each burst of one way, in microseconds.
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
            // A ring of one slot to read and one to write, each as address, stride, slots and first slot; the type
            // int8; numbers, scale and offset.
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

    /// Bursts one after the other: each put on the stream by `put`, then polled for.
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

/// Bursts one after the other: `put` puts each on a stream and `wait` waits until it is done.
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

/// Microseconds of bursts of each number of `kernels`: launched one by one, recorded once and replayed, and launched
/// with a wait of the driver's. Only one burst is under way at a time.
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
    // For each number and way: median and 99th percentile of the host's time and of the whole, a round.
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
        "{}: microseconds a burst of kernels that do next to nothing; {bursts} bursts, medians of {rounds}",
        device.identity().name,
    );
    let mut table = Table::new(
        title,
        &[
            "way", "kernels", "host p50", "host p99", "done p50", "done p99", "x host", "x done",
        ],
    );
    for (kernels, rows) in kernels.iter().zip(figures.chunks(methods.len())) {
        for (method, row) in methods.iter().zip(rows) {
            let figure = |i: usize| median(&row[i]);
            // How many times as long launching one by one takes.
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
