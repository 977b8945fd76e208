//! Checks which optional libraries are installed, and reports the purpose and the package of each library. Libraries
//! are searched by file name and not loaded.

use super::check::{Finding, Judgement, finding, ok, warn};
use super::root::Root;
use std::path::Path;

const GROUP: &str = "libraries";
const CACHE: &str = "/etc/ld.so.cache";
const PCI: &str = "/sys/bus/pci/devices";
const INFINIBAND: &str = "/sys/class/infiniband";
const NVIDIA: &str = "0x10de";
/// First byte of the PCI class of display and 3D controllers.
const DISPLAY: &str = "0x03";

/// Directories that the dynamic linker searches by default, directories that Debian configures, and CUDA's directories.
const DIRECTORIES: [&str; 9] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    "/usr/local/cuda/lib64",
];

/// Hardware for which a library is useful.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nvidia,
    Gpu,
    Rdma,
}

struct Library {
    name: &'static str,
    /// File names of the library, the newest version first. One of these files is sufficient.
    files: &'static [&'static str],
    needs: Needs,
    purpose: &'static str,
    /// Command that installs the library on Debian and Ubuntu.
    install: &'static str,
}

const LIBRARIES: [Library; 7] = [
    Library {
        name: "libcuda",
        files: &["libcuda.so.1"],
        needs: Needs::Nvidia,
        purpose: "rings and kernels in the memory of an NVIDIA GPU",
        install: "sudo apt install libcuda1  # non-free; Ubuntu: sudo ubuntu-drivers install",
    },
    Library {
        name: "libnvrtc",
        files: &[
            "libnvrtc.so.13",
            "libnvrtc.so.12",
            "libnvrtc.so.11.2",
            "libnvrtc.so",
        ],
        needs: Needs::Nvidia,
        purpose: "compiling your own CUDA C++ kernels; built-in kernels run without it",
        install: "sudo apt install nvidia-cuda-toolkit",
    },
    Library {
        name: "libnvidia-ml",
        files: &["libnvidia-ml.so.1"],
        needs: Needs::Nvidia,
        purpose: "topology and health of NVIDIA GPUs",
        install: "sudo apt install libnvidia-ml1  # Ubuntu: sudo ubuntu-drivers install",
    },
    Library {
        name: "libgdrapi",
        files: &["libgdrapi.so.2"],
        needs: Needs::Nvidia,
        purpose: "stores from the processor into GPU memory (GDRCopy)",
        install: "sudo apt install libgdrapi  # from NVIDIA's repository, with gdrdrv-dkms",
    },
    Library {
        name: "libvulkan",
        files: &["libvulkan.so.1"],
        needs: Needs::Gpu,
        purpose: "stores from the processor into GPU memory (Vulkan)",
        install: "sudo apt install libvulkan1",
    },
    Library {
        name: "libibverbs",
        files: &["libibverbs.so.1"],
        needs: Needs::Rdma,
        purpose: "`stream` sources and sinks over RoCE and InfiniBand",
        install: "sudo apt install libibverbs1 ibverbs-providers",
    },
    Library {
        name: "librdmacm",
        files: &["librdmacm.so.1"],
        needs: Needs::Rdma,
        purpose: "connections through rdma_cm; without this library daq exchanges the queue pair parameters over TCP",
        install: "sudo apt install librdmacm1",
    },
];

pub(super) fn examine(root: &Root) -> Vec<Finding> {
    // Environment variables belong to this process, so they are ignored if the files of another machine are examined.
    let variable = |name: &str| {
        let value = std::env::var(name).ok().filter(|_| root.is_real());
        value.unwrap_or_default()
    };
    let named = [variable("DAQ_NVRTC"), variable("LD_LIBRARY_PATH")];
    let cached = cached(root);
    let found = LIBRARIES.iter().filter_map(|library| {
        let judged = library
            .in_environment(&named)
            .unwrap_or_else(|| library.on_machine(root, &cached));
        finding(GROUP, library.name, "", Some(judged))
    });
    found.collect()
}

impl Library {
    fn purpose(&self) -> String {
        format!("for {}", self.purpose)
    }

    /// Judges the library if an environment variable points to it. The variables are `DAQ_NVRTC` (only for the CUDA
    /// compiler) and `LD_LIBRARY_PATH`.
    fn in_environment(&self, [nvrtc, directories]: &[String; 2]) -> Option<Judgement> {
        if self.name == "libnvrtc" && !nvrtc.is_empty() {
            let judged = if Path::new(nvrtc).is_file() {
                ok(nvrtc.as_str()).why(self.purpose())
            } else {
                warn(
                    format!("{nvrtc} is not a file"),
                    self.purpose(),
                    "export DAQ_NVRTC=/path/to/libnvrtc.so.12",
                )
            };
            return Some(judged.from("DAQ_NVRTC"));
        }
        let places = directories.split(':').filter(|place| !place.is_empty());
        let paths = places.flat_map(|place| {
            self.files
                .iter()
                .map(move |file| Path::new(place).join(file))
        });
        let found = paths.into_iter().find(|path| path.is_file())?;
        let from = format!("{}, LD_LIBRARY_PATH", found.display());
        Some(ok("found").why(self.purpose()).from(from))
    }

