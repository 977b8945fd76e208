//! Checks the GPU's state as reported by NVML: persistence mode, memory errors, MIG slices and clocks. Without NVML there
//! are no findings, because the findings about the driver report a failure of NVML.

use super::Card;
use super::nvml::Brakes;
use crate::doctor::check::{Judgement, not_applicable, ok, warn};

pub(super) fn persistence(card: &Card<'_>) -> Option<Judgement> {
    let Some(facts) = card.nvml else {
        return Some(not_applicable());
    };
    Some(if facts.is_persistent? {
        ok("on")
    } else {
        warn(
            "off",
            "the driver shuts down a GPU that no program uses; the next start takes seconds and resets the GPU's counters",
            format!(
                "sudo nvidia-smi -i {} -pm 1  # permanently: sudo systemctl enable --now nvidia-persistenced",
                card.address
            ),
        )
    })
}

/// Checks the number of memory errors, which not every GPU counts.
pub(super) fn memory_errors(card: &Card<'_>) -> Option<Judgement> {
    Some(match card.nvml.and_then(|facts| facts.uncorrected) {
        None => not_applicable(),
        Some(0) => ok("0"),
        Some(errors) => warn(
            format!("{errors} uncorrected"),
            "GPU memory was corrupted since the driver was loaded; the driver ends every CUDA context that reads the corrupted memory",
            format!(
                "nvidia-smi -q -d ECC,ROW_REMAPPER -i {0}  # then stop all programs on the GPU and run sudo nvidia-smi -r -i {0}",
                card.address
            ),
        ),
    })
}

/// Reports whether the GPU is divided into MIG slices, which few GPUs support.
pub(super) fn slices(card: &Card<'_>) -> Option<Judgement> {
    Some(match card.nvml.and_then(|facts| facts.is_mig) {
        None => not_applicable(),
        Some(false) => ok("off"),
        Some(true) => ok("on")
            .why("MIG is enabled: CUDA sees slices of the GPU, each with a part of the memory and copy engines")
            .fix(format!("sudo nvidia-smi -i {} -mig 0", card.address)),
    })
}

pub(super) fn clocks(card: &Card<'_>) -> Option<Judgement> {
    let Some(facts) = card.nvml else {
        return Some(not_applicable());
    };
    let address = card.address;
    let Brakes {
        power,
        heat,
        unnamed,
    } = facts.brakes?;
    let causes: Vec<_> = [(heat, "heat"), (power, "power"), (unnamed, "the hardware")]
        .into_iter()
        .filter_map(|(holds, cause)| holds.then_some(cause))
        .collect();
    let degrees = facts.temperature;
    let degrees = degrees.map_or_else(String::new, |degrees| format!(", {degrees} °C"));
    if causes.is_empty() {
        return Some(ok(format!("free{degrees}")));
    }
    let fix = if heat {
        format!(
            "nvidia-smi -q -d TEMPERATURE,PERFORMANCE -i {address}  # then check fans, air flow and load"
        )
    } else if power {
        format!(
            "nvidia-smi -q -d POWER -i {address}  # then raise the limit: sudo nvidia-smi -i {address} -pl WATTS; check the power cables"
        )
    } else {
        format!("nvidia-smi -q -d PERFORMANCE -i {address}")
    };
    let read = format!("slowed down by {}{degrees}", causes.join(" and "));
    let why = "kernels run slower than possible, so rings can fill up";
    Some(warn(read, why, fix))
}
