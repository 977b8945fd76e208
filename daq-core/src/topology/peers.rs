//! Which GPUs can access each other's memory.

use super::{Gpu, Topology};
use crate::gpu::driver::PeerLink;
use std::fmt::Write as _;

impl Topology {
    /// Returns the GPU with this CUDA ordinal.
    pub fn gpu_at(&self, ordinal: u32) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.ordinal == ordinal)
    }

    /// Returns the link over which GPU `from` writes the memory of GPU `to`; `None` if it cannot, or if this is unknown.
    pub fn peer_link(&self, from: u32, to: u32) -> Option<PeerLink> {
        self.gpu_at(from)?.peers.as_ref()?.get(&to).copied()
    }

    /// Returns the PCI address of the bridge whose PCIe link to the processor two GPUs share; `None` if each GPU has its
    /// own link, or if this is unknown.
    pub fn shared_bridge(&self, gpu: u32, other: u32) -> Option<&str> {
        let upstream = |ordinal| {
            let address = self.gpu_at(ordinal)?.pci.as_deref()?;
            Some(&self.pci.device(address)?.upstream)
        };
        let (bridges, others) = (upstream(gpu)?, upstream(other)?);
        let mut shared = bridges.iter().filter(|bridge| others.contains(bridge));
        shared.next().map(String::as_str)
    }

    /// Describes, in one line per GPU, which other GPUs' memory it can write; empty with fewer than two GPUs.
    pub fn peers(&self) -> String {
        let mut text = String::new();
        if self.gpus.len() < 2 {
            return text;
        }
        for gpu in &self.gpus {
            let peers = match &gpu.peers {
                None => "unknown".to_owned(),
                Some(peers) if peers.is_empty() => "none".to_owned(),
                Some(peers) => {
                    let peers = peers.iter();
                    let peers = peers.map(|(peer, link)| format!("cuda:{peer} ({link})"));
                    peers.collect::<Vec<_>>().join(", ")
                }
            };
            let _ = writeln!(text, "GPUs that cuda:{} can write: {peers}", gpu.ordinal);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(peers: [Option<&[(u32, PeerLink)]>; 3]) -> Topology {
        let gpus = (0..).zip(peers).map(|(ordinal, peers)| Gpu {
            peers: peers.map(|peers| peers.iter().copied().collect()),
            ..Gpu::new(ordinal, "Test")
        });
        Topology {
            gpus: gpus.collect(),
            ..Topology::unknown()
        }
    }

    #[test]
    fn link_is_known_per_direction() {
        let topology = topology([Some(&[(1, PeerLink::NvLink)]), Some(&[]), None]);
        assert_eq!(topology.peer_link(0, 1), Some(PeerLink::NvLink));
        for (from, to) in [(1, 0), (0, 2), (2, 0), (0, 0), (0, 7), (7, 0)] {
            assert_eq!(topology.peer_link(from, to), None, "{from} → {to}");
        }
    }

    #[test]
    fn peers_are_listed_for_several_gpus() {
        let nvlink = [(1, PeerLink::NvLink), (2, PeerLink::Pcie)];
        let mut topology = topology([Some(&nvlink), Some(&[]), None]);
        assert_eq!(
            topology.peers(),
            "GPUs that cuda:0 can write: cuda:1 (NVLink), cuda:2 (PCIe)\n\
             GPUs that cuda:1 can write: none\n\
             GPUs that cuda:2 can write: unknown\n"
        );
        topology.gpus.truncate(1);
        assert_eq!(topology.peers(), "");
    }
}
