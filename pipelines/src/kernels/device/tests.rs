use crate::kernels::channelize::cuda::known_values;
use crate::kernels::parameters::tests::header;
use crate::sys::device_code::with_values;
use daq_core::gpu::driver::{Compiler, Source, Target};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Version of the compiler that generates the PTX. Drivers of version 525 and newer can load this PTX for Volta GPUs
/// and newer.
const VERSION: (i32, i32) = (12, 0);
const TARGET: Target = Target::Ptx(7, 0);
/// The first compute capability with the instructions for tensor cores that the device code uses.
const TENSOR_TARGET: Target = Target::Ptx(8, 0);
const OPTIONS: [&str; 1] = ["--std=c++17"];

const SAMPLES: &str = include_str!("../samples.cuh");
const SPECTRA: &str = include_str!("../spectra.cuh");
const QUANTISE: &str = include_str!("../quantise.cuh");
const POWER_OF_TWO: &str = include_str!("../power_of_two.cu");
const CHANNELIZE: &str = include_str!("../channelize.cu");
/// The committed header with the parameters.
const PARAMETERS: &str = include_str!("../../../generated/parameters.cuh");
/// Name, source text and committed PTX of each file that is compiled once.
const SOURCES: [(&str, &str, &[u8]); 9] = [
    ("convert", include_str!("../convert.cu"), super::CONVERT.ptx),
    (
        "power_spectrum",
        include_str!("../power_spectrum.cu"),
        super::POWER_SPECTRUM.ptx,
    ),
    (
        "correlate",
        include_str!("../correlate.cu"),
        super::CORRELATE.ptx,
    ),
    (
        "beamform",
        include_str!("../beamform.cu"),
        super::BEAMFORM.ptx,
    ),
    ("reorder", include_str!("../reorder.cu"), super::REORDER.ptx),
    ("select", include_str!("../select.cu"), super::SELECT.ptx),
    ("stats", include_str!("../stats.cu"), super::STATS.ptx),
    (
        "echo",
        include_str!("../../../diagnostics/src/bench/echo.cu"),
        include_bytes!("../../../generated/echo.ptx"),
    ),
    (
        "verification",
        include_str!("../../runtime/dma/verification.cu"),
        include_bytes!("../../../generated/verification.ptx"),
    ),
];

/// The same for files that use tensor cores.
const TENSOR_SOURCES: [(&str, &str, &[u8]); 2] = [
    (
        "correlate_tensor",
        include_str!("../correlate_tensor.cu"),
        super::CORRELATE_TENSOR.ptx,
    ),
    (
        "beamform_tensor",
        include_str!("../beamform_tensor.cu"),
        super::BEAMFORM_TENSOR.ptx,
    ),
];

/// Returns the path of the compiler in the tests' Python environment.
fn in_python() -> Option<PathBuf> {
    let python = PathBuf::from(std::env::var_os("DAQ_TEST_PYTHON")?);
    let libraries = python.parent()?.parent()?.join("lib");
    let versions = std::fs::read_dir(libraries).ok()?;
    versions
        .flatten()
        .map(|version| {
            version
                .path()
                .join("site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
        })
        .find(|library| library.is_file())
}

/// Compares the committed header with the structures; `DAQ_UPDATE=1` rewrites it.
#[test]
fn generated_header_is_current() {
    let header = header();
    if std::env::var_os("DAQ_UPDATE").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("generated/parameters.cuh");
        std::fs::write(path, &header).unwrap();
    } else {
        assert!(
            header == PARAMETERS,
            "parameters.cuh does not match parameters.rs; run the tests once with DAQ_UPDATE=1"
        );
    }
}

/// Compares the committed PTX with the compiled sources; `DAQ_UPDATE=1` rewrites it.
#[test]
fn generated_code_is_current() {
    if std::env::var_os("DAQ_NVRTC").is_none()
        && let Some(library) = in_python()
    {
        // The library is searched once per process, so the test runs again in a child with DAQ_NVRTC set.
        let name = concat!(module_path!(), "::generated_code_is_current");
        // The test harness names tests without the name of their crate.
        let (_, name) = name.split_once("::").unwrap();
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env("DAQ_NVRTC", library)
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let compiler = match Compiler::find() {
        Ok(compiler) if compiler.version() == VERSION => compiler,
        Ok(compiler) => {
            let ((major, minor), (wanted, point)) = (compiler.version(), VERSION);
            eprintln!(
                "skipped: this is libnvrtc {major}.{minor}, but the PTX files were compiled with {wanted}.{point}"
            );
            return;
        }
        Err(error) => {
            eprintln!("skipped: {error}");
            return;
        }
    };
    let parameters = header();
    let headers = [
        ("samples.cuh", SAMPLES),
        ("spectra.cuh", SPECTRA),
        ("quantise.cuh", QUANTISE),
        ("channelize_fft.cuh", include_str!("../channelize_fft.cuh")),
        (
            "channelize_filter.cuh",
            include_str!("../channelize_filter.cuh"),
        ),
        ("tensor.cuh", include_str!("../tensor.cuh")),
        ("correlate.cuh", include_str!("../correlate.cuh")),
        ("beamform.cuh", include_str!("../beamform.cuh")),
        ("parameters.cuh", &parameters),
    ];
    let once = SOURCES.map(|(name, text, ptx)| (name, text, None, ptx, TARGET));
    let tensor = TENSOR_SOURCES.map(|(name, text, ptx)| (name, text, None, ptx, TENSOR_TARGET));
    let powers = super::POWERS_OF_TWO
        .iter()
        .map(|of_size| (POWER_OF_TWO, of_size));
    let channelize = super::CHANNELIZE
        .iter()
        .map(|of_size| (CHANNELIZE, of_size));
    let powers = powers.chain(channelize).map(|(text, (size, code))| {
        let option = Some(format!("-DONLY_SIZE={size}"));
        (code.name, text, option, code.ptx, TARGET)
    });
    for (name, text, option, committed, target) in once.into_iter().chain(tensor).chain(powers) {
        let file = format!("{name}.cu");
        let source = Source {
            name: &file,
            text,
            headers: &headers,
        };
        let options: Vec<&str> = OPTIONS.into_iter().chain(option.as_deref()).collect();
        let mut made = compiler
            .compile(&source, target, &options)
            .unwrap_or_else(|error| panic!("{error}"));
        while made.last() == Some(&0) {
            made.pop();
        }
        if std::env::var_os("DAQ_UPDATE").is_some() {
            let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("generated");
            std::fs::write(directory.join(format!("{name}.ptx")), &made).unwrap();
        } else {
            assert!(
                made == committed,
                "{name}.ptx does not match {file}; run the tests once with DAQ_UPDATE=1"
            );
        }
    }
}

/// Beside a persistent kernel, the first launch of code that needs such memory would wait for the end of that kernel.
#[test]
fn built_in_code_needs_no_memory_of_the_driver() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("generated");
    let mut count = 0;
    for entry in directory.read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "ptx") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for needs in [".local", "vprintf", "malloc"] {
            assert!(!text.contains(needs), "{}: {needs}", path.display());
        }
        count += 1;
    }
    assert!(count > 20, "{count}");
}

/// The driver's compiler would reject a name that was not replaced, but only on a GPU.
#[test]
fn known_values_replace_all_names() {
    for (size, code) in &super::CHANNELIZE {
        let known = known_values([1; 4]);
        let ptx = with_values(code.ptx, &[]);
        for (name, _) in known {
            assert!(ptx.contains(&format!(", {name};")), "{size}: {name}");
        }
        assert!(!with_values(code.ptx, &known).contains("DAQ_"), "{size}");
    }
}
