//! Describes the machine in a few lines, for reports.

use super::gpu::driver_version;
use super::root::Root;
use super::system::release;
use daq_core::topology::Topology;
use daq_core::units::{ByteSize, counted};
use std::path::Path;

/// Returns names and values of processor, memory, Linux, GPUs and their driver. Facts that cannot be read are left out.
pub fn about() -> Vec<(&'static str, String)> {
    facts(&Root::new(Path::new("/")), &Topology::detect())
}

fn facts(root: &Root, topology: &Topology) -> Vec<(&'static str, String)> {
    let cores = counted(topology.cores.len() as u64, "core");
    let processor = match &topology.pci.processor.name {
        Some(name) => format!("{name}, {cores}"),
        None => cores,
    };
    let gpus = topology.gpus.iter().map(|gpu| {
        let link = gpu.link.as_ref();
        let link = link.map_or(String::new(), |link| format!(", {}", link.max));
        ("GPU", format!("{} (cuda:{}){link}", gpu.name, gpu.ordinal))
    });
    let mut gpus: Vec<_> = gpus.collect();
    if gpus.is_empty() {
        gpus.push(("GPU", format!("none: {}", topology.no_gpu)));
    }
    let facts = [
        Some(("processor", processor)),
        memory(root).map(|memory| ("memory", memory)),
        release(root).map(|(_, release)| ("Linux", release)),
    ];
    let driver = driver_version(root).map(|version| ("NVIDIA driver", version));
    let facts = facts.into_iter().flatten().chain(gpus).chain(driver);
    facts.collect()
}

/// Returns the size of the memory.
fn memory(root: &Root) -> Option<String> {
    let field = root.field("/proc/meminfo", "MemTotal:")?;
    let kibibytes: u64 = field.split(' ').next()?.parse().ok()?;
    Some(ByteSize(kibibytes << 10).rounded().to_string())
}

#[cfg(test)]
mod tests {
    use super::super::root::tests::machine;
    use super::*;

    #[test]
    fn facts_name_linux_driver_and_reason_for_no_gpu() {
        let (_dir, root) = machine(&[
            ("/proc/sys/kernel/osrelease", "6.1.0-42-amd64\n"),
            ("/proc/meminfo", "MemTotal:       24666460 kB\n"),
            (
                "/proc/driver/nvidia/version",
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release\n",
            ),
        ]);
        let facts = facts(&root, &Topology::unknown());
        let value = |name| {
            let fact = facts.iter().find(|(known, _)| *known == name);
            fact.map(|(_, value)| value.as_str())
        };
        assert_eq!(value("Linux"), Some("6.1.0-42-amd64"));
        assert_eq!(
            value("NVIDIA driver"),
            Some("580.159.04 (open kernel module)")
        );
        assert_eq!(value("memory"), Some("23 GiB"));
        assert!(value("GPU").is_some_and(|gpu| gpu.starts_with("none: ")));
    }
}
