//! Measures doorbells: the round-trip time of a word from the CPU to a waiting kernel and back.

mod frames;

use super::chart::Chart;
use super::cores::Cores;
use super::figures::{median, micros_since, percentiles, times};
use super::table::{Table, numbers, row};
use super::{BenchError, Common, MAX_BYTES, Publish, bytes, count};
use crate::sys::upload::Upload;
use daq_core::gpu::bar_mapping::{BarMapping, Refusal};
use daq_core::gpu::driver::{CudaError, Device, Grid};
use daq_core::gpu::{Backend, Writer};
use daq_diagnostics::fixture::Echo;
use std::sync::Arc;
use std::time::Instant;

/// Number of warm-up round trips per method, which are not measured.
const WARM_UP: usize = 1000;
/// Methods that include launches make this many times fewer round trips, because launches take longer and their
/// duration varies less.
const LAUNCH_DIVISOR: usize = 8;
/// Size of the memory of a doorbell in bytes.
const DOORBELL_BYTES: usize = 4096;

/// Options of `daq bench doorbell`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Round trips per method and round.
    #[arg(long, default_value = "20000", value_parser = count::<8, { usize::MAX }>)]
    round_trips: usize,
    /// Sizes of CPU stores and of GPU copies.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "4 B,64 B,256 B,1 KiB,4 KiB",
        value_parser = bytes::<1, MAX_BYTES, 1>
    )]
    sizes: Vec<usize>,
    /// Sizes of frames that a kernel reads.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "64 B,256 B,1 KiB,4 KiB,16 KiB,64 KiB",
        value_parser = bytes::<1, MAX_BYTES, 1>
    )]
    frames: Vec<usize>,
}

/// How a kernel polls its doorbell and answers.
struct Polling {
    name: &'static str,
    entry: &'static str,
    threads: u32,
}

impl Polling {
    const fn new(name: &'static str, entry: &'static str, threads: u32) -> Self {
        Self {
            name,
            entry,
            threads,
        }
    }
}

/// The polling methods. Kernels of pipelines use the first method.
const POLLINGS: [Polling; 4] = [
    Polling::new("acquire, release", "daq_echo_ordered", 1),
    Polling::new("acquire", "daq_echo_acquire", 1),
    Polling::new("relaxed", "daq_echo_relaxed", 1),
    Polling::new("4 warps", "daq_echo_warps", 128),
];

/// A reference method, which submits work to the GPU and waits for the work.
struct Reference {
    name: &'static str,
    run: fn(&Bench<'_>, u32) -> Result<bool, CudaError>,
}

const REFERENCES: [Reference; 3] = [
    Reference {
        name: "empty launch + synchronise",
        run: |bench, _| {
            bench.launch()?;
            bench.upload.stream().synchronize().map(|()| true)
        },
    },
    Reference {
        name: "copy of 8 bytes + launch + synchronise",
        run: |bench, _| {
            bench.upload.begin(8)?;
            bench.launch()?;
            bench.upload.stream().synchronize().map(|()| true)
        },
    },
    Reference {
        name: "cuStreamWriteValue32 + synchronise",
        run: |bench, i| {
            let stream = bench.upload.stream();
            let has_call = stream.write_word(bench.upload.memory(), 0, i)?;
            stream.synchronize().map(|()| has_call)
        },
    },
];

struct Bench<'a> {
    common: &'a Common,
    args: &'a Args,
    device: &'static Device,
    upload: Upload,
    nothing: daq_core::gpu::driver::Function,
    echo: Echo,
    /// One doorbell for each backend that supports doorbells.
    bells: Vec<Arc<BarMapping>>,
    refused: Vec<Refusal>,
}

impl<'a> Bench<'a> {
    /// Allocates the resources.
    fn new(
        common: &'a Common,
        args: &'a Args,
        device: &'static Device,
    ) -> Result<Self, BenchError> {
        let max = args.frames.iter().copied().max().unwrap_or(0);
        let echo = Echo::new(device)?;
        let (mut bells, mut refused) = (Vec::new(), Vec::new());
        for &backend in Writer::Doorbell.backends() {
            match BarMapping::with(device, DOORBELL_BYTES, backend) {
                Ok(mapped) => bells.push(mapped),
                Err(refusal) => refused.push(refusal),
            }
        }
        Ok(Self {
            common,
            args,
            device,
            upload: Upload::new(device, max.max(8))?,
            nothing: echo.module().function("daq_nothing")?,
            echo,
            bells,
            refused,
        })
    }

    fn launch(&self) -> Result<(), CudaError> {
        self.nothing
            .launch(self.upload.stream(), &Grid::line(1, 1), &[])
    }

    /// Measures round trips through a doorbell.
    fn doorbell(
        &self,
        bell: &Arc<BarMapping>,
        polling: &Polling,
        round_trips: usize,
    ) -> Result<Vec<f64>, BenchError> {
        let mut kernel = self
            .echo
            .start(polling.entry, polling.threads, bell, &[], None)?;
        let times = times(WARM_UP, round_trips, || {
            let at = kernel.ring()?;
            kernel.wait(at)
        })?;
        kernel.stop()?;
        Ok(times)
    }

    /// Measures round trips of a reference method. Returns `None` if the driver does not support the method.
    fn reference(
        &self,
        reference: &Reference,
        round_trips: usize,
    ) -> Result<Option<Vec<f64>>, BenchError> {
        let mut i = 0;
        if !(reference.run)(self, i)? {
            return Ok(None);
        }
        let times = times(WARM_UP, round_trips, || {
            i = i.wrapping_add(1);
            (reference.run)(self, i).map(drop)
        })?;
        Ok(Some(times))
    }
}

