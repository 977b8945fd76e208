//! Implements [`Nic`] for hardware NICs.

use super::context::Context;
use super::device::{self, DeviceInfo};
use super::errno::found;
use super::ffi as ib;
use super::memory;
use super::modify::{self, PortRef};
use super::queue_pair::{GRH_BYTES, MAX_SGES, QueuePairParts, VerbsQueuePair};
use crate::verbs::{
    Access, Endpoint, Limits, MemoryRegion, Nic, NicEvent, Port, QueuePair, QueuePairOptions,
    RegistrationMethod, Service, VerbsError,
};
use daq_core::region::{HostOptions, Region};
use daq_core::units::counted;
use std::fmt;
use std::sync::Arc;

/// Inline sizes in bytes that are tried, largest first.
const INLINE: [u32; 4] = [512, 256, 128, 64];

/// An opened NIC with one of its ports.
pub(crate) struct VerbsNic {
    context: Arc<Context>,
    port: u8,
    gid_index: u8,
    is_mlx5: bool,
    limits: Limits,
}

impl fmt::Debug for VerbsNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Card")
            .field("name", &self.context.name())
            .field("port", &self.port)
            .field("gid_index", &self.gid_index)
            .finish_non_exhaustive()
    }
}

impl VerbsNic {
    /// Opens a NIC at a port. Without `gid_index` the default GID is used.
    pub(crate) fn open(name: &str, port: u8, gid_index: Option<u8>) -> Result<Self, VerbsError> {
        let context = Context::open(name)?;
        let info = device::info(device::SYSFS.as_ref(), name);
        let gid_index = match gid_index {
            Some(index) => index,
            None => default_gid_index(&info, port)?,
        };
        let attributes = context.attributes()?;
        let state = context.port(port)?;
        let count = |value: i32| u32::try_from(value).unwrap_or(0);
        let limits = Limits {
            max_work: count(attributes.max_qp_wr),
            max_completions: count(attributes.max_cqe),
            max_sges: count(attributes.max_sge).min(u32::try_from(MAX_SGES).unwrap_or(16)),
            max_message: state.max_msg_sz.into(),
            max_inline: 0,
        };
        let mut card = Self {
            context,
            port,
            gid_index,
            is_mlx5: info.driver.starts_with("mlx5"),
            limits,
        };
        card.limits.max_inline = card.inline();
        Ok(card)
    }

    /// Returns the maximum number of inline bytes. No verbs call returns this number, so daq finds it by creating
    /// queue pairs.
    fn inline(&self) -> u32 {
        INLINE
            .into_iter()
            .find_map(|inline| {
                let options = QueuePairOptions {
                    service: Service::Rc,
                    sends: 1,
                    receives: 1,
                    sges: 1,
                    inline,
                    events: false,
                };
                Some(self.make(&options).ok()?.inline())
            })
            .unwrap_or(0)
    }

    fn make(&self, options: &QueuePairOptions) -> Result<VerbsQueuePair, VerbsError> {
        let port = self.port()?;
        let header = (options.service == Service::Ud)
            .then(|| self.header())
            .transpose()?;
        let parts = QueuePairParts {
            context: &self.context,
            port_ref: PortRef {
                port: self.port,
                gid_index: self.gid_index,
                is_ethernet: port.is_ethernet,
            },
            endpoint: Endpoint {
                lid: port.lid,
                gid: port.gid,
                mtu: port.mtu,
                ..Endpoint::default()
            },
            is_mlx5: self.is_mlx5,
            header,
        };
        VerbsQueuePair::new(parts, options)
    }

    /// Registers a buffer for the header of datagrams.
    fn header(&self) -> Result<MemoryRegion, VerbsError> {
        let region = Region::host(GRH_BYTES as usize, HostOptions::default()).map_err(|why| {
            found(
                self.context.name(),
                "allocating memory for the header of datagrams",
                why.to_string(),
            )
        })?;
        let access = Access {
            local_write: true,
            ..Access::default()
        };
        memory::register(&self.context, &region, RegistrationMethod::Host, access)
    }
}

/// Returns the default index in the GID table of port `number`.
fn default_gid_index(info: &DeviceInfo, number: u8) -> Result<u8, VerbsError> {
    let name = info.name.as_str();
    let Some(port) = info.ports.iter().find(|port| port.number == number) else {
        return Err(found(
            name,
            format!("cannot use port {number}"),
            format!(
                "the NIC has {}, numbered from 1",
                counted(info.ports.len(), "port")
            ),
        ));
    };
    match device::choose(port) {
        Some(address) => Ok(address.index),
        None if port.is_ethernet => Err(found(
            name,
            format!("cannot select a GID of port {number}"),
            "the port has no RoCE v2 address: bring the port's network device up (`ip link set … up`) and assign an IP address",
        )),
        None => Ok(0),
    }
}

impl Nic for VerbsNic {
    fn name(&self) -> &str {
        self.context.name()
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn port(&self) -> Result<Port, VerbsError> {
        let state = self.context.port(self.port)?;
        Ok(Port {
            number: self.port,
            is_active: state.state == ib::ibv_port_state::IBV_PORT_ACTIVE,
            is_ethernet: u32::from(state.link_layer) == ib::IBV_LINK_LAYER_ETHERNET,
            mtu: modify::mtu_bytes(state.active_mtu),
            lid: state.lid,
            gid_index: self.gid_index,
            gid: self.context.gid(self.port, self.gid_index)?,
        })
    }

    fn register(
        &self,
        region: &Arc<Region>,
        method: RegistrationMethod,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        memory::register(&self.context, region, method, access)
    }

    fn create_queue_pair(
        &self,
        options: &QueuePairOptions,
    ) -> Result<Box<dyn QueuePair>, VerbsError> {
        let inline = options.inline.min(self.limits.max_inline);
        let options = QueuePairOptions { inline, ..*options };
        Ok(Box::new(self.make(&options)?))
    }

    fn event(&self) -> Option<NicEvent> {
        self.context.event()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::device::{Address, AddressKind, PortInfo};

    #[test]
    fn port_without_address_is_reported_with_fix() {
        let port = PortInfo {
            number: 1,
            is_ethernet: true,
            addresses: vec![Address {
                index: 0,
                gid: [1; 16],
                kind: AddressKind::RoceV1,
            }],
        };
        let mut info = DeviceInfo {
            name: "mlx5_0".to_owned(),
            driver: "mlx5_core".to_owned(),
            ports: vec![port],
        };
        let error = default_gid_index(&info, 1).unwrap_err().to_string();
        assert!(error.contains("ip link set"), "{error}");
        let error = default_gid_index(&info, 2).unwrap_err().to_string();
        assert!(error.contains("the NIC has 1 port,"), "{error}");
        info.ports[0].addresses[0].kind = AddressKind::RoceV2;
        assert_eq!(default_gid_index(&info, 1).unwrap(), 0);
        info.ports[0].is_ethernet = false;
        info.ports[0].addresses.clear();
        assert_eq!(
            default_gid_index(&info, 1).unwrap(),
            0,
            "InfiniBand uses the LID"
        );
    }
}
