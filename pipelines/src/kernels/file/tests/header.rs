//! Tests the header's arithmetic, compiled for the host. Without a C++ compiler, prints the reason and skips the tests.

use super::HEADER;
use std::process::Command;

/// Processes four frames of a burst that wraps around the end of both rings, with one thread per frame.
const PROGRAM: &str = r#"
#include <cassert>
#define __device__
#define __host__
#define __global__
#define __constant__
#define __launch_bounds__(threads)
struct Dim { unsigned x, y, z; };
static Dim blockIdx, gridDim, threadIdx, blockDim;
static void __syncthreads() {}
#include "daq.cuh"

struct Params { float gain = 2; int taps[4] = {1, 2, 3, 4}; };
static const void* from[4];
static const void* to[4];

static void on_frame(const daq::Frame& in, daq::Out& out, const Params& p) {
    const unsigned i = in.sequence() - 100;
    from[i] = in.as<const short>();
    to[i] = out.as<float>();
    assert(in.timestamp() == 1000 + i && in.clock() == daq::Clock::simulated && in.epoch() == 7);
    assert(in.flags() == (daq::INCOMPLETE | daq::TRUNCATED) && in.incomplete());
    assert(in.packets_per_frame() == 70 && in.arrived() == 68);
    assert(in.present(1) && !in.present(33) && in.present(63) && !in.present(68) && in.present(69) && !in.present(70));
    assert(in.length == 10 && in.channels == 11 && in.points == 12 && in.count<short>() == 5);
    assert(out.capacity == 13 && out.channels == 14 && out.points == 15 && out.count<float>() == 3);
    assert(in.block == 2 && in.blocks == 3 && in.thread == 5 && in.threads == 32);
    assert(in.index() == 2 * 32 + 5 && in.stride() == 3 * 32);
    assert(p.gain == 2);
    assert(!in.has_field(0) && in.field(0) == 0 && in.has_field(1) && in.field(1) == ~0ull - i && !in.has_field(2));
    assert(!in.has_field(40));
}
DAQ_KERNEL(on_frame, Params)
DAQ_PARAM(Params, taps)

int main() {
    daq::Size records[4 * 9];
    for (unsigned i = 0; i < 4; i++) {
        const daq::Size record[9] = {100 + i, 1000 + i, 7 | 5ull << 32, 70 | 68ull << 32, 4 | 2ull << 32 | 7ull << 40,
                                     ~(1ull << 33), 0b101111, 0, ~0ull - i};
        for (unsigned k = 0; k < 9; k++) records[9 * i + k] = record[k];
    }
    alignas(64) static unsigned char input[5 * 64], output[4 * 128];
    gridDim = {3, 4, 1}, threadIdx = {5, 0, 0}, blockDim = {32, 1, 1};
    for (unsigned i = 0; i < 4; i++) {
        blockIdx = {2, i, 0};
        daq_burst(input, 64, 5, 3, output, 128, 4, 1, records, 9, 10, 11, 12, 13, 14, 15);
    }
    for (unsigned i = 0; i < 4; i++) assert(from[i] == input + (3 + i) % 5 * 64 && to[i] == output + (1 + i) % 4 * 128);
    assert(daq_param_taps.offset == &Params::taps && daq_param_taps.bytes == 4 && daq_param_taps.count == 4);
    assert(daq_param_taps.kind == 1 && daq_header == 2);
}
"#;

#[test]
fn header_struct_offsets_equal_host_layout() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("daq.cuh"), HEADER).unwrap();
    std::fs::write(path("host.cpp"), PROGRAM).unwrap();
    let compiled = Command::new("c++")
        .args(["-std=c++17", "-UNDEBUG", "-o"])
        .args([path("host"), path("host.cpp")])
        .output();
    let compiled = match compiled {
        Ok(compiled) => compiled,
        Err(error) => {
            eprintln!("skipped: no C++ compiler: c++: {error}");
            return;
        }
    };
    let output = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{output}");
    let ran = Command::new(path("host")).output().unwrap();
    let output = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{output}");
}
