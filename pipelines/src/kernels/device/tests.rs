use super::Code;
use crate::kernels::channelize::cuda::known_values;
use crate::kernels::parameters::tests::header;
use daq_core::gpu::driver::{Compiler, Source, Target};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write as _;
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
/// Committed code and source text of each file that is compiled once.
const SOURCES: [(&Code, &str); 9] = [
    (&super::CONVERT, include_str!("../convert.cu")),
    (&super::POWER_SPECTRUM, include_str!("../power_spectrum.cu")),
    (&super::CORRELATE, include_str!("../correlate.cu")),
    (&super::BEAMFORM, include_str!("../beamform.cu")),
    (&super::REORDER, include_str!("../reorder.cu")),
    (&super::SELECT, include_str!("../select.cu")),
    (&super::STATS, include_str!("../stats.cu")),
    (
        &super::ECHO,
        include_str!("../../../diagnostics/src/fixture/echo.cu"),
    ),
    (
        &super::VERIFICATION,
        include_str!("../../runtime/dma/verification.cu"),
    ),
];

/// The same for files that use tensor cores.
const TENSOR_SOURCES: [(&Code, &str); 2] = [
    (
        &super::CORRELATE_TENSOR,
        include_str!("../correlate_tensor.cu"),
    ),
    (
        &super::BEAMFORM_TENSOR,
        include_str!("../beamform_tensor.cu"),
    ),
];

/// Returns all code, each with its source text, its size if there is code for several sizes, and its target.
fn sources() -> impl Iterator<Item = (&'static Code, &'static str, Option<usize>, Target)> {
    let once = SOURCES.map(|(code, text)| (code, text, None, TARGET));
    let tensor = TENSOR_SOURCES.map(|(code, text)| (code, text, None, TENSOR_TARGET));
    let of_sizes = |codes: &'static [(usize, Code)], text| {
        let codes = codes.iter();
        codes.map(move |(size, code)| (code, text, Some(*size), TARGET))
    };
    once.into_iter()
        .chain(tensor)
        .chain(of_sizes(&super::POWERS_OF_TWO, POWER_OF_TWO))
        .chain(of_sizes(&super::CHANNELIZE, CHANNELIZE))
}

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
    for (code, text, size, target) in sources() {
        let name = code.name();
        let file = format!("{name}.cu");
        let source = Source {
            name: &file,
            text,
            headers: &headers,
        };
        let option = size.map(|size| format!("-DONLY_SIZE={size}"));
        let options: Vec<&str> = OPTIONS.into_iter().chain(option.as_deref()).collect();
        let mut made = compiler
            .compile(&source, target, &options)
            .unwrap_or_else(|error| panic!("{error}"));
        while made.last() == Some(&0) {
            made.pop();
        }
        if made == code.ptx().as_bytes() {
            continue;
        }
        assert!(
            std::env::var_os("DAQ_UPDATE").is_some(),
            "{name}.ptx.gz does not match {file}; run the tests once with DAQ_UPDATE=1"
        );
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("generated/{name}.ptx.gz"));
        let file = std::fs::File::create(path).unwrap();
        let mut compressed = GzEncoder::new(file, Compression::best());
        compressed.write_all(&made).unwrap();
        compressed.finish().unwrap();
    }
}

/// Beside a persistent kernel, the first launch of code that needs such memory would wait for the end of that kernel.
#[test]
fn built_in_code_needs_no_memory_of_the_driver() {
    for (code, ..) in sources() {
        let text = code.ptx();
        assert!(text.contains(".visible .entry"), "{}", code.name());
        for needs in [".local", "vprintf", "malloc"] {
            assert!(!text.contains(needs), "{}: {needs}", code.name());
        }
    }
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("generated");
    let files = directory.read_dir().unwrap();
    let is_code = |name: &str| name.ends_with(".ptx.gz");
    let files = files.filter(|file| is_code(file.as_ref().unwrap().file_name().to_str().unwrap()));
    assert_eq!(files.count(), sources().count());
}

/// The driver's compiler would reject a name that was not replaced, but only on a GPU.
#[test]
fn known_values_replace_all_names() {
    for (size, code) in &super::CHANNELIZE {
        let known = known_values([1; 4]);
        let ptx = code.ptx();
        for (name, _) in known {
            assert!(ptx.contains(&format!(", {name};")), "{size}: {name}");
        }
        assert!(!code.with_values(&known).contains("DAQ_"), "{size}");
    }
}
