//! Tests user kernels on a real GPU, from source, PTX and machine code. Without a GPU or a compiler, prints the reason
//! and skips the tests. The tests read no file of the repository at run time.

#![allow(clippy::unwrap_used)]

use daq_core::frame::{Clock, Flags, FrameMeta, Timestamp};
use daq_core::gpu::driver::{self, Compiler, CudaError, Device, Source, Target};
use daq_core::kernel::{Kernel, KernelContext, KernelError, KernelSpec, Side, Stream};
use daq_core::layout::{Layout, Samples, Scalar};
use daq_core::ledger::{ReaderLedger, RingLedger};
use daq_core::region::Region;
use daq_core::ring::{Completion, Producer, Reader, Ring, RingOptions};
use daq_pipelines::kernels::FileKernel;
use daq_pipelines::kernels::file::{FrameKeys, HEADER, Value};
use daq_testkit::assert_contains;
use std::path::Path;
use std::sync::Arc;

const CLIP: &str = include_str!("../../configs/kernels/clip.cu");

/// A kernel that writes everything that it receives: the frame's metadata, the kernel's parameters, and a sum of the
/// payload. Every thread of every block contributes to this sum.
const REPORT: &str = r"
struct Params {
    float gain = 1;
    int taps[4] = {};
    unsigned char level = 7;
    bool on = false;
    double far = 0.25;
};

__device__ void on_frame(const daq::Frame& in, daq::Out& out, const Params& p) {
    using Word = unsigned long long;
    Word* words = out.as<Word>();
    const short* x = in.as<const short>();
    if (in.index() == 0) {
        Word bits[2] = {0, 0};
        for (unsigned i = 0; i < in.packets_per_frame(); i++)
            if (in.present(i)) bits[i / 64] |= Word(1) << (i % 64);
        const Word values[] = {
            in.sequence(), in.timestamp(), Word(in.clock()), in.epoch(), in.flags(), in.incomplete(),
            in.packets_per_frame(), in.arrived(), bits[0], bits[1], in.present(in.packets_per_frame()), in.length, in.channels, in.points,
            in.blocks, in.threads, in.stride(), out.capacity, out.channels, out.points,
            p.level, p.on, Word(p.far * 100), in.count<short>(), DAQ_THREADS,
        };
        for (unsigned i = 0; i < 32; i++) words[i] = i < sizeof(values) / 8 ? values[i] : 0;
    }
    double* y = out.as<double>() + 32;
    for (daq::Size i = in.index(); i < in.points; i += in.stride()) y[i] = p.gain * x[i] + p.taps[i % 4];
}
";
/// Lines that allow the file to be compiled outside of daq.
const MACROS: &str = "DAQ_KERNEL(on_frame, Params)\nDAQ_ENTRY(again, on_frame)\nDAQ_PARAM(Params, gain)\n\
                      DAQ_PARAM(Params, taps)\nDAQ_PARAM(Params, on)\n";

const POINTS: usize = 1000;
const PACKETS_PER_FRAME: u32 = 70;
/// Number of words that `REPORT` writes before its numbers.
const VALUES: usize = 32;
/// Number of bursts in flight, the same as in the runtime.
const IN_FLIGHT: usize = 9;

