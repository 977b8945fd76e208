//! Measures emulated FPGA devices: throughput into rings, compared with one thread that copies the same number of
//! bytes, and latency from the last byte of a payload to a persistent kernel on the GPU. The benchmark runs whole
//! pipelines, as `daq run` builds them, so the results include all work of a real pipeline. An emulated device uses CPU
//! cores, but real hardware does not. Therefore the CPU use of the emulated device is reported separately.

mod card;
mod fixture;
mod rates;
mod round_trips;

use super::chart::Chart;
use super::comparison::Refused;
use super::figures::percentiles;
use super::table::{Cell, Table, numbers, row, size};
use super::{BenchError, Common, Publish, bytes, count};
use daq_core::entry::Registry;
use daq_core::gpu::driver::Device;
use daq_diagnostics::fixture::Environment;
use daq_diagnostics::fixture::Scratch;
use rates::Method;
use round_trips::{CODE, FILE, RoundTrip};

/// Options of `daq bench fpga`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Frames per method and round whose latency is measured.
    #[arg(long, default_value = "300", value_parser = count::<8, { usize::MAX }>)]
    round_trips: usize,
    /// Frame sizes, multiples of 64 bytes, 4 KiB to 8 MiB.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "64 KiB,1 MiB,4 MiB",
        value_parser = bytes::<{ 4 << 10 }, { 8 << 20 }, 64>
    )]
    frames: Vec<usize>,
}

/// Measures, and passes the result tables to `publish`. Without a GPU, the methods that need a GPU are listed as not
/// measured.
pub(super) fn fpga(common: &Common, args: &Args, publish: Publish<'_>) -> Result<(), BenchError> {
    let mut refused = Refused::default();
    let gpu = common.open();
    let gpu = gpu.map_err(|error| refused.add("all methods that use a GPU", error));
    let gpu = gpu.ok();
    let environment = environment(&common.registry, gpu)?;
    common.progress.set_parts(1 + usize::from(gpu.is_some()));
    publish(rates(&environment, common, args, gpu, &mut refused)?);
    if let Some(device) = gpu {
        publish(latencies(&environment, common, args, device, &mut refused)?);
    }
    refused.publish(publish);
    Ok(())
}

/// Returns the environment of pipelines that can name the timed device.
fn environment(
    registry: &Registry,
    gpu: Option<&'static Device>,
) -> Result<Environment, BenchError> {
    let registry = registry.clone().with(&card::TIMED);
    Environment::new(registry, Scratch::new(FILE, CODE, None)?, gpu)
}

fn rates(
    environment: &Environment,
    common: &Common,
    args: &Args,
    gpu: Option<&'static Device>,
    refused: &mut Refused,
) -> Result<Table, BenchError> {
    let methods = Method::ALL.into_iter();
    let methods: Vec<_> = methods
        .filter(|method| gpu.is_some() || !method.needs_gpu())
        .collect();
    // Rate of the previous method. A device without backpressure runs at half of this rate.
    let mut last = 0.0;
    let compared = common.compare(&args.frames, &methods, |&frame, &method| {
        let to = (common.device, last / 2.0);
        match method.rate(environment, frame, to, common.window.0) {
            Ok(rate) => {
                last = rate.bytes;
                Ok(Some(rate.figures()))
            }
            Err(error) if method.needs_gpu() => {
                refused.add(method.name(), error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    })?;
    let title = format!(
        "{}: throughput from an emulated device into a ring, {} per measurement; real hardware needs no CPU cores for the device",
        gpu.map_or("no GPU", Device::name),
        common.window
    );
    let columns =
        "method | frame | GB/s | frames/s | × baseline copy | cores | device cores | frames lost";
    let chart = Chart::rates("From an emulated device into a ring", "GB/s")
        .over("frame", "frame size")
        .by(&["method"], "GB/s")
        .own(&["xdma", "litepcie"]);
    let table = compared.table(&title, columns, |it| {
        let [rate, cores, device_cores, ..] = it.figures;
        vec![
            it.method.name().into(),
            size(*it.scenario),
            Cell::Number(rate / 1e9, 2),
            Cell::Number(rate / *it.scenario as f64, 0),
            Cell::Number(rate / it.all[0][0], 3),
            Cell::Number(cores, 2),
            Cell::Number(device_cores, 2),
            rates::loss(it.rounds).into(),
        ]
    });
    Ok(table.with(chart))
}

fn latencies(
    environment: &Environment,
    common: &Common,
    args: &Args,
    device: &'static Device,
    refused: &mut Refused,
) -> Result<Table, BenchError> {
    let compared = common.compare(&args.frames, &RoundTrip::ALL, |&frame, method| {
        let measured = method.measure(environment, frame, device.ordinal(), args.round_trips);
        let figures = measured.map(|(times, [daq, device])| {
            let [p50, p99, p999] = percentiles(&times);
            [p50, p99, p999, daq, device]
        });
        Ok(figures
            .map_err(|error| refused.add(format!("latency, {}", method.name()), error))
            .ok())
    })?;
    let title = format!(
        "{}: microseconds from the last byte of a payload until the host sees that a persistent kernel has read the frame; {} frames; every thread polls",
        device.name(),
        args.round_trips
    );
    let columns = "frame | method | p50 | p99 | p99.9 | ÷ staged | cores | device cores";
    let chart = Chart::times(
        "From the last byte of a payload to a persistent kernel",
        "µs",
    )
    .over("frame", "frame size")
    .by(&["method"], "p50")
    .own(&["direct"]);
    let table = compared.table(&title, columns, |it| {
        let [quantiles @ .., daq, device] = it.figures;
        let names = [size(*it.scenario), it.method.name().into()];
        let mut cells = row(names, quantiles, 3);
        cells.push(Cell::Number(quantiles[0] / it.all[0][0], 3));
        cells.extend(numbers([daq, device], 2));
        cells
    });
    Ok(table.with(chart))
}
