//! Checks the NVIDIA driver: its version, its kernel modules, and the CUDA version that it supports.

use super::direct::CudaFacts;
use super::nvml::{NvmlFacts, Refusal, SOURCE};
use super::{GROUP, Root, has_rdma};
use crate::doctor::check::{
    Finding, Judgement, Status, check, not_applicable, ok, table, unknown, unreadable, warn,
};
use std::collections::BTreeMap;

pub(super) const VERSION: &str = "/proc/driver/nvidia/version";
const PEERMEM: &str = "/sys/module/nvidia_peermem";
/// Directory of the module nv_peer_mem, the predecessor of nvidia_peermem.
const NV_PEER_MEM: &str = "/sys/module/nv_peer_mem";
const SYMBOLS: &str = "/proc/kallsyms";
/// Symbol of the RDMA core that nvidia_peermem needs. MOFED and DOCA-OFED provide this symbol, but mainline Linux does
/// not.
const PEER_API: &str = "ib_register_peer_memory_client";
const GDRDRV: &str = "/sys/module/gdrdrv";
/// Major version of the gdrdrv driver that libgdrapi.so.2 requires.
const GDRDRV_MAJOR: &str = "2";
/// Command that installs the open kernel modules with their driver, for Turing GPUs and newer.
pub(super) const INSTALL: &str = "sudo apt install nvidia-open";
/// Command that installs a newer driver.
const UPDATE: &str =
    "sudo apt install nvidia-driver  # Ubuntu: sudo ubuntu-drivers install; then reboot";
/// Major version of the first driver that supports CUDA 12.0 (CUDA release notes, table of driver versions).
const MIN_DRIVER: u32 = 525;
const MIN_CUDA: (u32, u32) = (12, 0);

/// The NVIDIA kernel module, as described in its version file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Module {
    /// Version, for example `580.95.05`; `None` if the file contains no version.
    pub(super) version: Option<String>,
    pub(super) is_open: bool,
}

impl Module {
    /// Returns the loaded module; `None` if no module is loaded.
    pub(super) fn read(root: &Root) -> Option<Self> {
        let text = root.text(VERSION)?;
        let line = text.lines().next()?;
        let is_version = |word: &&str| {
            word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok())
        };
        Some(Self {
            version: line
                .split_whitespace()
                .find(is_version)
                .map(ToOwned::to_owned),
            is_open: line.contains("Open Kernel Module"),
        })
    }
}

/// The driver of the NVIDIA GPUs, with the answers of NVML and CUDA.
pub(super) struct Driver<'a> {
    pub(super) root: &'a Root,
    pub(super) module: Option<&'a Module>,
    /// NVML's answer; `None` if NVML was not queried.
    pub(super) asked: Option<&'a Result<NvmlFacts, Refusal>>,
    /// CUDA's attributes by the GPU's address; empty if CUDA was not queried.
    pub(super) cuda: &'a BTreeMap<String, CudaFacts>,
}

