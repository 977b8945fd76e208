//! Checks the NVIDIA driver: its version, its kernel modules, and the CUDA version that it supports.

use super::direct::CudaFacts;
use super::nvml::{self, NvmlFacts, Refusal};
use super::{Finding, GROUP, Root, Verdict, has_rdma};
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

pub(super) fn examine(
    root: &Root,
    module: Option<&Module>,
    asked: Option<&Result<NvmlFacts, Refusal>>,
    cuda: &BTreeMap<String, CudaFacts>,
) -> Vec<Finding> {
    let answer = asked.and_then(|asked| asked.as_ref().ok());
    let mut findings = vec![version(module, answer)];
    findings.extend(module.map(kind));
    if module.is_some() || answer.is_some() {
        findings.push(peermem(root, module, cuda));
        findings.push(gdrdrv(root));
    }
    match asked {
        Some(Ok(facts)) => findings.push(served(facts)),
        // Without a kernel module, the failure of NVML adds no information to the finding above.
        Some(Err(refusal)) if module.is_some() => findings.push(refused(refusal)),
        _ => {}
    }
    findings
}

fn version(module: Option<&Module>, answer: Option<&NvmlFacts>) -> Finding {
    let (version, from) = match (module, answer) {
        (Some(module), _) => (module.version.as_deref(), VERSION),
        (None, Some(facts)) => (facts.driver.as_deref(), nvml::SOURCE),
        (None, None) => {
            return Finding::new(GROUP, "driver", VERSION)
                .read(Verdict::Warn, "not loaded")
                .why("CUDA cannot use the NVIDIA GPU without its driver; rings are allocated in host memory")
                .fix(format!("sudo modprobe nvidia || {INSTALL}"));
        }
    };
    let finding = Finding::new(GROUP, "driver", from);
    let Some((version, major)) = version.and_then(|version| {
        let major: u32 = version.split('.').next()?.parse().ok()?;
        Some((version, major))
    }) else {
        return finding;
    };
    if major < MIN_DRIVER {
        finding
            .read(Verdict::Warn, version)
            .why(format!(
                "CUDA 12.0 needs driver {MIN_DRIVER} or newer; rings are allocated in host memory"
            ))
            .fix("sudo apt install nvidia-driver  # Ubuntu: sudo ubuntu-drivers install; then reboot")
    } else {
        finding.read(Verdict::Ok, version)
    }
}

fn kind(module: &Module) -> Finding {
    let finding = Finding::new(GROUP, "kernel module", VERSION);
    if module.is_open {
        finding.read(Verdict::Ok, "open")
    } else {
        finding
            .read(Verdict::Ok, "closed")
            .why("only the open modules export dma-bufs, which other devices need to write GPU memory")
            .fix(format!("{INSTALL}  # Turing and newer; then reboot"))
    }
}

