//! A machine with simulated GPUs: the driver library of `daq-simulated-cuda` in the place of NVIDIA's, and that of
//! `daq-simulated-gdr` in the place of GDRCopy's.

use super::Daq;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The driver's file names, in the order in which programs look for them.
const NAMES: [&str; 2] = ["libcuda.so", "libcuda.so.1"];

/// The file name of GDRCopy's library.
const GDR: &str = "libgdrapi.so.2";
/// The same of the run-time compiler.
const COMPILERS: [&str; 2] = ["libnvrtc.so", "libnvrtc.so.12"];

/// A directory with a driver library, and where its report goes.
#[derive(Debug)]
pub struct Simulated {
    dir: tempfile::TempDir,
    options: String,
    /// Options of GDRCopy's library, where there is one.
    gdr: Option<String>,
}

impl Simulated {
    /// A driver with `options`, which are those of `DAQ_SIMULATED_CUDA`: `"gpus=2,memory=64MiB"`.
    pub fn new(options: &str) -> Self {
        let simulated = Self {
            dir: tempfile::Builder::new()
                .prefix("daq-cuda-")
                .tempdir()
                .unwrap(),
            options: options.to_owned(),
            gdr: None,
        };
        for name in NAMES {
            std::os::unix::fs::symlink(library("simulated_cuda"), simulated.dir.path().join(name))
                .unwrap();
        }
        simulated
    }

    /// The same with GDRCopy's library, whose `options` are those of `DAQ_SIMULATED_GDR`: `"fail=gdr_map@1:12"`.
    #[must_use]
    pub fn with_gdr(mut self, options: &str) -> Self {
        let path = self.dir.path().join(GDR);
        std::os::unix::fs::symlink(library("simulated_gdr"), path).unwrap();
        self.gdr = Some(options.to_owned());
        self
    }

    /// The same, but an older driver, whose library does not have the function `symbol`.
    #[must_use]
    pub fn without(self, symbol: &str) -> Self {
        let path = self.dir.path().join(NAMES[0]);
        let mut bytes = std::fs::read(&path).unwrap();
        let name = [b"\0", symbol.as_bytes(), b"\0"].concat();
        let found: Vec<usize> = (0..bytes.len() - name.len())
            .filter(|at| bytes[*at..].starts_with(&name))
            .collect();
        assert!(!found.is_empty(), "the driver has no function {symbol}");
        // Under another first letter nobody finds it.
        for at in found {
            bytes[at + 1] = b'_';
        }
        for name in NAMES {
            let path = self.dir.path().join(name);
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, &bytes).unwrap();
        }
        self
    }

    /// The same with a run-time compiler, which makes of any text with an `on_frame` a kernel that gives each frame as
    /// it is.
    #[must_use]
    pub fn with_compiler(self) -> Self {
        for name in COMPILERS {
            std::os::unix::fs::symlink(library("simulated_cuda"), self.dir.path().join(name))
                .unwrap();
        }
        self
    }

    /// The variables that make a process find the driver.
    pub fn environment(&self) -> Vec<(String, String)> {
        let mut path = self.dir.path().as_os_str().to_owned();
        if let Some(others) =
            std::env::var_os("LD_LIBRARY_PATH").filter(|others| !others.is_empty())
        {
            path.push(":");
            path.push(others);
        }
        let text = |path: &std::ffi::OsStr| path.to_str().unwrap().to_owned();
        let gdr = self.gdr.iter().flat_map(|options| {
            [
                ("DAQ_SIMULATED_GDR".to_owned(), options.clone()),
                (
                    "DAQ_SIMULATED_GDR_REPORT".to_owned(),
                    text(self.gdr_file().as_os_str()),
                ),
            ]
        });
        let cuda = [
            ("LD_LIBRARY_PATH".to_owned(), text(&path)),
            ("DAQ_SIMULATED_CUDA".to_owned(), self.options.clone()),
            (
                "DAQ_SIMULATED_CUDA_REPORT".to_owned(),
                text(self.file().as_os_str()),
            ),
        ];
        cuda.into_iter().chain(gdr).collect()
    }

    /// Makes all runs of `daq` find the driver.
    #[must_use]
    pub fn on(&self, daq: Daq) -> Daq {
        self.environment()
            .iter()
            .fold(daq, |daq, (name, value)| daq.env(name, value))
    }

    /// Makes a command find the driver.
    pub fn prepare<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.envs(self.environment())
    }

    /// What the driver has counted in the process that ended last, or null where none has called it. The keys are
    /// explained where the driver is: in `tests/simulated_cuda/src/lib.rs`.
    pub fn report(&self) -> Value {
        std::fs::read(self.file()).map_or(Value::Null, |report| {
            serde_json::from_slice(&report).unwrap()
        })
    }

    /// Panics unless everything was given back that was taken from the driver.
    pub fn assert_no_leaks(&self) {
        let report = self.report();
        let leaks = report["leaks"].as_object().expect("the driver was called");
        assert!(leaks.values().all(|count| count == 0), "{leaks:#?}");
    }

    /// The calls of GDRCopy's library in the processes that have ended, as `NAME ANSWER`.
    pub fn gdr_calls(&self) -> Vec<String> {
        let calls = std::fs::read_to_string(self.gdr_file()).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }

    fn gdr_file(&self) -> PathBuf {
        self.dir.path().join("gdr.txt")
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("report.json")
    }
}

/// The library: among the dependencies of this test's executable, or where a build of the workspace puts it.
fn library(name: &str) -> PathBuf {
    let file = format!("libdaq_{name}.so");
    let executable = std::env::current_exe().unwrap();
    // target/PROFILE/deps/TEST
    let places: Vec<&Path> = executable.ancestors().skip(1).take(2).collect();
    places
        .iter()
        .map(|place| place.join(&file))
        .find(|path| path.is_file())
        .unwrap_or_else(|| {
            panic!(
                "{file} is in none of {places:?}; build it with `cargo build -p daq-{}`",
                name.replace('_', "-")
            )
        })
}
