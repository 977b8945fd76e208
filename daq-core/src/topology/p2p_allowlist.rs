//! List of processors that forward transfers from one device to another.
//!
//! No register reports this property. Linux maintains a list of host bridges that are known to forward both reads and
//! writes (drivers/pci/p2pdma.c, with the identifiers of include/linux/pci_ids.h). The constants in this file are the
//! same list. Intel's client processors are not in the list, because they forward writes between devices but not reads.

use super::p2p::PeerAccess;
use super::tree::{PciDevice, PciTree};

const INTEL: u16 = 0x8086;
/// The first family of AMD processors that forwards transfers (Zen).
const ZEN: u32 = 0x17;

/// Intel's host bridges and root ports that forward transfers only between devices below the same host bridge: Xeon E5,
/// then Xeon E5 v3 and E7 v3.
const BELOW_ONE: [u16; 4] = [0x3c00, 0x3c01, 0x2f00, 0x2f01];

/// Skylake-E: the host bridge of the first bus and root ports A to D. They also forward transfers to other host
/// bridges.
const SKYLAKE_E: [u16; 5] = [0x2020, 0x2030, 0x2031, 0x2032, 0x2033];
/// Every Xeon since Ice Lake. These also forward transfers to other host bridges.
const ICE_LAKE: [u16; 1] = [0x09a2];
/// Accelerators that are the only device on a bus of these Xeons: DSA and IAX, then QAT.
const ACCELERATORS: [u16; 10] = [
    0x0b25, 0x0cfe, 0x11fb, 0x1212, 0x1216, 0x4940, 0x4942, 0x4944, 0x4946, 0x4948,
];

impl PciTree {
    /// Determines whether transfers in `direction` are forwarded between devices below the host bridges `a` and `b`,
    /// which may be the same. Returns the reason. Returns an error with the reason if they are not forwarded or if this
    /// is unknown.
    pub(crate) fn check_peer_path(
        &self,
        a: &str,
        b: &str,
        direction: PeerAccess,
    ) -> Result<String, String> {
        if let (Some("AuthenticAMD"), Some(family @ ZEN..)) =
            (self.processor.vendor.as_deref(), self.processor.family)
        {
            return Ok(format!(
                "AMD processors of family {family:#x} forward peer-to-peer transfers"
            ));
        }
        for host in [a, b] {
            let found = self.host(host);
            let is_listed = |device: &PciDevice| {
                let among = |list: &[u16]| device.device.is_some_and(|id| list.contains(&id));
                let between = [&SKYLAKE_E[..], &ICE_LAKE, &ACCELERATORS];
                device.vendor == Some(INTEL)
                    && (between.into_iter().any(among) || (a == b && among(&BELOW_ONE)))
            };
            match found {
                Some(device) if is_listed(device) => {}
                _ if a == b && self.is_intel_client() => {
                    return match direction {
                        PeerAccess::Write => Ok(format!(
                            "{a} belongs to an Intel client processor, which forwards peer-to-peer writes"
                        )),
                        PeerAccess::Read => Err(format!(
                            "{a} belongs to an Intel client processor, which forwards peer-to-peer writes but not reads"
                        )),
                    };
                }
                found => {
                    let id = found.map_or_else(String::new, |device| format!(" ({})", device.id()));
                    return Err(format!(
                        "{host}{id} is not on Linux's list of host bridges that forward peer-to-peer transfers"
                    ));
                }
            }
        }
        let id = self.host(a).map(PciDevice::id).unwrap_or_default();
        Ok(format!(
            "{a} ({id}) is on Linux's list of host bridges that forward peer-to-peer transfers"
        ))
    }

    /// Whether the processor is an Intel processor other than a Xeon; false if its name is unknown, or in a virtual
    /// machine.
    fn is_intel_client(&self) -> bool {
        let processor = &self.processor;
        processor.vendor.as_deref() == Some("GenuineIntel")
            && !processor.is_virtual
            && processor
                .name
                .as_deref()
                .is_some_and(|name| !name.contains("Xeon"))
    }
}
