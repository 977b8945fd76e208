//! Measures doorbells: the round-trip time of a word from the CPU to a waiting kernel and back.

mod frames;

use super::cores::Cores;
use super::echo::Echo;
use super::figures::Figures;
use super::table::{Cell, Table};
use super::{BenchError, Publish, median};
use crate::sys::upload::Upload;
use daq_core::gpu::bar_mapping::{BarMapping, Refusal};
use daq_core::gpu::driver::{CudaError, Device, Grid};
use daq_core::gpu::{Backend, Writer};
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
#[derive(Clone, Debug)]
pub struct DoorbellArgs {
    /// CUDA device number of the GPU.
    pub device: u32,
    /// Number of rounds; the median is reported.
    pub rounds: usize,
    /// Number of round trips per method and round.
    pub round_trips: usize,
    /// Sizes of CPU stores and of GPU copies in bytes.
    pub sizes: Vec<usize>,
    /// Sizes of the frames that a kernel reads, in bytes.
    pub frames: Vec<usize>,
}

/// How a kernel polls its doorbell and answers.
struct Polling {
    name: &'static str,
    entry: &'static str,
    threads: u32,
}

/// The polling methods. Kernels of pipelines use the first method.
const POLLINGS: [Polling; 4] = [
    Polling {
        name: "acquire, release",
        entry: "daq_echo_ordered",
        threads: 1,
    },
    Polling {
        name: "acquire",
        entry: "daq_echo_acquire",
        threads: 1,
    },
    Polling {
        name: "relaxed",
        entry: "daq_echo_relaxed",
        threads: 1,
    },
    Polling {
        name: "4 warps",
        entry: "daq_echo_warps",
        threads: 128,
    },
];

