//! Measures the throughput of the kernels for frames in GPU memory.

use super::device;
use super::trial::layout;
use daq_core::frame::FrameMeta;
use daq_core::gpu::driver::{self, Device, StreamEvent};
use daq_core::kernel::{KernelContext, KernelSpec, Side, Stream};
use daq_core::layout::{Order, Samples, Scalar};
use daq_core::ledger::{ReaderLedger, RingLedger};
use daq_core::region::Region;
use daq_core::ring::{Producer, Ring, RingOptions};
use daq_pipelines::kernels::convert::Scale;
use daq_pipelines::kernels::{Beamform, Channelize, Convert, Correlate, OutputType};
use daq_pipelines::kernels::{PowerSpectrum, Stats};
use std::sync::Arc;

const BURST: usize = 16;
const ROUNDS: usize = 40;

/// Prints the input bytes per second for bursts of 16 frames of about 4 MiB. The time is measured with GPU events.
fn rate(device: &'static Device, what: &str, spec: &dyn KernelSpec, samples: &Samples) {
    let input = layout(samples, (4 << 20) * 8 / samples.point_bits());
    let output = spec.layout(&input).unwrap();
    let side = Side::Cuda(device.ordinal());
    let mut kernel = spec.build(&KernelContext::alone(&input, side)).unwrap();
    let stream = driver::Stream::timed(device, 1).unwrap();
    let ring = |name: &str, slots: usize, bytes: usize| {
        let options = RingOptions::new(name, slots.max(2), bytes);
        let region = Region::cuda(device, options.region_bytes()).unwrap();
        let (ring, producer) = Ring::new(region.clone(), options, RingLedger::default()).unwrap();
        let reader = ring.attach(true, 1, ReaderLedger::default()).unwrap();
        (region, producer, reader)
    };
    let (region, mut source, mut reader) = ring("in", 2 * BURST, input.frame_bytes());
    // The bytes are all 7-bit codes. No float has an exponent of all ones, so none is infinite or NaN.
    let noise: Vec<u8> = (0..region.bytes())
        .map(|i| u8::try_from(((i * 40_503) >> 7) % 113).unwrap())
        .collect();
    region.memory().unwrap().write(0, &noise).unwrap();
    let outputs = kernel.outputs(BURST) + 1;
    let (_, mut sink, mut results) = ring("out", 2 * outputs, output.frame_bytes());
    let mut sequence = 0;
    let (mut times, mut produced) = (Vec::new(), 0);
    for _ in 0..ROUNDS {
        publish(&mut source, &mut sequence, input.frame_bytes());
        let lease = reader.poll(BURST).unwrap();
        let mut out = sink.reserve(kernel.outputs(BURST));
        stream.begin().unwrap();
        let _ = kernel.run(&lease, &mut out, Stream::Cuda(&stream)).unwrap();
        let mark: Arc<StreamEvent> = stream.record_event().unwrap();
        stream.synchronize().unwrap();
        times.push(mark.milliseconds().unwrap());
        out.publish();
        drop(lease);
        produced += results.poll(usize::MAX).map_or(0, |lease| lease.len());
    }
    times.sort_by(f32::total_cmp);
    let median = f64::from(times[times.len() / 2]) / 1e3;
    let occupancy = kernel.occupancy().unwrap_or(0.0);
    println!(
        "{what:46} {:8.1} GB/s of input, {:8.1} GB/s of output, {:7.1} us a burst, occupancy {occupancy:.2}",
        (BURST * input.frame_bytes()) as f64 / 1e9 / median,
        (produced * output.frame_bytes()) as f64 / ROUNDS as f64 / 1e9 / median,
        median * 1e6,
    );
}

fn publish(source: &mut Producer, sequence: &mut u64, bytes: usize) {
    let mut slots = source.reserve(BURST);
    for _ in 0..BURST {
        slots.finish(FrameMeta::whole(*sequence, bytes));
        *sequence += 1;
    }
    slots.publish();
}

