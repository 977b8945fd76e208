//! Checks for each backend whether the CPU can store to GPU memory, and how long it takes to set up a mapping.

use super::{Card, Finding, Verdict};
use daq_core::gpu::bar_mapping::{Costs, Refusal};
use daq_core::gpu::{Backend, Writer};
use std::time::Duration;

/// Each backend's result for a small allocation, or an error if the GPU cannot be opened.
pub(super) type Tried = Result<Vec<(Backend, Result<Costs, Refusal>)>, String>;

/// Command that installs the Vulkan loader and the libraries that NVIDIA's driver needs for it.
const VULKAN: &str = "sudo apt install libvulkan1 libegl1";
/// Command that installs GDRCopy.
const GDRAPI: &str = "sudo apt install libgdrapi gdrdrv-dkms  # from NVIDIA's repository";

/// Returns the findings of one GPU; an empty list if CUDA was not queried.
pub(super) fn examine(card: &Card) -> Vec<Finding> {
    let finding = card.finding("CPU stores", "test with a small allocation");
    match card.stores {
        None => Vec::new(),
        Some(Err(why)) => vec![finding.why(why.clone())],
        Some(Ok(tried)) => {
            let each = tried
                .iter()
                .map(|(backend, found)| one(card, *backend, found));
            std::iter::once(best(finding, tried)).chain(each).collect()
        }
    }
}

/// Reports which backend a ring with CPU stores would use.
fn best(finding: Finding, tried: &[(Backend, Result<Costs, Refusal>)]) -> Finding {
    let works = |backend: &&Backend| {
        let mut tried = tried.iter();
        tried.any(|(tried, found)| tried == *backend && found.is_ok())
    };
    match Writer::Cpu.backends().iter().find(works) {
        Some(backend) => finding.read(Verdict::Ok, format!("by {backend}")),
        None => finding
            .read(Verdict::Warn, "not possible")
            .why("every frame uses the copy engine, and doorbells are in host memory; this adds microseconds of latency for small frames")
            .fix(format!(
                "{VULKAN}  # with resizable BAR enabled in the firmware; or {GDRAPI}"
            )),
    }
}

/// Returns the finding for one backend. The failure of one backend is not a fault, because another backend may work;
/// see [`best`].
fn one(card: &Card, backend: Backend, found: &Result<Costs, Refusal>) -> Finding {
    let (name, from, fix) = match backend {
        Backend::Gdrapi => ("by gdrapi", "gdr_pin_buffer, gdr_map", Some(GDRAPI)),
        Backend::DmaBuf => ("by dma-buf", "mmap of CUDA's dma-buf", None),
        Backend::Vulkan => (
            "by vulkan",
            "vkMapMemory, cuImportExternalMemory",
            Some(VULKAN),
        ),
        Backend::Host => ("by host memory", "cuMemHostRegister", None),
    };
    let finding = card.finding(name, from);
    match found {
        Ok(costs) => finding.read(Verdict::Ok, "works").why(cost_text(*costs)),
        Err(refusal) => {
            let finding = finding
                .read(Verdict::Ok, "refused")
                .why(refusal.why.clone());
            match fix {
                Some(fix) => finding.fix(fix),
                None => finding,
            }
        }
    }
}

fn cost_text(costs: Costs) -> String {
    let micros = |time: Duration| format!("{:.0} us", time.as_secs_f64() * 1e6);
    format!(
        "setup time: allocate {}, pin {}, map {}",
        micros(costs.allocate),
        micros(costs.pin),
        micros(costs.map)
    )
}
