//! Measures emulated FPGA devices: throughput into rings, compared with one thread that copies the same number of
//! bytes, and latency from the last byte of a payload to a persistent kernel on the GPU. The benchmark runs whole
//! pipelines, as `daq run` builds them, so the results include all work of a real pipeline. An emulated device uses CPU
//! cores, but real hardware does not. Therefore the CPU use of the emulated device is reported separately.

mod card;
mod fixture;
mod rates;
mod round_trips;

use super::comparison::{Comparison, Refused};
use super::figures::percentiles;
use super::pipeline::Environment;
use super::scratch::Scratch;
use super::table::{Cell, Table, numbers, size};
use super::{BenchError, Common, Publish};
use daq_core::gpu::driver::Device;
use daq_core::units::Span;
use rates::Method;
use round_trips::{CODE, FILE, RoundTrip};

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

/// Measures, and passes the result tables to `publish`. Without a GPU, the methods that need a GPU are listed as not
/// measured.
pub fn fpga(args: &FpgaArgs, publish: Publish<'_>) -> Result<(), BenchError> {
    let mut refused = Refused::default();
    let gpu = args.common.open();
    let gpu = gpu.map_err(|error| refused.add("all methods that use a GPU", error));
    let gpu = gpu.ok();
    let environment = Environment::new(
        args.common.registry.clone(),
        Scratch::new(FILE, CODE, None)?,
        gpu,
    )?;
    publish(rates(&environment, args, gpu, &mut refused)?);
    if let Some(device) = gpu {
        publish(latencies(&environment, args, device, &mut refused)?);
    }
    refused.publish(publish);
    Ok(())
}

fn rates(
    environment: &Environment,
    args: &FpgaArgs,
    gpu: Option<&'static Device>,
    refused: &mut Refused,
) -> Result<Table, BenchError> {
    let methods = Method::ALL.into_iter();
    let methods: Vec<_> = methods
        .filter(|method| gpu.is_some() || !method.needs_gpu())
        .collect();
    let window = args.common.window;
    // Rate of the previous method. A device without backpressure runs at half of this rate.
    let mut last = 0.0;
    let compared = Comparison::run(
        args.common.rounds,
        &args.frames,
        &methods,
        |&frame, &method| {
            let to = (args.common.device, last / 2.0);
            match method.rate(environment, frame, to, window) {
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
        },
    )?;
    let title = format!(
        "{}: throughput from an emulated device into a ring, {} per measurement, medians of {} rounds; real hardware needs no CPU cores for the device",
        gpu.map_or("no GPU", Device::name),
        Span(window),
        args.common.rounds
    );
    let columns =
        "method | frame | GB/s | frames/s | × baseline copy | cores | device cores | frames lost";
    let rows = compared.rows().map(|row| {
        let [rate, cores, device_cores, ..] = row.figures;
        vec![
            row.method.name().into(),
            size(*row.scenario),
            Cell::Number(rate / 1e9, 2),
            Cell::Number(rate / *row.scenario as f64, 0),
            Cell::Number(rate / row.all[0][0], 3),
            Cell::Number(cores, 2),
            Cell::Number(device_cores, 2),
            rates::loss(row.rounds).into(),
        ]
    });
    Ok(Table::of(title, columns, rows))
}

fn latencies(
    environment: &Environment,
    args: &FpgaArgs,
    device: &'static Device,
    refused: &mut Refused,
) -> Result<Table, BenchError> {
    let methods = RoundTrip::ALL;
    let compared = Comparison::run(
        args.common.rounds,
        &args.frames,
        &methods,
        |&frame, method| {
            let measured = method.measure(environment, frame, device.ordinal(), args.round_trips);
            Ok(measured
                .map(|(times, [daq, device])| {
                    let [p50, p99, p999] = percentiles(&times);
                    [p50, p99, p999, daq, device]
                })
                .map_err(|error| refused.add(format!("latency, {}", method.name()), error))
                .ok())
        },
    )?;
    let title = format!(
        "{}: microseconds from the last byte of a payload until the host sees that a persistent kernel has read the frame; {} frames, medians of {} rounds; every thread polls",
        device.name(),
        args.round_trips,
        args.common.rounds
    );
    let columns = "frame | method | p50 | p99 | p99.9 | ÷ staged | cores | device cores";
    let rows = compared.rows().map(|row| {
        let [p50, p99, p999, daq, device] = row.figures;
        let mut cells = vec![size(*row.scenario), row.method.name().into()];
        cells.extend(numbers([p50, p99, p999, p50 / row.all[0][0]], 3));
        cells.extend(numbers([daq, device], 2));
        cells
    });
    Ok(Table::of(title, columns, rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the environment for tests without a GPU.
    pub(super) fn environment() -> Environment {
        Environment::new(
            daq_pipelines::registry(),
            Scratch::new(FILE, CODE, None).unwrap(),
            None,
        )
        .unwrap()
    }
}