impl Driver<'_> {
    pub(super) fn examine(&self) -> Vec<Finding> {
        let checks = [
            check("driver", VERSION, Self::version),
            check("kernel module", VERSION, Self::kind),
            check("nvidia_peermem", PEERMEM, Self::peermem),
            check("gdrdrv", GDRDRV, Self::gdrdrv),
            check("CUDA", SOURCE, Self::cuda_version),
            check("NVML", "libnvidia-ml.so.1", Self::refusal),
        ];
        table(GROUP, "", self, &checks)
    }

    /// Returns NVML's answer, if there is one.
    fn facts(&self) -> Option<&NvmlFacts> {
        self.asked?.as_ref().ok()
    }

    fn version(&self) -> Option<Judgement> {
        let (version, from) = match (self.module, self.facts()) {
            (Some(module), _) => (module.version.as_deref(), VERSION),
            (None, Some(facts)) => (facts.driver.as_deref(), SOURCE),
            (None, None) => {
                let why = "CUDA cannot use the NVIDIA GPU without its driver; rings are allocated in host memory";
                let fix = format!("sudo modprobe nvidia || {INSTALL}");
                return Some(warn("not loaded", why, fix));
            }
        };
        let read = version.and_then(|version| {
            let major: u32 = version.split('.').next()?.parse().ok()?;
            Some((version, major))
        });
        let judged = match read {
            None => unreadable(),
            Some((version, ..MIN_DRIVER)) => {
                let why = format!(
                    "CUDA 12.0 needs driver {MIN_DRIVER} or newer; rings are allocated in host memory"
                );
                warn(version, why, UPDATE)
            }
            Some((version, _)) => ok(version),
        };
        Some(judged.from(from))
    }

    fn kind(&self) -> Option<Judgement> {
        Some(match self.module {
            None => not_applicable(),
            Some(module) if module.is_open => ok("open"),
            Some(_) => ok("closed")
                .why("only the open modules export dma-bufs, which other devices need to write GPU memory")
                .fix(format!("{INSTALL}  # Turing and newer; then reboot")),
        })
    }

    /// Returns whether a driver is loaded, according to its files or to NVML.
    fn is_loaded(&self) -> bool {
        self.module.is_some() || self.facts().is_some()
    }

    fn peermem(&self) -> Option<Judgement> {
        let root = self.root;
        let remove = "sudo modprobe -r nv_peer_mem && sudo apt purge nvidia-peer-memory-dkms && sudo modprobe nvidia-peermem";
        if !self.is_loaded() {
            return Some(not_applicable());
        }
        match (root.exists(PEERMEM), root.exists(NV_PEER_MEM)) {
            (true, true) => {
                let why = "both modules give network cards access to GPU memory, and they conflict";
                return Some(warn("loaded beside nv_peer_mem", why, remove));
            }
            (true, false) => return Some(ok("loaded")),
            (false, true) => {
                let read = "the older module nv_peer_mem is loaded instead";
                let why = "nv_peer_mem is no longer maintained and prevents nvidia_peermem from being loaded";
                return Some(warn(read, why, remove));
            }
            (false, false) => {}
        }
        let has_dma_buf = if self.cuda.is_empty() {
            self.module.is_none_or(|module| module.is_open)
        } else {
            self.cuda.values().any(|facts| facts.dma_buf)
        };
        let symbols = root.text(SYMBOLS).unwrap_or_default();
        let lacks_api = !symbols.is_empty() && !symbols.contains(PEER_API);
        Some(match (has_rdma(root), has_dma_buf) {
            (true, false) if lacks_api => warn(
                "cannot be loaded",
                "this Linux has no peer memory API (modprobe fails with \"Invalid argument\"), and dma-buf is not available; network cards cannot write GPU memory, so daq uses the staged path",
                format!(
                    "{INSTALL}  # installs the open modules, which do not need nvidia_peermem; then reboot. Or install DOCA-OFED, then reinstall NVIDIA's driver"
                ),
            ),
            (true, false) => warn(
                "not loaded",
                "neither nvidia_peermem nor dma-buf is available; network cards cannot write GPU memory, so daq uses the staged path",
                "sudo modprobe nvidia-peermem",
            ),
            (true, true) => ok("not loaded").why("not needed, because dma-buf is available"),
            (false, _) => {
                ok("not loaded").why("not needed, because this machine has no RDMA network card")
            }
        })
    }

    fn gdrdrv(&self) -> Option<Judgement> {
        if !self.is_loaded() {
            return Some(not_applicable());
        }
        if !self.root.exists(GDRDRV) {
            let fix = "sudo apt install gdrdrv-dkms  # from NVIDIA's repository";
            return Some(ok("not loaded").why("only libgdrapi needs gdrdrv").fix(fix));
        }
        Some(match self.root.text(&format!("{GDRDRV}/version")) {
            Some(version) if version.split('.').next() != Some(GDRDRV_MAJOR) => warn(
                format!("version {version}"),
                "libgdrapi.so.2 requires gdrdrv of the same major version",
                "sudo apt install gdrdrv-dkms libgdrapi  # both from NVIDIA's repository, then sudo modprobe -r gdrdrv && sudo modprobe gdrdrv",
            ),
            Some(version) => ok(format!("loaded, version {version}")),
            None => ok("loaded"),
        })
    }

    /// Checks the newest CUDA version that the driver supports.
    fn cuda_version(&self) -> Option<Judgement> {
        let Some(facts) = self.facts() else {
            return Some(not_applicable());
        };
        let (major, minor) = facts.cuda?;
        let read = format!("{major}.{minor}");
        if (major, minor) >= MIN_CUDA {
            return Some(ok(read));
        }
        let why = format!(
            "daq needs CUDA 12.0 (driver {MIN_DRIVER} or newer); rings are allocated in host memory"
        );
        Some(warn(read, why, UPDATE))
    }

    /// Reports why NVML did not answer. Without a kernel module, the failure adds no information to that of the driver.
    fn refusal(&self) -> Option<Judgement> {
        let (Some(Err(refusal)), Some(_)) = (self.asked, self.module) else {
            return Some(not_applicable());
        };
        Some(match refusal {
            Refusal::NoLibrary => unknown(
                "library not found",
                "the health of the GPUs is unknown; see libnvidia-ml below",
            ),
            Refusal::Mismatch => warn(
                "version mismatch",
                "the driver was updated but its old kernel module is still loaded, so CUDA cannot start",
                "sudo reboot  # or unload and reload the nvidia modules",
            ),
            Refusal::Silent(timeout) => {
                let seconds = timeout.as_secs();
                let why = format!(
                    "the driver did not answer within {seconds} s; a GPU may have fallen off the bus"
                );
                warn("silent", why, "sudo dmesg | grep -iE 'nvrm|xid'")
            }
            Refusal::Other(error) => Judgement::new(Status::Unknown, error),
        })
    }
}

#[cfg(test)]
mod tests;