/// Returns the duration of one read of the host's clock in microseconds.
fn clock() -> f64 {
    let times = (0..10_000).map(|_| micros_since(Instant::now()));
    median(&times.collect::<Vec<_>>())
}

/// Measures round trips through doorbells, compared with other methods to submit work to a GPU. Also measures CPU
/// stores, compared with copies.
pub(super) fn doorbell(
    common: &Common,
    args: &Args,
    publish: Publish<'_>,
) -> Result<(), BenchError> {
    let device = common.open()?;
    let cores = Cores::near(device, 1);
    cores.first(|| {
        let bench = Bench::new(common, args, device)?;
        common.progress.set_parts(4);
        round_trips(&bench, &cores.place(0), &mut *publish)?;
        publish(frames::latencies(&bench)?);
        publish(frames::rates(&bench)?);
        publish(frames::stores(&bench)?);
        Ok(())
    })
}

/// One method to start work on the GPU.
#[derive(Clone, Copy)]
enum Method<'a> {
    Doorbell(&'a Arc<BarMapping>, &'static Polling),
    Reference(&'static Reference),
}

impl Method<'_> {
    fn name(self) -> String {
        match self {
            Self::Doorbell(bell, _) if bell.backend() == Backend::Host => {
                "doorbell in host memory".to_owned()
            }
            Self::Doorbell(bell, _) => format!("doorbell by {}", bell.backend()),
            Self::Reference(reference) => reference.name.to_owned(),
        }
    }

    /// Returns the name of the kernel's polling method.
    const fn kernel(self) -> &'static str {
        match self {
            Self::Doorbell(_, polling) => polling.name,
            Self::Reference(_) => "–",
        }
    }

    /// Returns the backend of the doorbell; `None` for a reference method.
    fn backend(self) -> Option<Backend> {
        match self {
            Self::Doorbell(bell, _) => Some(bell.backend()),
            Self::Reference(_) => None,
        }
    }
}

fn round_trips(bench: &Bench<'_>, place: &str, publish: Publish<'_>) -> Result<(), BenchError> {
    let bells = bench.bells.iter();
    let bells = bells.flat_map(|bell| {
        POLLINGS
            .iter()
            .map(|polling| Method::Doorbell(bell, polling))
    });
    let methods: Vec<_> = bells
        .chain(REFERENCES.iter().map(Method::Reference))
        .collect();
    let count = bench.args.round_trips;
    let compared = bench.common.compare(&[()], &methods, |(), method| {
        let times = match method {
            Method::Doorbell(bell, polling) => Some(bench.doorbell(bell, polling, count)?),
            Method::Reference(reference) => bench.reference(reference, count / LAUNCH_DIVISOR)?,
        };
        Ok(times.map(|times| percentiles(&times)))
    })?;
    let rows: Vec<_> = compared
        .rows()
        .map(|row| (*row.method, row.figures))
        .collect();
    // Returns the median with the doorbell in host memory and the given kernel.
    let in_host = |kernel: &str| {
        let mut rows = rows.iter();
        let is_it = |(method, _): &&(Method<'_>, _)| {
            method.backend() == Some(Backend::Host) && method.kernel() == kernel
        };
        rows.find(is_it).map_or(f64::NAN, |(_, figures)| figures[0])
    };
    let title = format!(
        "{}: microseconds from a CPU store to the kernel's answer; {count} round trips; {place}; each value includes one clock read of {:.3}",
        bench.device.name(),
        clock(),
    );
    let columns = "method | kernel | p50 | p99 | p99.9 | p99 ÷ p50 | × host p50";
    let chart = Chart::times("From a CPU store to the answer of the GPU", "µs")
        .by(&["method", "kernel"], "p50")
        .own(&["doorbell"]);
    let table = compared.table(&title, columns, |it| {
        let kernel = match it.method {
            Method::Doorbell(_, polling) => polling.name,
            Method::Reference(_) => POLLINGS[0].name,
        };
        let [p50, p99, ..] = it.figures;
        let names = [it.method.name().into(), it.method.kernel().into()];
        let mut cells = row(names, it.figures, 3);
        cells.extend(numbers([p99 / p50, p50 / in_host(kernel)], 2));
        cells
    });
    publish(table.with(chart));

    // For each doorbell, the row of the kernel with the lowest median.
    let bells = rows[..bench.bells.len() * POLLINGS.len()].chunks(POLLINGS.len());
    let best = bells.filter_map(|rows| rows.iter().min_by(|(_, a), (_, b)| a[0].total_cmp(&b[0])));
    let best: Vec<_> = best.collect();
    let host = best
        .iter()
        .find(|(method, _)| method.backend() == Some(Backend::Host));
    let host = host.map_or(f64::NAN, |(_, figures)| figures[0]);
    let launch = rows[bench.bells.len() * POLLINGS.len()].1[0];
    let cells = best.iter().map(|(method, [p50, p99, ..])| {
        let names = [method.name().into(), method.kernel().into()];
        row(names, [p50 / host, p50 / launch, p99 / p50], 3)
    });
    publish(Table::of(
        "for each doorbell, the kernel with the lowest p50: p50 relative to a doorbell in host memory, p50 relative to a launch, and p99 ÷ p50",
        "method | kernel | ÷ host memory | ÷ launch | p99 ÷ p50",
        cells,
    ));
    if !bench.refused.is_empty() {
        let refused = bench.refused.iter();
        publish(Table::of(
            "memory in which no doorbell could be tested",
            "reason",
            refused.map(|refusal| vec![refusal.to_string().into()]),
        ));
    }
    Ok(())
}
