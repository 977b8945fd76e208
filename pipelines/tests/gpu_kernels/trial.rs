//! Runs a single kernel between two rings, on the CPU or on a GPU. The unit tests of the kernels include this file too.

use daq_core::frame::{Clock, Flags, FrameMeta, Timestamp};
use daq_core::gpu::driver::{self, Device};
use daq_core::kernel::{KernelContext, KernelSpec, Side, Stream, Submitted};
use daq_core::layout::{Layout, Order, Samples, Scalar};
use daq_core::region::Region;
use daq_core::ring::RingOptions;
pub use daq_testkit::ring::Record;
use daq_testkit::ring::RingFixture;
pub use daq_testkit::sink::SCALARS;
use std::path::Path;
use std::time::{Duration, Instant};

/// The outputs and counts of a kernel.
#[derive(Debug)]
pub struct Outcome {
    pub outputs: Vec<Record>,
    /// The counts of each call.
    pub calls: Vec<Submitted>,
    /// Total duration of the calls.
    pub busy: Duration,
}

/// Returns the numbers of consumed, accumulating, failed, filtered, released and dropped frames of each call.
fn counts(calls: &[Submitted]) -> Vec<[u64; 6]> {
    let each = |call: &Submitted| {
        [
            call.consumed,
            call.accumulating,
            call.failed,
            call.filtered,
            call.released,
            call.dropped,
        ]
    };
    calls.iter().map(each).collect()
}

/// Returns a ring with one reader, in host memory or on a GPU.
fn ring(
    name: &str,
    slots: usize,
    slot_bytes: usize,
    device: Option<&'static Device>,
) -> RingFixture {
    let Some(device) = device else {
        return RingFixture::host(name, slots, slot_bytes);
    };
    let options = RingOptions::new(name, slots.max(2), slot_bytes.max(1));
    let region = Region::cuda(device, options.region_bytes()).unwrap();
    RingFixture::in_region(region, options)
}

/// Runs the kernel `spec` over `frames` on a GPU or on the CPU. The burst sizes are the numbers in `bursts`, repeated.
pub fn run(
    spec: &dyn KernelSpec,
    input: &Layout,
    frames: &[Record],
    bursts: &[usize],
    device: Option<&'static Device>,
) -> Outcome {
    let output = spec.layout(input).unwrap();
    let side = device.map_or(Side::Cpu, |device| Side::Cuda(device.ordinal()));
    assert!(spec.input_facts(input).runs_on(side), "{input} on {side:?}");
    let mut kernel = spec.build(&KernelContext::alone(input, side)).unwrap();
    assert_eq!(kernel.occupancy().is_some(), device.is_some());
    let stream = device.map(|device| driver::Stream::timed(device, 1).unwrap());
    let longest = bursts.iter().copied().max().unwrap();
    // The ring has one slot more than necessary, so that bursts and outputs wrap around at changing positions.
    let mut source = ring("in", longest + 1, input.frame_bytes(), device);
    let max = kernel.outputs(longest + 1) + 1;
    let mut sink = ring("out", max, output.frame_bytes(), device);
    let mut outcome = Outcome {
        outputs: Vec::new(),
        calls: Vec::new(),
        busy: Duration::ZERO,
    };
    let mut rest = frames;
    for burst in bursts.iter().copied().cycle() {
        let (now, later) = rest.split_at(burst.min(rest.len()));
        if now.is_empty() {
            break;
        }
        rest = later;
        source.write(now);
        let lease = source.reader.poll(now.len()).unwrap();
        assert_eq!(lease.len(), now.len());
        let outputs = kernel.outputs(now.len());
        // With fewer slots, the kernel would never run.
        assert!(kernel.outputs(1) <= spec.input_facts(input).max_outputs);
        let mut out = sink.producer.reserve(outputs);
        assert_eq!(out.remaining(), outputs);
        let on = match &stream {
            Some(stream) => {
                stream.begin().unwrap();
                Stream::Cuda(stream)
            }
            None => Stream::Host,
        };
        let start = Instant::now();
        let submitted = kernel.run(&lease, &mut out, on).unwrap();
        outcome.busy += start.elapsed();
        if let Some(stream) = &stream {
            drop(stream.record_event().unwrap());
            stream.synchronize().unwrap();
        }
        out.publish();
        drop(lease);
        assert_eq!(
            submitted.consumed + submitted.accumulating + submitted.failed + submitted.filtered,
            now.len() as u64,
            "{submitted:?}"
        );
        outcome.calls.push(submitted);
        outcome.outputs.extend(sink.read());
    }
    outcome
}

