//! Network cards of sources and sinks: which one `auto` stands for, and whether a sink's reads a GPU's memory itself.

use super::{Config, Plan, PlannedRing};
use crate::region::Placement;
use crate::sink::SinkSpec;
use crate::staging::Profile;
use crate::topology::nic::{AUTO, EMULATED, is_emulated_nic};
use crate::topology::pci::canonical;
use crate::topology::{P2pPreference, P2pQuery, PeerAccess, Topology};
use crate::units::ByteSize;
use std::collections::BTreeMap;

/// Finds the network cards of sinks.
pub(super) fn send(plan: &mut Plan, config: &Config, topology: &Topology) {
    for i in 0..plan.sinks.len() {
        let sink = &plan.sinks[i];
        let mut sinks = config.sinks.iter();
        let declared = sinks.find(|declared| declared.name() == sink.name);
        let Some(device) = declared.and_then(|declared| declared.spec.nic()) else {
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

/// The network card that `auto` stands for, `None` where another one is named, or why there is none of the name; unknown
/// machines have all of them.
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
    // Where only cards of software are there, none is near to a GPU.
    let found = topology
        .nic_for(gpu, declared)
        .or_else(|_| topology.nic_for(None, declared));
    match found {
        Ok(nic) => Ok(is_auto.then(|| nic.name.clone())),
        Err(_) if !topology.is_real => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// Why the card of `sink` reads `ring` where it lies; or why host memory is read instead, as the end of a sentence.
pub(super) fn reads(
    sink: &dyn SinkSpec,
    ring: &PlannedRing,
    topology: &Topology,
    profiles: &BTreeMap<u32, Profile>,
) -> Result<String, String> {
    let Placement::Cuda(gpu) = ring.placement else {
        return Err(String::new());
    };
    let declared = sink.nic().unwrap_or_else(|| EMULATED.to_owned());
    let card = match card(&declared, Some(gpu), topology) {
        Ok(Some(nearest)) => nearest,
        Ok(None) | Err(_) => declared,
    };
    let at = ring.placement;
    let measured = profiles.get(&gpu).and_then(|known| known.cards.get(&card));
    let measured = measured.filter(|known| known.basis == topology.card_basis(&card));
    let size = |bytes: usize| ByteSize(bytes as u64);
    let Some(known) = measured.filter(|known| ring.slot_bytes <= known.most) else {
        let more = measured.map_or_else(String::new, |known| {
            format!(" for frames of more than {}", size(known.most))
        });
        let path = path(&card, gpu, ring, topology);
        return Err(format!(
            ": how fast {card} reads {at} was not measured{more} (`daq bench rdma --keep --nics {card} --device {gpu}` does){path}"
        ));
    };
    match known.staged_from {
        Some(from) if ring.slot_bytes >= from => Err(format!(
            ": by measurement that is as fast for frames of {} and more",
            size(from)
        )),
        Some(from) => Ok(format!(
            "{card} reads {at}: by measurement, host memory is as fast only for frames of {} and more",
            size(from)
        )),
        None => Ok(format!(
            "{card} reads {at}: by measurement, host memory is slower for frames of up to {}",
            size(known.most)
        )),
    }
}

/// Why the way between the two answers no reads, as the end of a sentence; empty where nothing speaks against it.
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
        format!("; a direct read is not expected to work: {}", path.reason)
    }
}