fn device() -> Option<&'static Device> {
    match Device::open(0) {
        Ok(device) => Some(device),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

fn compiler() -> Option<Compiler> {
    match Compiler::find() {
        Ok(compiler) => Some(compiler),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

fn input() -> Layout {
    Samples {
        scalar: Scalar::Int16,
        ..Samples::default()
    }
    .layout(2 * POINTS)
    .unwrap()
}

fn reporting(file: &str) -> FileKernel {
    let taps = [1, -2, 300, 4].map(Value::Integer).to_vec();
    FileKernel {
        params: [
            ("gain".to_owned(), Value::Float(2.5)),
            ("taps".to_owned(), Value::Array(taps)),
            ("on".to_owned(), Value::Boolean(true)),
        ]
        .into(),
        frame: FrameKeys {
            scalar: Some(Scalar::Float64),
            points: Some(VALUES + POINTS),
            ..FrameKeys::default()
        },
        blocks: Some(3),
        threads: 128,
        ..FileKernel::new(file)
    }
}

/// Returns the metadata, the packet bitmap and the samples of frame `i`.
fn frame(i: u64) -> (FrameMeta, [u64; 2], Vec<i16>) {
    let missing = i % 5 == 3;
    let bitmap = if missing {
        [u64::MAX << 1, 0b10_1111]
    } else {
        [u64::MAX, 0b11_1111]
    };
    let meta = FrameMeta {
        sequence: (1 << 40) + i,
        epoch: 3,
        flags: if missing {
            Flags::INCOMPLETE.with(Flags::SUSPECT)
        } else {
            Flags::default()
        },
        timestamp: Timestamp {
            ns: 1_700_000_000_000_000_000 + i,
            clock: Clock::Kernel,
        },
        // The stream ended inside this frame.
        length: if i == 11 { 2 * POINTS - 2 } else { 2 * POINTS },
        packets_per_frame: PACKETS_PER_FRAME,
        arrived: if missing {
            PACKETS_PER_FRAME - 2
        } else {
            PACKETS_PER_FRAME
        },
        ..FrameMeta::default()
    };
    let sample = |k: usize| i16::try_from((k as u64 * 31 + i * 7) % 20_000).unwrap() - 10_000;
    (meta, bitmap, (0..POINTS).map(sample).collect())
}

/// A kernel between two rings in GPU memory.
struct Bench {
    regions: [Arc<Region>; 2],
    source: Producer,
    reader: Reader,
    kernel: Box<dyn Kernel>,
    sink: Producer,
    results: Reader,
    stream: driver::Stream,
}

fn ring(device: &'static Device, slots: usize, bytes: usize) -> (Arc<Region>, Producer, Reader) {
    let options = RingOptions {
        packets_per_frame: PACKETS_PER_FRAME,
        ..RingOptions::new("ring", slots, bytes)
    };
    let region = Region::cuda(device, options.region_bytes()).unwrap();
    let (ring, producer) = Ring::new(region.clone(), options, RingLedger::default()).unwrap();
    let reader = ring.attach(true, slots, ReaderLedger::default()).unwrap();
    (region, producer, reader)
}

/// Builds the kernel with the keys `keys`, whose file is in `directory`.
fn build(
    keys: &FileKernel,
    directory: &Path,
    input: &Layout,
) -> Result<Box<dyn Kernel>, KernelError> {
    keys.build(&KernelContext {
        directory: directory.to_owned(),
        packets_per_frame: PACKETS_PER_FRAME,
        ..KernelContext::alone(input, Side::Cuda(0))
    })
}

impl Bench {
    fn new(device: &'static Device, keys: &FileKernel, directory: &Path, slots: usize) -> Self {
        let input = input();
        let output = keys.layout(&input).unwrap();
        let kernel = build(keys, directory, &input).unwrap_or_else(|error| panic!("{error}"));
        let (read, source, reader) = ring(device, slots, input.frame_bytes());
        let (written, sink, results) = ring(device, slots, output.frame_bytes());
        Self {
            regions: [read, written],
            source,
            reader,
            kernel,
            sink,
            results,
            stream: driver::Stream::new(device, IN_FLIGHT).unwrap(),
        }
    }

    /// Publishes `frames` frames in the input ring, starting with frame `first`.
    fn publish(&mut self, first: u64, frames: u64) {
        assert_eq!(self.source.claim(frames), frames, "the ring is full");
        for i in 0..frames {
            let (meta, bitmap, samples) = frame(first + i);
            let at = self.source.open_slot(i).addr() - self.regions[0].address().as_ptr().addr();
            let bytes: Vec<u8> = samples.iter().flat_map(|x| x.to_le_bytes()).collect();
            self.regions[0].memory().unwrap().write(at, &bytes).unwrap();
            self.source.describe(i, &meta, bitmap.into_iter());
        }
        self.source.publish(frames);
    }

    /// Runs bursts of the sizes `bursts` with up to nine in flight. Returns the numbers of consumed and failed frames.
    fn run(&mut self, bursts: &[usize]) -> Result<(u64, u64), KernelError> {
        let (mut consumed, mut failed) = (0, 0);
        for some in bursts.chunks(IN_FLIGHT) {
            let mut outputs = 0;
            for burst in some {
                let lease = self.reader.poll(*burst).unwrap();
                assert_eq!(lease.len(), *burst);
                let mut slots = self.sink.reserve(self.kernel.outputs(*burst));
                self.stream.begin()?;
                let submitted = self
                    .kernel
                    .run(&lease, &mut slots, Stream::Cuda(&self.stream))?;
                lease.retire(Completion::Event(self.stream.record_event()?));
                outputs += slots.submit() as u64;
                consumed += submitted.consumed;
                failed += submitted.failed;
            }
            self.stream.synchronize()?;
            let mut done = 0;
            self.reader.reap(|_| done += 1);
            assert_eq!(done, some.len());
            self.sink.publish(outputs);
        }
        Ok((consumed, failed))
    }

    /// Removes all published frames from the output ring and returns them.
    fn take(&mut self) -> Vec<(FrameMeta, Vec<u64>)> {
        let base = self.regions[1].address().as_ptr().addr() as u64;
        let memory = self.regions[1].memory().unwrap();
        let Some(lease) = self.results.poll(usize::MAX) else {
            return Vec::new();
        };
        let slice = lease.slice().unwrap();
        (0..lease.len())
            .map(|i| {
                let meta = *lease.frame(i).meta();
                let mut bytes = vec![0; meta.length];
                let at = usize::try_from(slice.address(i) - base).unwrap();
                memory.read(at, &mut bytes).unwrap();
                let words = bytes.as_chunks().0.iter();
                (meta, words.map(|word| u64::from_le_bytes(*word)).collect())
            })
            .collect()
    }
}

/// Runs 200 frames through `keys` with rings of 64 slots, and checks all outputs.
fn reports_the_frame(device: &'static Device, keys: &FileKernel, directory: &Path) {
    let mut bench = Bench::new(device, keys, directory, 64);
    // The sizes have no common factor with the number of slots, so that bursts wrap around the end of the ring.
    let sizes = [5, 3, 7, 1, 4, 6, 2, 7, 5, 3];
    let (mut next, mut came) = (0, 0);
    let mut totals = (0, 0);
    while next < 200 {
        let bursts = &sizes[..IN_FLIGHT];
        let frames = bursts.iter().sum::<usize>() as u64;
        bench.publish(next, frames);
        let (consumed, failed) = bench.run(bursts).unwrap_or_else(|error| panic!("{error}"));
        totals = (totals.0 + consumed, totals.1 + failed);
        next += frames;
        for (meta, words) in bench.take() {
            // The short frame has no output.
            came += u64::from(came == 11);
            expect(came, keys, meta, &words);
            came += 1;
        }
    }
    assert_eq!((came, totals), (next, (next - 1, 1)));
    let occupancy = bench.kernel.occupancy().unwrap();
    assert!(occupancy > 0.0 && occupancy <= 1.0, "{occupancy}");
}

/// Compares output `i` with the expected output of `REPORT` for frame `i`.
fn expect(i: u64, keys: &FileKernel, got: FrameMeta, words: &[u64]) {
    let (meta, bitmap, samples) = frame(i);
    let length = 8 * (VALUES + POINTS);
    let wanted = FrameMeta {
        length,
        packets_per_frame: 0,
        arrived: 0,
        ..meta
    };
    assert_eq!(got, wanted, "frame {i}");
    let (blocks, threads) = (u64::from(keys.blocks.unwrap()), u64::from(keys.threads));
    // For code that daq did not compile, only the maximum number of threads is known.
    let declared = if Path::new(&keys.file).extension() == Some("cu".as_ref()) {
        threads
    } else {
        1024
    };
    let values = [
        meta.sequence,
        meta.timestamp.ns,
        meta.timestamp.clock as u64,
        meta.epoch.into(),
        meta.flags.0.into(),
        meta.is_incomplete().into(),
        meta.packets_per_frame.into(),
        meta.arrived.into(),
        bitmap[0],
        bitmap[1],
        0,
        2 * POINTS as u64,
        1,
        POINTS as u64,
        blocks,
        threads,
        blocks * threads,
        length as u64,
        1,
        (VALUES + POINTS) as u64,
        7,
        1,
        25,
        POINTS as u64,
        declared,
    ];
    assert_eq!(&words[..values.len()], values, "frame {i}");
    let taps = [1.0, -2.0, 300.0, 4.0];
    for (k, x) in samples.iter().enumerate() {
        let got = f64::from_bits(words[VALUES + k]);
        assert_eq!(
            got,
            2.5 * f64::from(*x) + taps[k % 4],
            "frame {i}, point {k}"
        );
    }
}

#[test]
fn source_file_is_compiled_with_all_parameters_and_facts() {
    let (Some(device), Some(_)) = (device(), compiler()) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("report.cu"), REPORT).unwrap();
    reports_the_frame(device, &reporting("report.cu"), directory.path());
    let wide = FileKernel {
        blocks: Some(1),
        threads: 1024,
        shared: Some(daq_core::units::ByteSize(64 << 10)),
        ..reporting("report.cu")
    };
    reports_the_frame(device, &wide, directory.path());
}

/// Compiles `text` to the file `path`, as a tool outside of daq does.
fn outside(compiler: Compiler, text: &str, target: Target, path: &Path) {
    let whole = format!("#include \"daq.cuh\"\n{text}");
    let source = Source {
        name: "report.cu",
        text: &whole,
        headers: &[("daq.cuh", HEADER)],
    };
    let image = compiler.compile(&source, target, &["--std=c++17"]).unwrap();
    std::fs::write(path, image).unwrap();
}

/// Returns whether the driver is too old for the compiler's PTX.
fn is_too_new(built: Result<Box<dyn Kernel>, KernelError>) -> bool {
    match built {
        Err(KernelError::Cuda(error)) if error.code == 222 => {
            assert!(error.to_string().contains("update the driver"), "{error}");
            eprintln!("skipped: {error}");
            true
        }
        _ => false,
    }
}

#[test]
fn precompiled_files_equal_source_file() {
    let (Some(device), Some(compiler)) = (device(), compiler()) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let (major, minor) = device.attributes().capability;
    for (file, target) in [
        ("report.cubin", Target::Cubin(major, minor)),
        ("report.ptx", Target::Ptx(8, 0)),
    ] {
        outside(
            compiler,
            &format!("{REPORT}{MACROS}"),
            target,
            &directory.path().join(file),
        );
        if is_too_new(build(&reporting(file), directory.path(), &input())) {
            continue;
        }
        reports_the_frame(device, &reporting(file), directory.path());
        let again = FileKernel {
            entry: Some("again".to_owned()),
            ..reporting(file)
        };
        reports_the_frame(device, &again, directory.path());
    }
}

#[test]
fn impossible_file_kernel_is_rejected_with_fix() {
    let (Some(device), Some(compiler)) = (device(), compiler()) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let (major, minor) = device.attributes().capability;
    let target = Target::Cubin(major, minor);
    std::fs::write(directory.path().join("report.cu"), REPORT).unwrap();
    for (file, text) in [
        ("report.cubin", format!("{REPORT}{MACROS}")),
        (
            "bare.cubin",
            "extern \"C\" __global__ void daq_burst() {}".to_owned(),
        ),
    ] {
        outside(compiler, &text, target, &directory.path().join(file));
    }
    let refused = |keys: &FileKernel| match build(keys, directory.path(), &input()) {
        Err(KernelError::Refused(why)) => why,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("{keys:?} was built"),
    };
    let with = |file: &str, key: &str, value: Value| FileKernel {
        params: [(key.to_owned(), value)].into(),
        ..reporting(file)
    };
    for (keys, says) in [
        (
            with("report.cu", "level", Value::Integer(256)),
            "`params.level` = 256: member `level` of `struct Params` in report.cu is unsigned char; the value is out of range; write 0 to 255",
        ),
        (
            with("report.cu", "taps", Value::Array(Vec::new())),
            "write 4",
        ),
        (
            with("report.cu", "gian", Value::Float(1.0)),
            "did you mean `gain`?",
        ),
        (
            with("report.cubin", "level", Value::Integer(1)),
            "DAQ_PARAM(Params, level)",
        ),
        (reporting("bare.cubin"), "DAQ_KERNEL(on_frame, Params)"),
        (
            FileKernel {
                entry: Some("nothing".to_owned()),
                ..reporting("report.cubin")
            },
            "DAQ_ENTRY(nothing, FUNCTION)",
        ),
        (
            FileKernel {
                shared: Some(daq_core::units::ByteSize(1 << 20)),
                ..reporting("report.cu")
            },
            "reduce `shared`",
        ),
    ] {
        let why = refused(&keys);
        assert!(why.contains(says), "{why}");
    }
}

/// Checks that the documentation's example removes samples that are too large, and their neighbours.
#[test]
fn example_kernel_clips_samples() {
    let (Some(device), Some(_)) = (device(), compiler()) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("clip.cu"), CLIP).unwrap();
    let keys = FileKernel {
        params: [
            ("limit".to_owned(), Value::Float(0.25)),
            ("guard".to_owned(), Value::Integer(2)),
            ("complex".to_owned(), Value::Boolean(false)),
        ]
        .into(),
        frame: FrameKeys {
            scalar: Some(Scalar::Float32),
            ..FrameKeys::default()
        },
        ..FileKernel::new("clip.cu")
    };
    let mut bench = Bench::new(device, &keys, directory.path(), 8);
    bench.publish(0, 3);
    bench.run(&[3]).unwrap_or_else(|error| panic!("{error}"));
    for (i, (_, words)) in (0..).zip(bench.take()) {
        let (_, _, samples) = frame(i);
        let got = words.iter().flat_map(|word| {
            [0, 32].map(|shift| f32::from_bits((word >> shift & 0xffff_ffff).try_into().unwrap()))
        });
        let mut kept = 0;
        for (k, got) in got.enumerate() {
            let near = &samples[k.saturating_sub(2)..(k + 3).min(POINTS)];
            let keep = near.iter().all(|x| x.unsigned_abs() <= 8192);
            kept += usize::from(keep);
            let wanted = if keep {
                f32::from(samples[k]) / 32_768.0
            } else {
                0.0
            };
            assert_eq!(got, wanted, "frame {i}, point {k}");
        }
        assert!(kept > 100 && kept < POINTS - 100, "{kept} samples are kept");
    }
}

/// Environment variable that is set only in a child process. The child process causes a fault and reports its effect.
const FAULT: &str = "DAQ_TEST_FAULT";

#[test]
fn gpu_fault_is_named_and_gpu_not_used_again() {
    let (Some(device), Some(_)) = (device(), compiler()) else {
        return;
    };
    if std::env::var_os(FAULT).is_none() {
        let name = "gpu_fault_is_named_and_gpu_not_used_again";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(FAULT, "1")
            .output()
            .unwrap();
        let stdout = String::from_utf8_lossy(&child.stdout);
        assert_contains!(stdout =>
            "fault: ", "this process can no longer use the GPU";
            "{}", String::from_utf8_lossy(&child.stderr)
        );
        // The fault must affect only the child process.
        device.synchronize().unwrap();
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let text = "__device__ void on_frame(const daq::Frame& in, daq::Out& out, const daq::NoParams&) {\n    \
                out.as<char>()[1ull << 45] = 1;\n}\n";
    std::fs::write(directory.path().join("bad.cu"), text).unwrap();
    let mut bench = Bench::new(device, &FileKernel::new("bad.cu"), directory.path(), 8);
    bench.publish(0, 2);
    let error = match bench.run(&[2]) {
        Err(KernelError::Cuda(error)) => error,
        other => panic!("{other:?}"),
    };
    assert!(error.is_sticky() && !error.name.is_empty(), "{error:?}");
    assert!(error.remedy().contains("compute-sanitizer"), "{error}");
    let later: CudaError = device.synchronize().unwrap_err();
    assert!(later.is_sticky(), "{later}");
    println!("fault: {error}");
    drop(directory);
    // The destructors cannot free memory of a GPU context that has failed.
    std::process::exit(0);
}
