//! Measures emulated FPGA devices: throughput into rings, compared with one thread that copies the same number of
//! bytes, and latency from the last byte of a payload to a persistent kernel on the GPU. The benchmark runs whole
//! pipelines, as `daq run` builds them, so the results include all work of a real pipeline. An emulated device uses CPU
//! cores, but real hardware does not. Therefore the CPU use of the emulated device is reported separately.

mod card;
mod fixture;
mod rates;
mod round_trips;

use super::figures::Figures;
use super::scratch::Scratch;
use super::table::{Cell, Table};
use super::{BenchError, Common, Publish};
use daq_core::gpu::Backend;
use daq_core::gpu::driver::Device;
use daq_core::staging::measure;
use daq_core::topology::Topology;
use daq_core::units::ByteSize;
use fixture::Bench;
use rates::{Method, Rates, floor};
use round_trips::{CODE, FILE, RoundTrip};
use std::collections::{BTreeMap, BTreeSet};

/// Options of `daq bench fpga`.
#[derive(Clone, Debug)]
pub struct FpgaArgs {
    /// GPU, number of rounds, and duration per method.
    pub common: Common,
    /// Frame sizes in bytes, multiples of 64.
    pub frames: Vec<usize>,
    /// Number of frames per method and round whose latency is measured.
    pub round_trips: usize,
}

/// The methods that were not measured, with the reason.
type Refused = BTreeSet<(String, String)>;

/// Measures, and passes the result tables to `publish`. Without a GPU, the methods that need a GPU are listed as not
/// measured.
pub fn fpga(args: &FpgaArgs, publish: Publish<'_>) -> Result<(), BenchError> {
    let mut refused = Refused::new();
    let gpu = match args.common.open() {
        Ok(device) => Some(device),
        Err(error) => {
            refused.insert(("all methods that use a GPU".to_owned(), error.to_string()));
            None
        }
    };
    let bench = bench(gpu)?;
    publish(rates(&bench, args, gpu, &mut refused)?);
    if let Some(device) = gpu {
        publish(latencies(&bench, args, device, &mut refused));
    }
    if !refused.is_empty() {
        let mut table = Table::new("not measured", &["method", "reason"]);
        for (method, why) in refused {
            table.row(vec![method.into(), why.into()]);
        }
        publish(table);
    }
    Ok(())
}

fn bench(gpu: Option<&'static Device>) -> Result<Bench, BenchError> {
    let mut topology = Topology::detect();
    let ordinal = gpu.map(Device::ordinal);
    topology.gpus = topology
        .gpus
        .into_iter()
        .map(|there| {
            if Some(there.ordinal) == ordinal {
                there.with_probed_mappings(&Backend::ALL)
            } else {
                there
            }
        })
        .collect();
    let mut profiles = BTreeMap::new();
    if let Some(device) = gpu {
        profiles.insert(device.ordinal(), measure(device)?);
    }
    Ok(Bench {
        scratch: Scratch::new(FILE, CODE, None)?,
        topology,
        profiles,
    })
}

