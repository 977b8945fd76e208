//! Checks the GPU's state as reported by NVML: persistence mode, memory errors, MIG slices and clocks.

use super::nvml::{Brakes, NvmlCard, SOURCE};
use super::{Card, Finding, Verdict};

/// Returns the findings of one GPU. Returns an empty list if NVML was not queried or has failed, because the findings
/// about the driver report a failure.
pub(super) fn examine(card: &Card) -> Vec<Finding> {
    let Some(facts) = card.nvml else {
        return Vec::new();
    };
    [
        Some(persistence(card, facts)),
        // Not every GPU counts memory errors, and few GPUs support MIG.
        facts.uncorrected.map(|errors| uncorrected(card, errors)),
        facts.is_mig.map(|is_mig| slices(card, is_mig)),
        Some(clocks(card, facts)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn persistence(card: &Card, facts: &NvmlCard) -> Finding {
    let finding = card.finding("persistence mode", SOURCE);
    match facts.is_persistent {
        None => finding,
        Some(true) => finding.read(Verdict::Ok, "on"),
        Some(false) => finding
            .read(Verdict::Warn, "off")
            .why("the driver shuts down a GPU that no program uses; the next start takes seconds and resets the GPU's counters")
            .fix(format!(
                "sudo nvidia-smi -i {} -pm 1  # permanently: sudo systemctl enable --now nvidia-persistenced",
                card.address
            )),
    }
}

fn uncorrected(card: &Card, errors: u64) -> Finding {
    let finding = card
        .finding("memory errors", SOURCE)
        .read(Verdict::Ok, errors.to_string());
    if errors == 0 {
        return finding;
    }
    finding
        .read(Verdict::Warn, format!("{errors} uncorrected"))
        .why("GPU memory was corrupted since the driver was loaded; the driver ends every CUDA context that reads the corrupted memory")
        .fix(format!(
            "nvidia-smi -q -d ECC,ROW_REMAPPER -i {0}  # then stop all programs on the GPU and run sudo nvidia-smi -r -i {0}",
            card.address
        ))
}

fn slices(card: &Card, is_mig: bool) -> Finding {
    let finding = card.finding("MIG", SOURCE);
    if is_mig {
        finding
            .read(Verdict::Ok, "on")
            .why("MIG is enabled: CUDA sees slices of the GPU, each with a part of the memory and copy engines")
            .fix(format!("sudo nvidia-smi -i {} -mig 0", card.address))
    } else {
        finding.read(Verdict::Ok, "off")
    }
}

fn clocks(card: &Card, facts: &NvmlCard) -> Finding {
    let finding = card.finding("clocks", SOURCE);
    let Some(brakes) = facts.brakes else {
        return finding;
    };
    let address = card.address;
    let Brakes {
        power,
        heat,
        unnamed,
    } = brakes;
    let causes: Vec<_> = [(heat, "heat"), (power, "power"), (unnamed, "the hardware")]
        .into_iter()
        .filter_map(|(holds, cause)| holds.then_some(cause))
        .collect();
    let degrees = facts
        .temperature
        .map_or_else(String::new, |degrees| format!(", {degrees} °C"));
    if causes.is_empty() {
        return finding.read(Verdict::Ok, format!("free{degrees}"));
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
    finding
        .read(
            Verdict::Warn,
            format!("slowed down by {}{degrees}", causes.join(" and ")),
        )
        .why("kernels run slower than possible, so rings can fill up")
        .fix(fix)
}