fn peermem(root: &Root, module: Option<&Module>, cuda: &BTreeMap<String, CudaFacts>) -> Finding {
    let finding = Finding::new(GROUP, "nvidia_peermem", PEERMEM);
    let is_old_loaded = root.exists(NV_PEER_MEM);
    let remove = "sudo modprobe -r nv_peer_mem && sudo apt purge nvidia-peer-memory-dkms && sudo modprobe nvidia-peermem";
    if root.exists(PEERMEM) && is_old_loaded {
        return finding
            .read(Verdict::Warn, "loaded beside nv_peer_mem")
            .why("both modules give network cards access to GPU memory, and they conflict")
            .fix(remove);
    }
    if root.exists(PEERMEM) {
        return finding.read(Verdict::Ok, "loaded");
    }
    if is_old_loaded {
        return finding
            .read(
                Verdict::Warn,
                "the older module nv_peer_mem is loaded instead",
            )
            .why(
                "nv_peer_mem is no longer maintained and prevents nvidia_peermem from being loaded",
            )
            .fix(remove);
    }
    let has_dma_buf = if cuda.is_empty() {
        module.is_none_or(|module| module.is_open)
    } else {
        cuda.values().any(|facts| facts.dma_buf)
    };
    let lacks_api = || {
        let symbols = root.text(SYMBOLS)?;
        (!symbols.is_empty() && !symbols.contains(PEER_API)).then_some(())
    };
    match (has_rdma(root), has_dma_buf) {
        (true, false) if lacks_api().is_some() => finding
            .read(Verdict::Warn, "cannot be loaded")
            .why("this Linux has no peer memory API (modprobe fails with \"Invalid argument\"), and dma-buf is not available; network cards cannot write GPU memory, so daq uses the staged path")
            .fix(format!(
                "{INSTALL}  # installs the open modules, which do not need nvidia_peermem; then reboot. Or install DOCA-OFED, then reinstall NVIDIA's driver"
            )),
        (true, false) => finding
            .read(Verdict::Warn, "not loaded")
            .why("neither nvidia_peermem nor dma-buf is available; network cards cannot write GPU memory, so daq uses the staged path")
            .fix("sudo modprobe nvidia-peermem"),
        (true, true) => finding
            .read(Verdict::Ok, "not loaded")
            .why("not needed, because dma-buf is available"),
        (false, _) => finding
            .read(Verdict::Ok, "not loaded")
            .why("not needed, because this machine has no RDMA network card"),
    }
}

fn gdrdrv(root: &Root) -> Finding {
    let finding = Finding::new(GROUP, "gdrdrv", GDRDRV);
    if root.exists(GDRDRV) {
        let version = root.text(&format!("{GDRDRV}/version"));
        match version {
            Some(version) if version.split('.').next() != Some(GDRDRV_MAJOR) => finding
                .read(Verdict::Warn, format!("version {version}"))
                .why("libgdrapi.so.2 requires gdrdrv of the same major version")
                .fix("sudo apt install gdrdrv-dkms libgdrapi  # both from NVIDIA's repository, then sudo modprobe -r gdrdrv && sudo modprobe gdrdrv"),
            Some(version) => finding.read(Verdict::Ok, format!("loaded, version {version}")),
            None => finding.read(Verdict::Ok, "loaded"),
        }
    } else {
        finding
            .read(Verdict::Ok, "not loaded")
            .why("only libgdrapi needs gdrdrv")
            .fix("sudo apt install gdrdrv-dkms  # from NVIDIA's repository")
    }
}

fn served(facts: &NvmlFacts) -> Finding {
    let finding = Finding::new(GROUP, "CUDA", nvml::SOURCE);
    let Some((major, minor)) = facts.cuda else {
        return finding;
    };
    let read = format!("{major}.{minor}");
    if (major, minor) < MIN_CUDA {
        finding
            .read(Verdict::Warn, read)
            .why(format!(
                "daq needs CUDA 12.0 (driver {MIN_DRIVER} or newer); rings are allocated in host memory"
            ))
            .fix(
            "sudo apt install nvidia-driver  # Ubuntu: sudo ubuntu-drivers install; then reboot",
        )
    } else {
        finding.read(Verdict::Ok, read)
    }
}

fn refused(refusal: &Refusal) -> Finding {
    let finding = Finding::new(GROUP, "NVML", "libnvidia-ml.so.1");
    match refusal {
        Refusal::NoLibrary => finding
            .read(Verdict::Unknown, "library not found")
            .why("the health of the GPUs is unknown; see libnvidia-ml below"),
        Refusal::Mismatch => finding
            .read(Verdict::Warn, "version mismatch")
            .why("the driver was updated but its old kernel module is still loaded, so CUDA cannot start")
            .fix("sudo reboot  # or unload and reload the nvidia modules"),
        Refusal::Silent(timeout) => finding
            .read(Verdict::Warn, "silent")
            .why(format!(
                "the driver did not answer within {} s; a GPU may have fallen off the bus",
                timeout.as_secs()
            ))
            .fix("sudo dmesg | grep -iE 'nvrm|xid'"),
        Refusal::Other(error) => finding.read(Verdict::Unknown, error),
    }
}

#[cfg(test)]
mod tests;
