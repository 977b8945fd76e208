//! Measures doorbells: the round-trip time of a word from the CPU to a waiting kernel and back.

mod frames;

use super::comparison::Comparison;
use super::cores::Cores;
use super::echo::Echo;
use super::figures::{median, micros_since, percentiles, times};
use super::table::{Table, numbers};
use super::{BenchError, Common, Publish};
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
    /// GPU and number of rounds.
    pub common: Common,
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
    device: &'static Device,
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
pub fn doorbell(args: &DoorbellArgs, publish: Publish<'_>) -> Result<(), BenchError> {
    let device = args.common.open()?;
    let cores = Cores::near(device, 1);
    cores.first(|| {
        let max = args.frames.iter().copied().max().unwrap_or(0);
        let bench = Bench::new(device, max)?;
        round_trips(&bench, args, &cores.place(0), &mut *publish)?;
        publish(frames::latencies(&bench, args)?);
        publish(frames::rates(&bench, args)?);
        publish(frames::stores(&bench, args)?);
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

fn round_trips(
    bench: &Bench,
    args: &DoorbellArgs,
    place: &str,
    publish: Publish<'_>,
) -> Result<(), BenchError> {
    let bells = bench.bells.iter();
    let bells = bells.flat_map(|bell| {
        POLLINGS
            .iter()
            .map(|polling| Method::Doorbell(bell, polling))
    });
    let methods: Vec<_> = bells
        .chain(REFERENCES.iter().map(Method::Reference))
        .collect();
    let count = args.round_trips;
    let compared = Comparison::run(args.common.rounds, &[()], &methods, |(), method| {
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
        "{}: microseconds from a CPU store to the kernel's answer; {count} round trips, medians of {} rounds; {place}; each value includes one clock read of {:.3}",
        bench.device.identity().name,
        args.common.rounds,
        clock(),
    );
    let columns = "method | kernel | p50 | p99 | p99.9 | p99 ÷ p50 | × host p50";
    let cells = rows.iter().map(|(method, figures)| {
        let kernel = match method {
            Method::Doorbell(_, polling) => polling.name,
            Method::Reference(_) => POLLINGS[0].name,
        };
        let mut cells = vec![method.name().into(), method.kernel().into()];
        cells.extend(numbers(*figures, 3));
        let ratios = [figures[1] / figures[0], figures[0] / in_host(kernel)];
        cells.extend(numbers(ratios, 2));
        cells
    });
    publish(Table::of(title, columns, cells));

    // For each doorbell, the row of the kernel with the lowest median.
    let bells = rows[..bench.bells.len() * POLLINGS.len()].chunks(POLLINGS.len());
    let best = bells.filter_map(|rows| rows.iter().min_by(|(_, a), (_, b)| a[0].total_cmp(&b[0])));
    let best: Vec<_> = best.collect();
    let host = best
        .iter()
        .find(|(method, _)| method.backend() == Some(Backend::Host));
    let host = host.map_or(f64::NAN, |(_, figures)| figures[0]);
    let launch = rows[bench.bells.len() * POLLINGS.len()].1[0];
    let cells = best.iter().map(|(method, figures)| {
        let ratios = [
            figures[0] / host,
            figures[0] / launch,
            figures[1] / figures[0],
        ];
        let mut cells = vec![method.name().into(), method.kernel().into()];
        cells.extend(numbers(ratios, 3));
        cells
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