#[test]
fn kernels_throughput() {
    let Some(device) = device() else { return };
    println!("{}", device.name());
    let rate = |what: &str, spec: &dyn KernelSpec, scalar, complex, channels| {
        let samples = Samples {
            scalar,
            complex,
            channels,
            order: Order::Interleaved,
            rate: None,
            ..Samples::default()
        };
        rate(device, what, spec, &samples);
    };
    let full = |order| Convert {
        scale: Scale::Full,
        order,
        ..Convert::default()
    };
    let spectrum = |size, integrate, overlap| PowerSpectrum {
        size: Some(size),
        integrate,
        overlap,
        ..PowerSpectrum::default()
    };
    let integers = [Scalar::Int8, Scalar::Int16, Scalar::Int32];
    for scalar in Scalar::ALL {
        let spec = if scalar.is_float() {
            Convert::default()
        } else {
            full(None)
        };
        rate(&format!("convert {scalar}"), &spec, scalar, false, 1);
    }
    let planar = full(Some(Order::Planar));
    rate(
        "convert uint12p, 64 channels to planar",
        &planar,
        Scalar::Uint12p,
        false,
        64,
    );
    for channels in [2, 64] {
        let what = format!("convert int16, {channels} channels to planar");
        let planar = full(Some(Order::Planar));
        rate(&what, &planar, Scalar::Int16, false, channels);
    }
    for scalar in [Scalar::Int8, Scalar::Int16, Scalar::Float32] {
        for complex in [false, true] {
            let kind = if complex { "complex " } else { "" };
            let what = format!("power-spectrum 4096, {kind}{scalar}");
            rate(&what, &spectrum(4096, None, 0.0), scalar, complex, 1);
        }
    }
    for size in [64, 256, 1000, 1024, 2048, 8192, 16_384, 65_536, 1 << 20] {
        let what = format!("power-spectrum {size}, int16");
        rate(&what, &spectrum(size, None, 0.0), Scalar::Int16, false, 1);
    }
    for integrate in [1, 8, 1000] {
        let what = format!("power-spectrum 1024, int16, integrate {integrate}");
        let spec = spectrum(1024, Some(integrate), 0.0);
        rate(&what, &spec, Scalar::Int16, false, 1);
    }
    for channels in [256, 1024, 4096] {
        let spec = Channelize {
            channels: Some(channels),
            ..Channelize::default()
        };
        let what = format!("channelize {channels}, int16");
        rate(&what, &spec, Scalar::Int16, false, 1);
        let what = format!("channelize {channels}, complex int8");
        rate(&what, &spec, Scalar::Int8, true, 1);
        let quantised = Channelize {
            output: OutputType::Int8,
            ..spec
        };
        let what = format!("channelize {channels}, complex int8, 16 inputs, int8");
        rate(&what, &quantised, Scalar::Int8, true, 16);
    }
    for scalar in [Scalar::Int8, Scalar::Float16, Scalar::Int16] {
        let spec = Correlate {
            antennas: Some(64),
            ..Correlate::default()
        };
        let what = format!("correlate {scalar}, 64 antennas");
        rate(&what, &spec, scalar, true, 64 * 64);
        let spec = Beamform {
            antennas: Some(64),
            beams: 64,
            ..Beamform::default()
        };
        let what = format!("beamform {scalar}, 64 antennas, 64 beams");
        rate(&what, &spec, scalar, true, 64 * 64);
    }
    let what = "power-spectrum 4096, int16, overlap 0.5";
    rate(what, &spectrum(4096, None, 0.5), Scalar::Int16, false, 1);
    let what = "power-spectrum 4096, 8 channels";
    rate(what, &spectrum(4096, None, 0.0), Scalar::Int16, true, 8);
    let stats = Stats::default();
    for scalar in integers {
        rate(&format!("stats {scalar}"), &stats, scalar, false, 1);
    }
    let range = Stats {
        range: Some([-1.0, 1.0]),
        ..Stats::default()
    };
    rate("stats float32, 256 bins", &range, Scalar::Float32, false, 1);
    rate("stats float32, no bins", &stats, Scalar::Float32, false, 1);
    rate(
        "stats complex int16, 8 channels",
        &stats,
        Scalar::Int16,
        true,
        8,
    );
}
