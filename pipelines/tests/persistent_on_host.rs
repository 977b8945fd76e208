//! Tests the device code of persistent kernels, compiled for the CPU. The same source must give the same bytes with
//! both dispatch methods, in every order in which blocks, threads and the host run.

use std::path::Path;
use std::process::Command;

const FILES: [(&str, &str); 4] = [
    (
        "persistent.cpp",
        include_str!("cuda_on_host/persistent.cpp"),
    ),
    ("block.h", include_str!("cuda_on_host/block.h")),
    ("device.h", include_str!("cuda_on_host/device.h")),
    ("daq.cuh", include_str!("../src/kernels/daq.cuh")),
];

/// The text that daq compiles for a user's file, with both entry points.
const UNIT: &str = "#include \"daq.cuh\"\n#include \"user.cu\"\n\
                    namespace daq_otherwise { using Params = daq::NoParams; }\nusing namespace daq_otherwise;\n\
                    DAQ_DETAIL_PARAMS(::Params)\nDAQ_DETAIL_ENTRY(daq_burst, ::on_frame)\n\
                    DAQ_DETAIL_PERSISTENT(daq_persistent, ::on_frame)\n";

/// A kernel that writes every number separately, and all metadata of the frame.
const TELL: &str = r"
struct Params {
    short gain = 3;
};
__device__ void on_frame(const daq::Frame& in, daq::Out& out, const Params& p) {
    daq::Size bits = 0;
    for (unsigned i = 0; i < in.packets_per_frame(); i++) bits += in.present(i) * (i + 1);
    const daq::Size values[] = {in.sequence(), in.timestamp(), in.epoch(), in.flags(), in.packets_per_frame(), in.arrived(),
                              daq::Size(in.clock()), bits, in.length, in.channels, in.points, in.blocks, in.threads,
                              in.stride(), out.capacity, out.channels, out.points};
    const daq::Size count = sizeof(values) / sizeof(values[0]);
    const short* x = in.as<const short>();
    daq::Size* y = out.as<daq::Size>();
    for (daq::Size i = in.index(); i < out.points; i += in.stride())
        y[i] = i < count ? values[i] : i < in.points ? daq::Size(p.gain * x[i]) : 0;
}
";

/// A kernel in which each thread needs data that the other threads of its block have read. No barrier follows the last
/// use of shared memory.
const NEIGHBOURS: &str = r"
__device__ void on_frame(const daq::Frame& in, daq::Out& out, const daq::NoParams&) {
    __shared__ unsigned read[DAQ_THREADS];
    __shared__ unsigned long long sum;
    const unsigned short* x = in.as<const unsigned short>();
    unsigned mine = 0;
    for (daq::Size i = in.index(); i < in.points; i += in.stride()) mine += x[i];
    read[in.thread] = mine;
    __syncthreads();
    if (in.thread == 0) {
        sum = in.sequence();
        for (unsigned i = 0; i < in.threads; i++) sum += read[i];
    }
    __syncthreads();
    for (daq::Size i = in.index(); i < out.points; i += in.stride())
        out.as<unsigned long long>()[i] = sum * (i + 1) + read[(in.thread + 1) % in.threads];
}
";

/// A kernel whose threads need different times, and in which most threads have no work.
const UNEVEN: &str = r"
__device__ void on_frame(const daq::Frame& in, daq::Out& out, const daq::NoParams&) {
    const unsigned short* x = in.as<const unsigned short>();
    if (in.thread % 5 == in.sequence() % 5) {
        unsigned long long state = in.sequence() + in.index();
        for (unsigned i = 0; i < x[in.thread] % 100; i++) state = state * 6364136223846793005ull + 1442695040888963407ull;
        out.as<unsigned long long>()[in.index() % out.points] = state;
    }
    __syncthreads();
    for (daq::Size i = in.index(); i < out.points; i += in.stride())
        if (i >= in.stride() || in.thread % 5 != in.sequence() % 5) out.as<unsigned long long>()[i] = x[i % in.points];
}
";

