//! NICs of sources and sinks: which NIC `auto` selects, and whether a sink's NIC reads GPU memory directly.

use super::{Config, Plan, PlannedRing};
use crate::region::Placement;
use crate::staging::Profile;
use crate::topology::nic::{AUTO, EMULATED, is_emulated_nic};
use crate::topology::pci::canonical;
use crate::topology::{P2pPreference, P2pQuery, PeerAccess, Topology};
use crate::units::ByteSize;
use std::collections::BTreeMap;

/// Selects the NICs of sinks.
pub(super) fn assign_to_sinks(plan: &mut Plan, config: &Config, topology: &Topology) {
    for i in 0..plan.sinks.len() {
        let sink = &plan.sinks[i];
        let mut sinks = config.sinks.iter();
        let declared = sinks.find(|declared| declared.name() == sink.name);
        let Some(device) = declared.and_then(|declared| declared.spec.facts().nic) else {
            continue;
        };
        let gpu = match plan.ring(&sink.input).map(|ring| ring.placement) {
            Some(Placement::Cuda(ordinal)) => Some(ordinal),
            _ => None,
        };
        match card(&device, gpu, topology) {
            Ok(nic) => plan.sinks[i].nic = nic,
            Err(why) => {
                let why = format!("sink `{}`: {why}", sink.name);
                plan.unavailable.push(why);
            }
        }
    }
}

/// Returns the NIC that `auto` selects, or `None` if `device` names a NIC.
///
/// # Errors
/// Returns an error if the host has no such NIC. Without hardware detection, every NIC is assumed to exist.
pub(super) fn card(
    device: &str,
    gpu: Option<u32>,
    topology: &Topology,
) -> Result<Option<String>, String> {
    if is_emulated_nic(device) || canonical(device).is_some() {
        return Ok(None);
    }
    let is_auto = device == AUTO;
    let declared = (!is_auto).then_some(device);
    // An emulated NIC has no distance to a GPU, so it is found only by the search without a GPU.
    let found = topology
        .nic_for(gpu, declared)
        .or_else(|_| topology.nic_for(None, declared));
    match found {
        Ok(nic) => Ok(is_auto.then(|| nic.name.clone())),
        Err(_) if !topology.is_real => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the reason why the NIC `declared` of a sink reads `ring` directly. If the NIC reads host memory instead, the error is
/// the reason, as the end of a sentence.
pub(super) fn reads(
    declared: Option<String>,
    ring: &PlannedRing,
    topology: &Topology,
    profiles: &BTreeMap<u32, Profile>,
) -> Result<String, String> {
    let Placement::Cuda(gpu) = ring.placement else {
        return Err(String::new());
    };
    let declared = declared.unwrap_or_else(|| EMULATED.to_owned());
    let card = match card(&declared, Some(gpu), topology) {
        Ok(Some(nearest)) => nearest,
        Ok(None) | Err(_) => declared,
    };
    let at = ring.placement;
    let measured = profiles.get(&gpu).and_then(|known| known.cards.get(&card));
    let measured = measured.filter(|known| known.basis == topology.measurement_basis(&card));
    let size = |bytes: usize| ByteSize(bytes as u64);
    let Some(known) = measured.filter(|known| ring.slot_bytes <= known.max_bytes) else {
        let more = measured.map_or_else(String::new, |known| {
            format!(" for frames larger than {}", size(known.max_bytes))
        });
        let path = path(&card, gpu, ring, topology);
        return Err(format!(
            ", because direct reads of {at} by {card} were not measured{more}; to measure, run: daq bench rdma --keep --nics {card} --device {gpu}{path}"
        ));
    };
    match known.staged_from {
        Some(from) if ring.slot_bytes >= from => Err(format!(
            ", because sending through host memory was measured to be as fast as direct reads for frames of {} or more",
            size(from)
        )),
        Some(from) => Ok(format!(
            "{card} reads {at} directly, because sending through host memory was measured to be as fast only for frames of {} or more",
            size(from)
        )),
        None => Ok(format!(
            "{card} reads {at} directly, because sending through host memory was measured to be slower for frames of up to {}",
            size(known.max_bytes)
        )),
    }
}

/// Returns, as the end of a sentence, why direct reads are not expected to work; empty if direct reads are expected to
/// work.
fn path(card: &str, gpu: u32, ring: &PlannedRing, topology: &Topology) -> String {
    if is_emulated_nic(card) {
        return String::new();
    }
    let path = topology.p2p_path(&P2pQuery {
        device: card,
        gpu,
        bytes: ring.region_bytes as u64,
        preference: P2pPreference::Auto,
        direction: PeerAccess::Read,
    });
    if path.direct {
        String::new()
    } else {
        format!("; direct reads will probably fail: {}", path.reason)
    }
}