/// Runs `spec` on the CPU and on a GPU. Checks that metadata and counts are equal. Returns the outputs of the GPU, then
/// those of the CPU.
pub fn both(
    spec: &dyn KernelSpec,
    input: &Layout,
    frames: &[Record],
    bursts: &[usize],
    device: &'static Device,
    what: &str,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let made = run(spec, input, frames, bursts, Some(device));
    let want = run(spec, input, frames, bursts, None);
    assert_eq!(counts(&made.calls), counts(&want.calls), "{what}");
    assert_eq!(made.outputs.len(), want.outputs.len(), "{what}");
    let pairs = made.outputs.into_iter().zip(want.outputs);
    pairs
        .map(|((made_meta, made), (want_meta, want))| {
            assert_eq!(made_meta, want_meta, "{what}");
            (made, want)
        })
        .collect()
}

/// A generator of reproducible random numbers.
pub struct Noise(pub u64);

impl Noise {
    fn bits(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 11
    }

    /// Returns a random number from 0 to `limit` - 1.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.bits() / 64 % limit
    }

    /// Returns a random number between -1 and 1.
    pub fn number(&mut self) -> f64 {
        self.bits() as f64 / (1_u64 << 52) as f64 - 1.0
    }

    /// Returns the bytes of `count` numbers: over the whole range of an integer type, or between -1 and 1 for a float
    /// type.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_possible_wrap
    )]
    pub fn numbers(&mut self, scalar: Scalar, count: usize) -> Vec<u8> {
        if scalar.is_big_endian() {
            return reversed(scalar, self.numbers(scalar.little_endian(), count));
        }
        if scalar.packing().is_some() {
            let bytes = count * scalar.bits() / 8;
            return (0..bytes).map(|_| self.below(256) as u8).collect();
        }
        let mut bytes = Vec::with_capacity(count * scalar.bits() / 8);
        for _ in 0..count {
            let x = self.number();
            match scalar {
                Scalar::Int8 => bytes.extend(((x * 128.0).floor() as i8).to_le_bytes()),
                Scalar::Uint8 => bytes.extend(((x * 128.0 + 128.0) as u8).to_le_bytes()),
                Scalar::Int16 => bytes.extend(((x * 32_768.0).floor() as i16).to_le_bytes()),
                Scalar::Uint16 => bytes.extend(((x * 32_768.0 + 32_768.0) as u16).to_le_bytes()),
                Scalar::Int32 => bytes.extend(((x * 2_147_483_648.0) as i32).to_le_bytes()),
                Scalar::Uint32 => bytes.extend(((x * 2_147_483_648.0) as i32 as u32).to_le_bytes()),
                Scalar::Int64 => bytes.extend(((x * 2_f64.powi(63)) as i64).to_le_bytes()),
                // Codes below 0x3c00 are numbers below 1.
                Scalar::Float16 => {
                    let sign = if x < 0.0 { 0x8000 } else { 0 };
                    bytes.extend((self.below(0x3c00) as u16 | sign).to_le_bytes());
                }
                Scalar::Bfloat16 => bytes.extend(&(x as f32).to_le_bytes()[2..]),
                Scalar::Float32 => bytes.extend((x as f32).to_le_bytes()),
                _ => bytes.extend(x.to_le_bytes()),
            }
        }
        bytes
    }

    /// Returns the bytes of `count` numbers of a float type. The numbers are multiples of 0.1 between -1 and 1.
    #[allow(clippy::cast_possible_truncation)]
    pub fn tenths(&mut self, scalar: Scalar, count: usize) -> Vec<u8> {
        let mut tenth = || self.below(21) as f64 / 10.0 - 1.0;
        match scalar {
            Scalar::Float32 => (0..count)
                .flat_map(|_| (tenth() as f32).to_le_bytes())
                .collect(),
            _ => (0..count).flat_map(|_| tenth().to_le_bytes()).collect(),
        }
    }

    /// Returns numbers as `numbers` does. For float types, some are quiet or signalling NaNs, infinities, zeros or a
    /// denormal number.
    pub fn odd_numbers(&mut self, scalar: Scalar, count: usize) -> Vec<u8> {
        if scalar.is_big_endian() {
            return reversed(scalar, self.odd_numbers(scalar.little_endian(), count));
        }
        let mut bytes = self.numbers(scalar, count);
        let width = scalar.bytes().unwrap_or(1);
        for place in bytes.chunks_exact_mut(width) {
            let odd = [
                f64::NAN,
                -f64::from_bits(f64::NAN.to_bits() | 5 << 40),
                f64::INFINITY,
                f64::NEG_INFINITY,
                0.0,
                -0.0,
                1e-40,
            ];
            let Some(x) = odd.get(usize::try_from(self.below(30)).unwrap()) else {
                continue;
            };
            let signals = x.is_nan() && self.below(2) == 0;
            #[allow(clippy::cast_possible_truncation)]
            match scalar {
                // The bits of these numbers cannot be rounded, so the codes are written.
                Scalar::Float16 => {
                    let codes = [0x7e00, 0xfe05, 0x7c00, 0xfc00, 0, 0x8000, 0x0003_u16];
                    let at = odd
                        .iter()
                        .position(|odd| odd.to_bits() == x.to_bits())
                        .unwrap();
                    let code = if signals { 0x7c15 } else { codes[at] };
                    place.copy_from_slice(&code.to_le_bytes());
                }
                Scalar::Bfloat16 if signals => place.copy_from_slice(&0xff81_u16.to_le_bytes()),
                Scalar::Bfloat16 => place.copy_from_slice(&(*x as f32).to_le_bytes()[2..]),
                Scalar::Float32 if signals => place.copy_from_slice(&0x7f80_1234_u32.to_le_bytes()),
                Scalar::Float64 if signals => {
                    place.copy_from_slice(&0xfff0_1234_5678_9abc_u64.to_le_bytes());
                }
                Scalar::Float32 => place.copy_from_slice(&(*x as f32).to_le_bytes()),
                Scalar::Float64 => place.copy_from_slice(&x.to_le_bytes()),
                _ => {}
            }
        }
        bytes
    }
}

