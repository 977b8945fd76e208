//! A machine with simulated GPUs: `daq-simulated-cuda` replaces NVIDIA's driver library, and `daq-simulated-gdr`
//! replaces GDRCopy's library.

use super::Daq;
use daq_core::gpu::driver::Device;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The driver's file names, in the order in which programs search for them.
const NAMES: [&str; 2] = ["libcuda.so", "libcuda.so.1"];

/// The file name of GDRCopy's library.
const GDR: &str = "libgdrapi.so.2";
/// The file name of the run-time compiler.
const COMPILERS: [&str; 2] = ["libnvrtc.so", "libnvrtc.so.12"];

/// A directory with a driver library, and the path of its report.
#[derive(Debug)]
pub struct Simulated {
    dir: tempfile::TempDir,
    options: String,
    /// Options of GDRCopy's library, if it is simulated.
    gdr: Option<String>,
}

impl Simulated {
    /// Creates a driver with `options`, those of `DAQ_SIMULATED_CUDA`: `"gpus=2,memory=64MiB"`.
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

    /// Adds GDRCopy's library with `options`, those of `DAQ_SIMULATED_GDR`: `"fail=gdr_map@1:12"`.
    #[must_use]
    pub fn with_gdr(mut self, options: &str) -> Self {
        let path = self.dir.path().join(GDR);
        std::os::unix::fs::symlink(library("simulated_gdr"), path).unwrap();
        self.gdr = Some(options.to_owned());
        self
    }

    /// Makes the driver older: its library does not have the function `symbol`.
    #[must_use]
    pub fn without(self, symbol: &str) -> Self {
        let path = self.dir.path().join(NAMES[0]);
        let mut bytes = std::fs::read(&path).unwrap();
        let name = [b"\0", symbol.as_bytes(), b"\0"].concat();
        let found: Vec<usize> = (0..bytes.len() - name.len())
            .filter(|at| bytes[*at..].starts_with(&name))
            .collect();
        assert!(!found.is_empty(), "the driver has no function {symbol}");
        // With another first letter the loader does not find it.
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

    /// Adds a run-time compiler, which turns any text with an `on_frame` into a kernel that copies each frame
    /// unchanged.
    #[must_use]
    pub fn with_compiler(self) -> Self {
        for name in COMPILERS {
            std::os::unix::fs::symlink(library("simulated_cuda"), self.dir.path().join(name))
                .unwrap();
        }
        self
    }

    /// The environment variables with which a process finds the driver.
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

    /// Makes all runs of `daq` use the driver.
    #[must_use]
    pub fn on(&self, daq: Daq) -> Daq {
        self.environment()
            .iter()
            .fold(daq, |daq, (name, value)| daq.env(name, value))
    }

    /// Makes a command use the driver.
    pub fn prepare<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.envs(self.environment())
    }

    /// The driver's report on the last process that has ended; null if no process called it.
    /// `tests/simulated_cuda/src/lib.rs` documents the keys.
    pub fn report(&self) -> Value {
        std::fs::read(self.file()).map_or(Value::Null, |report| {
            serde_json::from_slice(&report).unwrap()
        })
    }

    /// Runs `work` with the driver in a process of its own, see [`alone`](crate::alone()). Returns true in the parent
    /// process, which can check the reports. Hides an installed Vulkan loader, which might find a GPU that is not
    /// simulated.
    pub fn alone(&self, test: &str, work: impl FnOnce(&'static Device)) -> bool {
        let prepare = |command: &mut Command| {
            self.prepare(command).env("VK_DRIVER_FILES", "/dev/null");
        };
        crate::alone(test, prepare, || work(Device::open(0).unwrap())).is_some()
    }

    /// Returns the driver resources that were not released, as `NAME: COUNT`, except for contexts, which live as long as
    /// the process.
    pub fn leaks(&self) -> Vec<String> {
        let report = self.report();
        let leaks = report["leaks"].as_object().expect("the driver was called");
        leaks
            .iter()
            .filter(|(what, count)| *what != "contexts" && **count != 0)
            .map(|(what, count)| format!("{what}: {count}"))
            .collect()
    }

    /// Panics unless all driver resources, pinned buffers and mappings of GDRCopy were released.
    pub fn assert_all_released(&self) {
        assert_eq!(self.leaks(), [""; 0]);
        let calls = self.gdr_calls();
        let count = |call: &str| calls.iter().filter(|line| line.starts_with(call)).count();
        for (take, release) in [
            ("gdr_pin_buffer 0", "gdr_unpin_buffer 0"),
            ("gdr_map 0", "gdr_unmap 0"),
        ] {
            assert_eq!(count(take), count(release), "{calls:?}");
        }
    }

    /// The calls of GDRCopy's library in the processes that have ended, as `NAME RESULT`.
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

/// Finds the library among the dependencies of this test's executable, or in the output of a workspace build.
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