fn rates(
    bench: &Bench,
    args: &FpgaArgs,
    gpu: Option<&'static Device>,
    refused: &mut Refused,
) -> Result<Table, BenchError> {
    let to_gpu: &[Method] = if gpu.is_some() { &Method::GPU } else { &[] };
    let methods: Vec<_> = Method::HOST.iter().chain(to_gpu).copied().collect();
    let mut floors = vec![Rates::default(); args.frames.len()];
    let mut all = vec![vec![Rates::default(); methods.len()]; args.frames.len()];
    let window = args.common.window;
    for _ in 0..args.common.rounds {
        for ((&frame, floors), all) in args.frames.iter().zip(&mut floors).zip(&mut all) {
            let (copied, core) = floor(frame, window)?;
            floors.add((copied, [core, f64::NAN], [0; 2]));
            // Rate of the previous method. A device without backpressure runs at half of this rate.
            let mut last = 0.0;
            for (&method, rates) in methods.iter().zip(all) {
                let to = (args.common.device, last / 2.0);
                match bench.rate(method, frame, to, window) {
                    Ok(figures) => {
                        last = figures.0;
                        rates.add(figures);
                    }
                    Err(error) if Method::HOST.contains(&method) => return Err(error),
                    Err(error) => {
                        refused.insert((method.name().to_owned(), error.to_string()));
                    }
                }
            }
        }
    }
    let place = gpu.map_or("no GPU", Device::name);
    let mut table = Table::new(
        format!(
            "{place}: throughput from an emulated device into a ring, {} per measurement, medians of {} rounds; real hardware needs no CPU cores for the device",
            daq_core::units::Span(window),
            args.common.rounds
        ),
        &[
            "method",
            "frame",
            "GB/s",
            "frames/s",
            "× baseline copy",
            "cores",
            "device cores",
            "frames lost",
        ],
    );
    for ((&frame, floors), all) in args.frames.iter().zip(&floors).zip(&all) {
        let size = ByteSize(frame as u64).to_string();
        let floor = Rates::of(&floors.bytes);
        let mut row = |name: &str, rate: f64, cores: [f64; 2], lost: String| {
            table.row(vec![
                name.into(),
                size.clone().into(),
                Cell::Number(rate / 1e9, 2),
                Cell::Number(rate / frame as f64, 0),
                Cell::Number(rate / floor, 3),
                Cell::Number(cores[0], 2),
                Cell::Number(cores[1], 2),
                lost.into(),
            ]);
        };
        let core = Rates::of(&floors.cores[0]);
        row(
            "baseline copy by one thread",
            floor,
            [core, f64::NAN],
            String::new(),
        );
        for (method, rates) in methods.iter().zip(all) {
            let cores = rates.cores.each_ref().map(|cores| Rates::of(cores));
            row(method.name(), Rates::of(&rates.bytes), cores, rates.loss());
        }
    }
    Ok(table)
}

fn latencies(
    bench: &Bench,
    args: &FpgaArgs,
    device: &'static Device,
    refused: &mut Refused,
) -> Table {
    let mut all =
        vec![vec![(Figures::default(), Rates::default()); RoundTrip::ALL.len()]; args.frames.len()];
    for _ in 0..args.common.rounds {
        for (&frame, all) in args.frames.iter().zip(&mut all) {
            for (round_trip, (figures, rates)) in RoundTrip::ALL.into_iter().zip(all) {
                match bench.round_trips(round_trip, frame, device.ordinal(), args.round_trips) {
                    Ok((times, cores)) => {
                        figures.add(&times);
                        rates.add((f64::NAN, cores, [0; 2]));
                    }
                    Err(error) => {
                        let method = format!("latency, {}", round_trip.name());
                        refused.insert((method, error.to_string()));
                    }
                }
            }
        }
    }
    let mut table = Table::new(
        format!(
            "{}: microseconds from the last byte of a payload until the host sees that a persistent kernel has read the frame; {} frames, medians of {} rounds; every thread polls",
            device.name(),
            args.round_trips,
            args.common.rounds
        ),
        &[
            "frame",
            "method",
            "p50",
            "p99",
            "p99.9",
            "÷ staged",
            "cores",
            "device cores",
        ],
    );
    for (&frame, all) in args.frames.iter().zip(&all) {
        let staged = all[0].0.at(0);
        for (round_trip, (figures, rates)) in RoundTrip::ALL.iter().zip(all) {
            let [p50, p99, p999] = figures.cells();
            let cores = rates.cores.each_ref().map(|cores| Rates::of(cores));
            table.row(vec![
                ByteSize(frame as u64).to_string().into(),
                round_trip.name().into(),
                p50,
                p99,
                p999,
                Cell::Number(figures.at(0) / staged, 3),
                Cell::Number(cores[0], 2),
                Cell::Number(cores[1], 2),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the options for tests without a GPU.
    pub(super) fn bench() -> Bench {
        super::bench(None).unwrap()
    }
}