/// Reverses the bytes of each number.
fn reversed(scalar: Scalar, mut bytes: Vec<u8>) -> Vec<u8> {
    let numbers = bytes.chunks_exact_mut(scalar.bits() / 8);
    numbers.for_each(<[u8]>::reverse);
    bytes
}

/// Returns the layout of frames with `points` points, rounded up to whole groups of a packed type.
pub fn layout(samples: &Samples, points: usize) -> Layout {
    let bytes = samples.point_bytes();
    let group = bytes * 8 / samples.point_bits();
    samples.layout(points.div_ceil(group) * bytes).unwrap()
}

/// Returns samples of every type in `scalars`, real and complex, in both orders, with these numbers of channels.
pub fn every_type(scalars: &[Scalar], channels: &[u32]) -> Vec<Samples> {
    let mut all = Vec::new();
    for &scalar in scalars {
        for complex in [false, true] {
            for &channels in channels {
                for order in [Order::Interleaved, Order::Planar] {
                    all.push(Samples {
                        scalar,
                        complex,
                        channels,
                        order,
                        rate: Some(daq_core::units::Frequency(48_000.0)),
                        ..Samples::default()
                    });
                }
            }
        }
    }
    all
}

/// Returns frames with consecutive numbers whose timestamps are one millisecond apart.
pub fn frames(contents: impl IntoIterator<Item = Vec<u8>>) -> Vec<Record> {
    (0..)
        .zip(contents)
        .map(|(i, bytes)| {
            let meta = FrameMeta {
                timestamp: Timestamp {
                    ns: 1_000_000 * i,
                    clock: Clock::Simulated,
                },
                ..FrameMeta::whole(i, bytes.len())
            };
            (meta, bytes)
        })
        .collect()
}

/// Makes some frames short, missing or incomplete, and starts some new epochs.
pub fn disturb(frames: &mut [Record], noise: &mut Noise) {
    let (mut missing, mut epoch) = (0, 0);
    for (meta, bytes) in frames {
        match noise.below(12) {
            0 => missing += 2,
            1 => epoch += 1,
            2 => {
                bytes.pop();
            }
            3 => meta.flags = Flags::INCOMPLETE,
            4 => meta.flags = Flags::EPOCH,
            _ => {}
        }
        meta.sequence += missing;
        meta.epoch = epoch;
    }
}

/// Writes an NPY file with numbers of the type `descr`.
pub fn write_npy(path: &Path, descr: &str, shape: &[usize], bytes: &[u8]) {
    let lengths: Vec<_> = shape.iter().map(usize::to_string).collect();
    let header = format!(
        "{{'descr': '{descr}', 'fortran_order': False, 'shape': ({},), }}\n",
        lengths.join(", ")
    );
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend(u16::try_from(header.len()).unwrap().to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(bytes);
    std::fs::write(path, file).unwrap();
}

pub fn as_f32(bytes: &[u8]) -> Vec<f64> {
    let numbers = bytes.as_chunks().0.iter();
    numbers.map(|x| f64::from(f32::from_le_bytes(*x))).collect()
}

pub fn as_f64(bytes: &[u8]) -> Vec<f64> {
    let numbers = bytes.as_chunks().0.iter();
    numbers.map(|x| f64::from_le_bytes(*x)).collect()
}