    /// Judges whether the dynamic linker finds the library, and whether the machine has hardware for it.
    fn on_machine(&self, root: &Root, cached: &[String]) -> Judgement {
        let in_cache = |file: &&str| {
            let mut paths = cached.iter();
            let is_it =
                |path: &&String| path.rsplit('/').next() == Some(*file) && root.exists(path);
            paths.find(is_it).cloned()
        };
        let in_directory = |file: &&str| {
            let mut paths = DIRECTORIES
                .iter()
                .map(|directory| format!("{directory}/{file}"));
            paths.find(|path| root.exists(path))
        };
        let mut files = self.files.iter();
        if let Some(path) = files.find_map(|file| in_cache(file).or_else(|| in_directory(file))) {
            return ok("found").why(self.purpose()).from(path);
        }
        let (is_present, hardware) = match self.needs {
            Needs::Nvidia => (gpu(root, Some(NVIDIA)), "NVIDIA GPU"),
            Needs::Gpu => (gpu(root, None), "GPU"),
            Needs::Rdma => (!root.names(INFINIBAND).is_empty(), "RDMA device"),
        };
        let judged = if is_present {
            warn("not found", self.purpose(), self.install)
        } else {
            let why = format!("{}; this machine has no {hardware}", self.purpose());
            ok("not found").why(why).fix(self.install)
        };
        judged.from(format!("{CACHE}, /usr/lib, …"))
    }
}

/// Returns whether the machine has a display or 3D controller on PCI. If `vendor` is given, only controllers of this
/// vendor count.
fn gpu(root: &Root, vendor: Option<&str>) -> bool {
    root.names(PCI).iter().any(|device| {
        let is = |file: &str, prefix: &str| {
            root.text(&format!("{PCI}/{device}/{file}"))
                .is_some_and(|text| text.starts_with(prefix))
        };
        is("class", DISPLAY) && vendor.is_none_or(|vendor| is("vendor", vendor))
    })
}

/// Returns the paths in the dynamic linker's cache. The tables before the paths need not be parsed, because strings end
/// with NUL and only paths begin with a slash.
fn cached(root: &Root) -> Vec<String> {
    let bytes = root.bytes(CACHE).unwrap_or_default();
    bytes
        .split(|byte| *byte == 0)
        .filter(|text| text.first() == Some(&b'/'))
        .filter_map(|text| String::from_utf8(text.to_vec()).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::root::tests::machine;
    use super::super::tests::judged;
    use super::*;
    use crate::doctor::Status::{Ok, Warning};
    use proptest::prelude::*;

    fn find(files: &[(&str, &str)], name: &str) -> Finding {
        judged(examine, files, name)
    }

    #[test]
    fn library_is_found_through_environment() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().to_str().unwrap().to_owned();
        let file = dir.path().join("libnvrtc.so.12");
        std::fs::write(&file, "").unwrap();
        let nvrtc = LIBRARIES
            .iter()
            .find(|library| library.name == "libnvrtc")
            .unwrap();
        let found = |named: &str, places: &str| {
            let found = nvrtc.in_environment(&[named.to_owned(), places.to_owned()]);
            found.map(|found| found.status)
        };
        assert_eq!(found("", ""), None);
        assert_eq!(found("", &format!("/nowhere:{place}")), Some(Ok));
        assert_eq!(found(file.to_str().unwrap(), ""), Some(Ok));
        assert_eq!(
            found(&place, ""),
            Some(Warning),
            "a directory is not a library"
        );
        let variables = [file.display().to_string(), place];
        assert!(LIBRARIES[0].in_environment(&variables).is_none());
    }

    #[test]
    fn library_is_found_through_loader_cache() {
        let cache = "glibc-ld.so.cache1.1\u{1}\0\0libcuda.so.1\0/opt/driver/libcuda.so.1\0libx\0";
        let found = find(
            &[(CACHE, cache), ("/opt/driver/libcuda.so.1", "")],
            "libcuda",
        );
        let from = "/opt/driver/libcuda.so.1";
        assert_eq!((found.status, found.from.as_str()), (Ok, from));
        assert_eq!(found.fix, None);
        let stale = find(&[(CACHE, cache)], "libcuda");
        assert_eq!(stale.read, "not found");
    }

    #[test]
    fn library_is_found_in_standard_directories() {
        for library in &LIBRARIES {
            for file in library.files {
                let path = format!("/usr/lib/x86_64-linux-gnu/{file}");
                let found = find(&[(&path, "")], library.name);
                assert_eq!(
                    (found.read.as_str(), found.from.as_str()),
                    ("found", path.as_str())
                );
            }
        }
    }

    #[test]
    fn missing_library_is_reported_only_with_its_hardware() {
        let class = |code| ("/sys/bus/pci/devices/0000:01:00.0/class", code);
        let vendor = |code| ("/sys/bus/pci/devices/0000:01:00.0/vendor", code);
        let nvidia = [class("0x030200"), vendor("0x10de")];
        let other = [class("0x030200"), vendor("0x1002")];
        let no_display = [class("0x020000"), vendor("0x10de")];
        let rdma = [("/sys/class/infiniband/mlx5_0/node_type", "1: CA")];
        for (files, name, status) in [
            (&[][..], "libcuda", Ok),
            (&nvidia, "libcuda", Warning),
            (&other, "libcuda", Ok),
            (&no_display, "libnvrtc", Ok),
            (&other, "libvulkan", Warning),
            (&[], "libvulkan", Ok),
            (&rdma, "libibverbs", Warning),
            (&[], "libibverbs", Ok),
        ] {
            let found = find(files, name);
            assert_eq!(found.summary(), (status, "not found"), "{name} {files:?}");
            let fix = found.fix.unwrap();
            assert!(fix.starts_with("sudo apt install"), "{name}");
        }
    }

    proptest! {
        #[test]
        fn loader_cache_of_random_bytes_does_not_panic(bytes: Vec<u8>) {
            let (_dir, root) = machine(&[("/etc/x", "")]);
            std::fs::write(root.at(CACHE), &bytes).unwrap();
            for path in cached(&root) {
                prop_assert!(path.starts_with('/') && !path.contains('\0'));
            }
        }
    }
}
