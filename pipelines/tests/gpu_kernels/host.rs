//! Runs the same tests without a GPU: device code is compiled for the CPU, and a library replaces the CUDA driver.

use daq_testkit::assert_contains;
use std::path::Path;
use std::process::Command;

const FILES: [(&str, &str); 24] = [
    ("driver.cpp", include_str!("../cuda_on_host/driver.cpp")),
    ("block.h", include_str!("../cuda_on_host/block.h")),
    ("device.h", include_str!("../cuda_on_host/device.h")),
    ("tensor.h", include_str!("../cuda_on_host/tensor.h")),
    ("samples.cuh", include_str!("../../src/kernels/samples.cuh")),
    ("spectra.cuh", include_str!("../../src/kernels/spectra.cuh")),
    (
        "parameters.cuh",
        include_str!("../../generated/parameters.cuh"),
    ),
    (
        "quantise.cuh",
        include_str!("../../src/kernels/quantise.cuh"),
    ),
    (
        "channelize_fft.cuh",
        include_str!("../../src/kernels/channelize_fft.cuh"),
    ),
    (
        "channelize_filter.cuh",
        include_str!("../../src/kernels/channelize_filter.cuh"),
    ),
    (
        "channelize.cu",
        include_str!("../../src/kernels/channelize.cu"),
    ),
    ("beamform.cu", include_str!("../../src/kernels/beamform.cu")),
    (
        "beamform.cuh",
        include_str!("../../src/kernels/beamform.cuh"),
    ),
    (
        "beamform_tensor.cu",
        include_str!("../../src/kernels/beamform_tensor.cu"),
    ),
    (
        "correlate.cu",
        include_str!("../../src/kernels/correlate.cu"),
    ),
    (
        "correlate.cuh",
        include_str!("../../src/kernels/correlate.cuh"),
    ),
    (
        "correlate_tensor.cu",
        include_str!("../../src/kernels/correlate_tensor.cu"),
    ),
    ("reorder.cu", include_str!("../../src/kernels/reorder.cu")),
    ("tensor.cuh", include_str!("../../src/kernels/tensor.cuh")),
    ("convert.cu", include_str!("../../src/kernels/convert.cu")),
    (
        "power_spectrum.cu",
        include_str!("../../src/kernels/power_spectrum.cu"),
    ),
    (
        "power_of_two.cu",
        include_str!("../../src/kernels/power_of_two.cu"),
    ),
    ("select.cu", include_str!("../../src/kernels/select.cu")),
    ("stats.cu", include_str!("../../src/kernels/stats.cu")),
];

#[test]
fn kernels_compiled_for_cpu_pass() {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in FILES {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    let compiled = Command::new("g++")
        .current_dir(directory.path())
        // Round each operation separately, as the CPU implementation does.
        .args(["-std=c++20", "-O2", "-ffp-contract=off", "-fPIC", "-shared"])
        // Threads of a block are switched by longjmp, which fortified builds reject as stack corruption.
        .args(["-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=0"])
        // Ignore directives for other compilers.
        .args(["-Wno-unknown-pragmas", "driver.cpp", "-o", "libcuda.so"])
        .output();
    let compiled = match compiled {
        Ok(compiled) => compiled,
        Err(error) => {
            eprintln!("skipped: g++ cannot be started ({error}); Debian has it as g++");
            return;
        }
    };
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let library = directory.path();
    let all = [
        "--skip",
        "kernels_compiled_for_cpu_pass",
        "--skip",
        "throughput",
    ];
    // Small devices have no tensor cores, use other code for these transforms, and add more spectra per block.
    let some = [
        "channels_of_every_size",
        "spectra_of_every_radix",
        "many_spectra",
        "spectra_of_long",
        "visibilities",
        "beams",
    ];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            run_tests(library, "small", &some);
            // Large transforms have other code for this size of shared memory.
            run_tests(library, "medium", &["largest_number_of_channels"]);
        });
        run_tests(library, "large", &all);
    });
}

/// Runs tests of this program with the library in `directory` as the CUDA driver, on a simulated device of one size.
fn run_tests(directory: &Path, device: &str, tests: &[&str]) {
    let output = Command::new(std::env::current_exe().unwrap())
        .arg("--nocapture")
        .args(tests)
        .env("LD_LIBRARY_PATH", directory)
        .env("CUDA_ON_HOST", device)
        .output()
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success(),
        "{device} {}\n{out}{err}",
        output.status
    );
    assert_contains!(err => !"libcuda", !"no GPU"; "the library was not loaded");
    assert_contains!(out => !"running 0 tests");
}
