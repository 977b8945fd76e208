//! Checks for each backend whether the CPU can store to GPU memory, and how long it takes to set up a mapping.

use super::Card;
use crate::doctor::check::{Finding, Judgement, finding, not_applicable, ok, unreadable, warn};
use daq_core::gpu::bar_mapping::{Costs, Refusal};
use daq_core::gpu::{Backend, Writer};
use std::time::Duration;

/// Each backend's result for a small allocation, or an error if the GPU cannot be opened.
pub(super) type Tried = Result<Vec<(Backend, Result<Costs, Refusal>)>, String>;

/// Command that installs the Vulkan loader and the libraries that NVIDIA's driver needs for it.
const VULKAN: &str = "sudo apt install libvulkan1 libegl1";
/// Command that installs GDRCopy.
const GDRAPI: &str = "sudo apt install libgdrapi gdrdrv-dkms  # from NVIDIA's repository";

/// Reports which backend a ring with CPU stores would use.
pub(super) fn best(card: &Card<'_>) -> Option<Judgement> {
    let tried = match card.stores {
        None => return Some(not_applicable()),
        Some(Err(why)) => return Some(unreadable().why(why.clone())),
        Some(Ok(tried)) => tried,
    };
    let works = |backend: &&Backend| {
        let mut tried = tried.iter();
        tried.any(|(tried, found)| tried == *backend && found.is_ok())
    };
    Some(match Writer::Cpu.backends().iter().find(works) {
        Some(backend) => ok(format!("by {backend}")),
        None => warn(
            "not possible",
            "every frame uses the copy engine, and doorbells are in host memory; this adds microseconds of latency for small frames",
            format!("{VULKAN}  # with resizable BAR enabled in the firmware; or {GDRAPI}"),
        ),
    })
}

/// Returns a finding for each backend that was tried. The failure of one backend is not a fault, because another backend
/// may work; see [`best`].
pub(super) fn each(card: &Card<'_>) -> Vec<Finding> {
    let tried = card.stores.and_then(|tried| tried.as_ref().ok());
    let found = tried.into_iter().flatten().filter_map(|(backend, found)| {
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
        let judged = match (found, fix) {
            (Ok(costs), _) => ok("works").why(cost_text(*costs)),
            (Err(refusal), None) => ok("refused").why(refusal.why.clone()),
            (Err(refusal), Some(fix)) => ok("refused").why(refusal.why.clone()).fix(fix),
        };
        finding(card.group(), name, from, Some(judged))
    });
    found.collect()
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