/// A reference method, which submits work to the GPU and waits for the work.
struct Reference {
    name: &'static str,
    run: fn(&Bench, u32) -> Result<bool, CudaError>,
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

struct Bench {
    upload: Upload,
    nothing: daq_core::gpu::driver::Function,
    echo: Echo,
    /// One doorbell for each backend that supports doorbells.
    bells: Vec<Arc<BarMapping>>,
    refused: Vec<Refusal>,
}

impl Bench {
    /// Allocates the resources. `max` is the maximum size of a copy in bytes.
    fn new(device: &'static Device, max: usize) -> Result<Self, BenchError> {
        let echo = Echo::new(device)?;
        let (mut bells, mut refused) = (Vec::new(), Vec::new());
        for &backend in Writer::Doorbell.backends() {
            match BarMapping::with(device, DOORBELL_BYTES, backend) {
                Ok(mapped) => bells.push(mapped),
                Err(refusal) => refused.push(refusal),
            }
        }
        Ok(Self {
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

    /// Measures round trips through one doorbell.
    fn round_trips(
        &self,
        bell: &Arc<BarMapping>,
        polling: &Polling,
        round_trips: usize,
    ) -> Result<Vec<f64>, BenchError> {
        let mut kernel = self
            .echo
            .start(polling.entry, polling.threads, bell, &[], None)?;
        let mut times = Vec::with_capacity(round_trips);
        for i in 0..WARM_UP + round_trips {
            let start = Instant::now();
            let at = kernel.ring()?;
            kernel.wait(at)?;
            let took = start.elapsed();
            if i >= WARM_UP {
                times.push(took.as_secs_f64() * 1e6);
            }
        }
        kernel.stop()?;
        Ok(times)
    }

    /// Measures round trips of a reference method. Returns no values if the driver does not support the method.
    fn reference(&self, reference: &Reference, round_trips: usize) -> Result<Vec<f64>, BenchError> {
        let mut times = Vec::with_capacity(round_trips);
        for i in 0..WARM_UP + round_trips {
            let start = Instant::now();
            let is_there = (reference.run)(self, u32::try_from(i).unwrap_or(0))?;
            let took = start.elapsed();
            if !is_there {
                break;
            }
            if i >= WARM_UP {
                times.push(took.as_secs_f64() * 1e6);
            }
        }
        Ok(times)
    }
}

/// Returns the duration of one read of the host's clock in microseconds.
fn clock() -> f64 {
    let times: Vec<f64> = (0..10_000)
        .map(|_| Instant::now().elapsed().as_secs_f64() * 1e6)
        .collect();
    median(&times)
}

/// Measures round trips through doorbells, compared with other methods to submit work to a GPU. Also measures CPU
/// stores, compared with copies.
pub fn doorbell(args: &DoorbellArgs, publish: Publish<'_>) -> Result<(), BenchError> {
    let device = Device::open(args.device)?;
    let cores = Cores::near(device, 1);
    cores.first(|| {
        let max = args.frames.iter().copied().max().unwrap_or(0);
        let bench = Bench::new(device, max)?;
        for table in round_trips(device, &bench, args, &cores.place(0))? {
            publish(table);
        }
        publish(frames::latencies(device, &bench, args)?);
        publish(frames::rates(device, &bench, args)?);
        publish(frames::stores(device, &bench, args)?);
        Ok(())
    })
}

fn method(backend: Backend) -> String {
    match backend {
        Backend::Host => "doorbell in host memory".to_owned(),
        backend => format!("doorbell by {backend}"),
    }
}

fn round_trips(
    device: &Device,
    bench: &Bench,
    args: &DoorbellArgs,
    place: &str,
) -> Result<Vec<Table>, BenchError> {
    let mut bells = vec![Figures::default(); bench.bells.len() * POLLINGS.len()];
    let mut references = vec![Figures::default(); REFERENCES.len()];
    for _ in 0..args.rounds {
        let mut cells = bells.iter_mut();
        for bell in &bench.bells {
            for (polling, figures) in POLLINGS.iter().zip(&mut cells) {
                figures.add(&bench.round_trips(bell, polling, args.round_trips)?);
            }
        }
        for (reference, figures) in REFERENCES.iter().zip(&mut references) {
            let times = bench.reference(reference, args.round_trips / LAUNCH_DIVISOR)?;
            if !times.is_empty() {
                figures.add(&times);
            }
        }
    }
    let title = format!(
        "{}: microseconds from a CPU store to the kernel's answer; {} round trips, medians of {} rounds; {place}; each value includes one clock read of {:.3}",
        device.identity().name,
        args.round_trips,
        args.rounds,
        clock(),
    );
    let columns = [
        "method",
        "kernel",
        "p50",
        "p99",
        "p99.9",
        "p99 ÷ p50",
        "× host p50",
    ];
    let mut table = Table::new(title, &columns);
    // Uses the given polling method with the doorbell in host memory.
    let host = |polling: usize| {
        bench
            .bells
            .iter()
            .position(|bell| bell.backend() == Backend::Host)
            .map_or(f64::NAN, |i| bells[i * POLLINGS.len() + polling].at(0))
    };
    let row = |table: &mut Table, method: String, kernel: &str, figures: &Figures, host: f64| {
        let mut cells = vec![method.into(), kernel.into()];
        cells.extend(figures.cells());
        cells.push(Cell::Number(figures.spread(), 2));
        cells.push(Cell::Number(figures.at(0) / host, 2));
        table.row(cells);
    };
    for (bell, figures) in bench.bells.iter().zip(bells.chunks(POLLINGS.len())) {
        for (i, (polling, figures)) in POLLINGS.iter().zip(figures).enumerate() {
            row(
                &mut table,
                method(bell.backend()),
                polling.name,
                figures,
                host(i),
            );
        }
    }
    for (reference, figures) in REFERENCES.iter().zip(&references) {
        row(&mut table, reference.name.to_owned(), "–", figures, host(0));
    }
    let mut tables = vec![table];
    let mut table = Table::new(
        "for each doorbell, the kernel with the lowest p50: p50 relative to a doorbell in host memory, p50 relative to a launch, and p99 ÷ p50",
        &["method", "kernel", "÷ host memory", "÷ launch", "p99 ÷ p50"],
    );
    let best = |figures: &[Figures]| {
        let all = figures.iter().enumerate();
        let best = all.min_by(|(_, a), (_, b)| a.at(0).total_cmp(&b.at(0)));
        best.map_or((0, Figures::default()), |(i, figures)| (i, figures.clone()))
    };
    let of_bell = |bell: usize| best(&bells[bell * POLLINGS.len()..(bell + 1) * POLLINGS.len()]);
    let in_host = bench
        .bells
        .iter()
        .position(|bell| bell.backend() == Backend::Host)
        .map_or(f64::NAN, |bell| of_bell(bell).1.at(0));
    for (i, bell) in bench.bells.iter().enumerate() {
        let (polling, figures) = of_bell(i);
        table.row(vec![
            method(bell.backend()).into(),
            POLLINGS[polling].name.into(),
            Cell::Number(figures.at(0) / in_host, 3),
            Cell::Number(figures.at(0) / references[0].at(0), 3),
            Cell::Number(figures.spread(), 3),
        ]);
    }
    tables.push(table);
    if !bench.refused.is_empty() {
        let mut table = Table::new("memory in which no doorbell could be tested", &["reason"]);
        for refusal in &bench.refused {
            table.row(vec![refusal.to_string().into()]);
        }
        tables.push(table);
    }
    Ok(tables)
}
