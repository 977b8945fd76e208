//! Queue-pair mode: requirements for the plan, and construction of the engine.

use super::counts::SensorCounts;
use super::pages::Pages;
use super::queue_pair::{self, Parts, QueuePair};
use super::{Hsb, Mode};
use daq_core::entry::{EngineRequirements, SourceContext};
use daq_core::gpu::Writer;
use daq_core::source::{Producers, SourceError};
use daq_core::topology::P2pPreference;
use daq_core::topology::nic::is_emulated_nic;
use daq_rdma::nics;
use daq_rdma::verbs::Port;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The UDP port of RoCE v2.
const ROCE: u16 = 4791;

impl Hsb {
    /// Returns the name of the queue pair's NIC, or `None` in socket mode.
    pub(super) fn nic(&self) -> Option<&str> {
        let names = self.config.nics.as_ref()?.all();
        let is_pair = self.config.mode == Mode::QueuePair;
        names.first().filter(|_| is_pair).map(String::as_str)
    }

    pub(super) fn engine_needs(&self) -> EngineRequirements {
        let is_emulated_nic = self.nic().is_some_and(is_emulated_nic);
        let host_only = if is_emulated_nic {
            Some("an emulated NIC can only write to host memory")
        } else if self.config.path == P2pPreference::Auto {
            Some(
                "the CPU reads the marker of each packet and the metadata of each frame, which is fastest and safest in host \
                 memory; path = \"direct\" selects GPU memory",
            )
        } else {
            None
        };
        EngineRequirements {
            device: self.config.nics.as_ref().and_then(nics::NicNames::device),
            host_only: host_only.map(str::to_owned),
            cpu_reads_memory: true,
            min_slots: queue_pair::MIN_PAGES,
            ..EngineRequirements::new(&queue_pair::INFO, Writer::Nic, self.config.path)
        }
    }

    pub(super) fn note_queue_pair(&self, nic: &str, notes: &mut Vec<String>) {
        notes.push(format!(
            "a sensor cannot wait for free slots: choose a ring with enough slots for the longest delay of this \
             source's thread, at least {} and at most {} slots",
            queue_pair::MIN_PAGES,
            queue_pair::MAX_PAGES
        ));
        if self.config.path == P2pPreference::Direct {
            notes.push(
                "path = \"direct\": the CPU reads 8 bytes of each packet and the metadata from GPU memory, before the NIC's \
                 writes are flushed. A packet that becomes visible too late counts as missing. If the CPU cannot access that \
                 memory, the source does not start. With path = \"staged\", the CPU reads the packet bytes and the metadata from host memory"
                    .to_owned(),
            );
        }
        if is_emulated_nic(nic) {
            notes.push(
                "a real sensor cannot write to an emulated NIC; use `daq emulate hsb --nic emulated`"
                    .to_owned(),
            );
        }
        if self.config.relaxed_ordering {
            notes.push(
                "relaxed ordering: a frame may be published before all its writes are visible, unless the NIC \
                 guarantees the order"
                    .to_owned(),
            );
        }
        notes.push(
            "queue-pair mode is not yet tested on a ConnectX with a Holoscan Sensor Bridge"
                .to_owned(),
        );
    }

    pub(super) fn build_queue_pair(
        &self,
        nic: &str,
        context: &SourceContext,
    ) -> Result<Producers, SourceError> {
        let names = self.config.nics.as_ref();
        let nic = names
            .and_then(|names| names.resolved(context.nic.as_deref()).pop())
            .unwrap_or_else(|| nic.to_owned());
        let failed = |why: String| SourceError::new(format!("nic {nic}"), why);
        let card = nics::open(&nic).map_err(|error| failed(error.to_string()))?;
        let port = card.port().map_err(|error| failed(error.to_string()))?;
        let address = self.check_port(&nic, &port).map_err(failed)?;
        // The queue pair number and the page addresses are set when the sensor is armed.
        let pages = self.config.pages(0);
        let engine = QueuePair::new(Parts {
            name: format!("source {}", context.name),
            nic: card,
            is_emulated_nic: is_emulated_nic(&nic),
            target: self.target((address, ROCE).into(), pages)?,
            pages,
            rearm_after: self.config.rearm_after.0,
            relaxed: self.config.relaxed_ordering,
            counters: SensorCounts::of(&context.counts),
        })?;
        Ok(Producers::Engine(Box::new(engine)))
    }

    /// Checks that sensors can send to a port. Returns the port's IPv4 address or the reason.
    fn check_port(&self, nic: &str, port: &Port) -> Result<Ipv4Addr, String> {
        let gid = Ipv6Addr::from(port.gid);
        let address = gid.to_ipv4_mapped().ok_or_else(|| {
            format!(
                "GID table entry {} is {gid}, but a sensor supports only IPv4: select a RoCE v2 entry with an IPv4 address as \
                 \"{}:{}@GID\"; `rdma link` and `show_gids` list them",
                port.gid_index,
                nic.split(':').next().unwrap_or(nic),
                port.number
            )
        })?;
        let packet = self.config.packet.bytes().unwrap_or(usize::MAX);
        let largest = packet.min(Pages::page_bytes(
            self.config.frame.bytes().unwrap_or(packet),
        ));
        if largest > port.mtu as usize {
            return Err(format!(
                "packets of {packet} bytes exceed the MTU of the NIC's port, {} bytes: set `packet = \"{} B\"`, or \
                 raise the network's MTU",
                port.mtu, port.mtu
            ));
        }
        Ok(address)
    }
}
