//! Saved measurements of this machine's GPUs, which later plans use.

use crate::console::print_error;
use daq_core::gpu::driver::{Device, probe};
use daq_core::staging::{Basis, Profile, Profiles, Sending, measure};
use daq_core::topology::{Gpu, Topology, pci};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// File with the version of the NVIDIA kernel module. The first line of this file changes with every update of the
/// driver.
const MODULE: &str = "/proc/driver/nvidia/version";

/// Error message if the environment defines no directory for the profiles.
pub const NO_DIRECTORY: &str =
    "cannot save the profile: no state directory; set HOME or XDG_STATE_HOME";

/// Returns the key under which the profile of `gpu` is saved. The key depends on the hardware, the driver and the
/// topology, so that an outdated profile is not used.
pub fn fingerprint(topology: &Topology, gpu: &Gpu) -> String {
    let pci = gpu
        .pci
        .as_deref()
        .map(|address| pci::facts(Path::new("/sys"), address));
    let module = std::fs::read_to_string(MODULE).ok();
    let basis = Basis {
        topology,
        gpu,
        bridges: pci.as_ref().map_or(&[], |facts| &facts.bridges),
        cuda: probe().map_or(0, |found| found.version),
        module: module.as_deref().and_then(|text| text.lines().next()),
    };
    basis.fingerprint()
}

/// Reads the saved profiles. If they cannot be read, prints a warning and returns no profiles.
pub fn load(directory: &Path) -> Profiles {
    Profiles::load(directory).unwrap_or_else(|error| {
        print_error!("warning: {error}; until then, daq assumes default rates");
        Profiles::default()
    })
}

/// Returns the saved profiles of `topology`'s GPUs that are still valid.
pub fn known(topology: &Topology, directory: Option<&Path>) -> BTreeMap<u32, Profile> {
    let Some(directory) = directory.filter(|_| !topology.gpus.is_empty()) else {
        return BTreeMap::new();
    };
    let profiles = load(directory);
    let gpus = topology.gpus.iter();
    gpus.filter_map(|gpu| {
        let profile = profiles.get(&fingerprint(topology, gpu))?;
        Some((gpu.ordinal, profile.clone()))
    })
    .collect()
}

/// The result of a network card that sends from GPU memory.
#[derive(Clone, Debug)]
pub struct MeasuredCard {
    /// CUDA's index of the GPU.
    pub device: u32,
    /// Name of the RDMA device.
    pub card: String,
    /// The recommended method to send.
    pub sending: Sending,
}

/// Saves the measurement of a network card in the profile of its GPU. If the GPU has no profile, measures the GPU
/// first.
///
/// Returns the path of the file, or an error message.
pub fn save_card(measured: MeasuredCard, directory: Option<&Path>) -> Result<PathBuf, String> {
    let directory = directory.ok_or(NO_DIRECTORY)?;
    let topology = Topology::detect();
    let ordinal = measured.device;
    let mut gpus = topology.gpus.iter();
    let gpu = gpus.find(|gpu| gpu.ordinal == ordinal);
    let gpu = gpu.ok_or_else(|| format!("the GPU cuda:{ordinal} is no longer available"))?;
    let fingerprint = fingerprint(&topology, gpu);
    let mut profiles = load(directory);
    let mut profile = match profiles.get(&fingerprint) {
        Some(known) => known.clone(),
        None => Device::open(ordinal)
            .map_err(|error| error.to_string())
            .and_then(|device| measure(device).map_err(|error| error.to_string()))?,
    };
    profile.cards.insert(measured.card, measured.sending);
    profiles.set(fingerprint, profile);
    let kept = profiles.save(directory);
    kept.map_err(|error| {
        format!(
            "cannot save the profile in {}: {error}",
            directory.display()
        )
    })
}
