//! Whether the CPU can store to a GPU's memory, by each way that there is, and what that takes at the start.

use super::{Card, Finding, Verdict};
use daq_core::gpu::bar_mapping::{Costs, Refusal};
use daq_core::gpu::{Backend, Writer};
use std::time::Duration;

/// What each backend said to a small piece of memory; an error where the GPU could not be opened.
pub(super) type Tried = Result<Vec<(Backend, Result<Costs, Refusal>)>, String>;

/// What brings Vulkan's loader and what the driver needs beside it.
const VULKAN: &str = "sudo apt install libvulkan1 libegl1";
/// What brings GDRCopy.
const GDRAPI: &str = "sudo apt install libgdrapi gdrdrv-dkms  # from NVIDIA's repository";

/// Nothing where CUDA was not asked.
pub(super) fn examine(card: &Card) -> Vec<Finding> {
    let finding = card.finding("CPU stores", "a small piece of memory, tried");
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

/// What rings that the CPU stores to would be made by.
fn best(finding: Finding, tried: &[(Backend, Result<Costs, Refusal>)]) -> Finding {
    let works = |backend: &&Backend| {
        let mut tried = tried.iter();
        tried.any(|(tried, found)| tried == *backend && found.is_ok())
    };
    match Writer::Cpu.backends().iter().find(works) {
        Some(backend) => finding.read(Verdict::Ok, format!("by {backend}")),
        None => finding
            .read(Verdict::Warn, "not possible")
            .why("every frame goes by the copy engine and doorbells lie in host memory: microseconds more for small frames")
            .fix(format!(
                "{VULKAN}  # with resizable BAR on in the firmware; or {GDRAPI}"
            )),
    }
}

/// The finding of one backend. A refused backend is not a fault: another may work, see [`best`].
fn one(card: &Card, backend: Backend, found: &Result<Costs, Refusal>) -> Finding {
    let (name, from, fix) = match backend {
        Backend::Gdrapi => ("by gdrapi", "gdr_pin_buffer, gdr_map", Some(GDRAPI)),
        Backend::DmaBuf => ("by dma-buf", "mmap of CUDA's dma-buf", None),
        Backend::Vulkan => (
            "by vulkan",
            "vkMapMemory, cuImportExternalMemory",
            Some(VULKAN),
        ),
        Backend::Host => ("in host memory", "cuMemHostRegister", None),
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
        "at the start: allocate {}, pin {}, map {}",
        micros(costs.allocate),
        micros(costs.pin),
        micros(costs.map)
    )
}