/// Numbers of concurrent frames, blocks, threads, input slots, output slots, records (a power of two) and frames.
const SHAPES: [[u32; 7]; 9] = [
    [1, 1, 1, 1, 1, 1, 20],
    [1, 1, 32, 4, 4, 4, 2000],
    [1, 3, 64, 8, 5, 8, 1000],
    [3, 1, 32, 6, 8, 8, 1000],
    [2, 2, 96, 7, 16, 16, 1000],
    // More concurrent frames than frames in flight, so some blocks never work.
    [5, 2, 32, 2, 3, 4, 300],
    [4, 1, 1, 64, 64, 64, 5000],
    [7, 1, 32, 3, 3, 4, 5],
    [2, 2, 32, 4, 4, 4, 0],
];

/// Compiles the test program with a user's source. If the compiler or a required option is not available, prints the
/// reason and returns `None`.
fn compile(directory: &Path, user: &str, options: &[&str]) -> Option<()> {
    for (name, text) in FILES.iter().chain(&[("unit.cu", UNIT), ("user.cu", user)]) {
        std::fs::write(directory.join(name), text).unwrap();
    }
    let compiled = Command::new("g++")
        .current_dir(directory)
        .args([
            "-std=c++20",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pthread",
        ])
        // Threads of a block are switched by longjmp, which fortified builds reject as stack corruption.
        .args([
            "-U_FORTIFY_SOURCE",
            "-D_FORTIFY_SOURCE=0",
            "-DDAQ_UNIT",
            "-DDAQ_THREADS=96",
        ])
        // Macros that a user's file does not need, and directives for another compiler.
        .args(["-Wno-unused", "-Wno-unknown-pragmas"])
        .args(options)
        .args(["persistent.cpp", "-o", "persistent"])
        .output();
    let compiled = match compiled {
        Ok(compiled) => compiled,
        Err(error) => {
            eprintln!("skipped: g++ cannot be started ({error}); Debian has it as g++");
            return None;
        }
    };
    let stderr = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{stderr}");
    Some(())
}

fn run(directory: &Path, shape: &[u32; 7], seed: u32) {
    let output = Command::new(directory.join("persistent"))
        .args(shape.iter().chain([&seed]).map(u32::to_string))
        .output()
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success(),
        "{shape:?} {seed}: {}\n{err}",
        output.status
    );
    assert_eq!(out, format!("{} frames\n", shape[6]));
}

fn is_the_same(user: &str) {
    let directory = tempfile::tempdir().unwrap();
    if compile(directory.path(), user, &[]).is_none() {
        return;
    }
    for (shape, seed) in SHAPES.iter().zip(1..) {
        run(directory.path(), shape, seed);
    }
}

#[test]
fn kernel_arguments_equal_under_both_dispatches() {
    is_the_same(TELL);
}

#[test]
fn shared_memory_is_separate_per_frame_under_both_dispatches() {
    is_the_same(NEIGHBOURS);
}

#[test]
fn threads_of_different_duration_finish_under_both_dispatches() {
    is_the_same(UNEVEN);
}

/// The host and the kernel exchange data only through the doorbell and credits.
#[test]
fn frame_is_not_read_before_publication() {
    const SANITIZER: [&str; 3] = ["-fsanitize=thread", "-DSANITIZED", "-g"];
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("empty.cpp");
    std::fs::write(&file, "int main() {}").unwrap();
    let program = directory.path().join("empty");
    let compiled = Command::new("g++")
        .args(["-fsanitize=thread", "-o"])
        .args([&program, &file])
        .output();
    let works = compiled.is_ok_and(|compiled| compiled.status.success())
        && Command::new(&program)
            .output()
            .is_ok_and(|output| output.status.success());
    if !works {
        eprintln!("skipped: the thread sanitizer of g++ does not work on this machine");
        return;
    }
    compile(directory.path(), TELL, &SANITIZER).unwrap();
    for shape in [
        [1, 1, 1, 4, 4, 4, 200],
        [2, 2, 1, 8, 5, 8, 200],
        [3, 1, 1, 3, 7, 4, 200],
    ] {
        run(directory.path(), &shape, 1);
    }
}
