//! The source `hsb`: sensors behind a Holoscan Sensor Bridge, which send their frames as RoCE v2 writes.
//!
//! ```text
//!   sensor ─ RDMA writes over UDP ─▶ socket ─▶ headers checked ─▶ window of open slots ─▶ ring
//!     ▲
//!     └─ registers (control plane) ─ armed at startup, disarmed at shutdown
//! ```
//! By default no RDMA NIC is needed: a plain UDP socket receives the packets, and each write is checked before its payload is
//! placed. With `mode = "queue-pair"` an RDMA NIC writes the frames into memory, see [Queue pairs](#queue-pairs). One source
//! handles one sensor. Several sensors can share the data plane and the control plane of one device.
//!
//! # From writes to frames
//! The address of a write names a page and the packet in that page, see [`pages`]. The sensor reuses the pages in cyclic order;
//! the packet sequence number (PSN) identifies which frame the page holds now, see `psn.rs`. The window then handles the packet
//! by (frame, packet). A frame is complete when all its packets and its end packet have arrived; the end packet carries the
//! sensor's timestamp of the frame. When the window moves past a frame with gaps, the missing packets are marked and filled.
//!
//! # Ledger
//! The unit is the packet that carries a part of a frame.
//!
//! | event | counted as |
//! |---|---|
//! | a packet never arrives | lost, `wire_gap`; `kernel_drop` if Linux counted drops at the socket in the meantime |
//! | the sensor ends a frame early | the packets that it did not send: lost, `wire_gap`; the frame: `short` |
//! | a packet arrives after its frame was closed | lost, `late` |
//! | a packet arrives twice, or so late that its frame is no longer tracked | `duplicates` |
//! | a packet is not a write, has another queue pair or key, an address outside the pages, a wrong length or offset, or a PSN that fits no frame | `rejected` |
//! | a packet carries metadata only | `control` |
//! | the ring has no free slot for its frame | lost, `ring_full` |
//!
//! `wire_gap` includes the packets that were rejected: compare it with `rejected`. The invariant checksum of a packet (`ICRC`)
//! is not checked, because it covers parts of the IP header that a socket does not return. The checksum of each Ethernet frame
//! protects the data on the wire; RDMA NICs check both.
//!
//! Further counters: `metadata`, frames whose metadata arrived; `skipped`, frames that the sensor numbered and never
//! sent; `short`, frames that it ended early; `control_errors`, register requests that the device refused or did not
//! answer; `rearmed`, the number of times that the sensor was armed again.
//!
//! # Device restarts
//! A device that restarts loses its registers, and its sensors stop sending. See `supervisor`: after `rearm_after` without
//! a packet, the registers are read back. If they are lost, the sensor is armed again with a new key (with a new queue pair
//! in queue-pair mode). The first packet opens an epoch. Packets with the old key are `rejected`. The number of frames that
//! the sensor could not send meanwhile is unknown, so they are not counted as lost; missing packets of open frames are lost,
//! `wire_gap`. If a sensor cannot be armed at startup, arming is retried, and other sources continue to run. With
//! `device = "auto"`, discovery is retried until the device announces itself.
//!
//! # Restarted sequence numbers
//! If a sensor restarts its PSNs, an epoch opens as soon as `resync_after` packets in succession are consistent with each other and
//! fit no current frame. The new PSNs may also match old frames. If the source chooses the key, a new one each time it arms
//! the sensor, packets that match old frames are always duplicates, because a sensor must be armed before it restarts its
//! PSNs. With `control = false` or a fixed `rkey`, two frames of nothing but old PSNs open an epoch, and so does a long replay.
//! The packets before the one that confirms the restart are kept and placed once it is confirmed. If a packet of the old
//! count arrives first, or the run ends, they are counted as `rejected` or `duplicates`. At most 64 MiB of them are kept.
//!
//! # Queue pairs
//! A NIC writes the frames into slots owned by the DMA engine and reports a completion for the end packet of each frame. The
//! frames are then copied to the ring; see `queue_pair`. The unit of the ledger is the frame. Counting starts with the first
//! frame end that is received after arming; frames before it are unknown.
//!
//! | event | counted as |
//! |---|---|
//! | the end of a frame never arrives | lost, `wire_gap` |
//! | packets inside a frame never arrive | the frame is delivered as `incomplete`, with these packets filled and marked as missing; lost, `bad_packet`, if only its end arrived, or if the ring is in memory that the CPU cannot access and fill |
//! | the sensor ends a frame early | the frame is delivered as `incomplete` and counted as `short`, with the packets that the sensor did not write completely filled and marked as missing; lost, `bad_packet`, if no packet is complete, or if the ring is in memory that the CPU cannot access and fill |
//! | the sensor overwrites a frame before it was copied | lost, `overrun`; `bad_packet` if its page was not prepared, with the fault `overtaken` |
//! | more frames end in quick succession than receives are posted | frames that were not copied: lost, `overrun`; frame ends without a completion: as if the end never arrived |
//! | the sensor is armed again before completed frames were reported | lost, `overrun` |
//! | the ring has no free slot for a frame | lost, `ring_full` |
//! | an outage of more than 2^19 packets | lost, `wire_gap`, if the metadata identify the gap; otherwise a new epoch with the fault `order`, and the number of lost frames is unknown; without metadata, an outage of a multiple of 2^20 packets and of a full round over the pages is not detected |
//! | a frame end arrives again | the fault `repeated`; if its page has received another end since, frames that were not copied are lost, `overrun` |
//! | old frame ends that continue each other | a new epoch with the fault `order`; the earlier ones that were ignored: lost, `wire_gap`, with the fault `repeated` |
//! | a PSN that fits no frame | a new epoch with the fault `order`; if its page is not the next one, frames that were not copied are lost, `overrun` |
//! | the NIC refuses a write (key, address) | nothing, as if the packet had never arrived |
//! | metadata that arrived have been overwritten in the frame's page | lost, `bad_packet`, with the faults `metadata` and `overtaken` |
//! | the queue pair or the NIC fails | the fault `queue` or `card`; the queue pair is created again; unless the queue pair itself has stopped, frames that were not copied are lost, `overrun` or `bad_packet`, with the fault `overtaken` |
//! | the sensor is disarmed and does not stop sending | unless the queue pair itself has stopped, frames that were not copied are lost, `overrun` or `bad_packet`, with the fault `overtaken` |
//!
//! The further counters are the same as in socket mode and come from the metadata. Tested on emulated NICs and on soft-RoCE in
//! a QEMU guest, with an emulated bridge; not yet on a ConnectX or with a real bridge.

mod arm;
mod counts;
mod discovery;
mod ecb;
mod filler;
mod keys;
mod metadata;
mod nic;
pub mod pages;
pub mod placer;
mod psn;
mod queue_pair;
pub mod roce;
mod supervisor;

use keys::{HsbConfig, Mode};

use crate::packet::frames::sample_layout;
use crate::packet::section;
use crate::silence;
use crate::socket::RECEIVE_BUFFER;
use crate::sys::interface::Interface;
use crate::sys::socket::{Options, UdpSocket};
use counts::SensorCounts;
use daq_core::claim::Claim;
use daq_core::config::{Diagnostics, Problem, Section};
use daq_core::entry::{
    FrameFacts, Registry, SilenceHint, SourceContext, SourceEntry, SourceFacts, SourceSpec,
};
use daq_core::layout::Samples;
use daq_core::reorder::{Geometry, Numbering};
use daq_core::source::{Filler, Producers, SourceError};
use daq_core::units::ByteSize;
use ecb::{Ecb, Reservation};
use filler::{Receiver, Supervision};
use placer::Placer;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::PoisonError;
use supervisor::{Control, Find, Rearm, Target};

/// Number of bytes of a packet, besides the payload, that count towards the MTU: IPv4 20, UDP 8, BTH and RETH 28, immediate 4,
/// ICRC 4.
const OVERHEAD: usize = 64;

/// The registry entry of the source.
pub const ENTRY: SourceEntry = SourceEntry {
    name: "hsb",
    summary: "A sensor behind a Holoscan Sensor Bridge, received over a UDP socket on any NIC or a queue pair on an RDMA NIC",
    example: r#"[source.NAME]
driver = "hsb"
ring   = "OUTPUT"
listen = "0.0.0.0:4791"       # the sensor is configured to send to this address
frame  = "1 MiB"              # payload bytes per frame
device = "192.168.0.2"        # or "auto": the only device that announces itself in the network
sensor = 0
samples = { type = "uint8" }
# plane   = 0                 # host interface of the device
# packet  = "1408 B"          # a multiple of 128 that fits the MTU
# pages   = 64                # number of pages that the sensor writes in turn
# control = true              # arm and disarm the sensor; false: another program does this, and you must set:
# queue_pair = 1              #   number with 24 bits
# rkey    = 1                 #   remote key with 32 bits
# base    = 0                 #   address of page 0
# stride  = "1048704 B"       #   distance between pages
# from    = "192.168.0.2"     # accept packets from this sender only
# core    = 2                 # CPU core for the receiving thread
# receive_buffer = "64 MiB"   # limited by net.core.rmem_max
# window  = 2                 # number of frames open at the same time
# max_gap = 524288            # maximum number of packets missing in a row
# rearm_after = "2 s"         # without packets for this time, check the sensor and arm it again if necessary; 0 = never
# resync_after = 4            # packets in a row that confirm restarted sequence numbers
# close_after = "100 ms"      # time without packets after which frames with missing packets are published
# mode    = "queue-pair"      # an RDMA NIC writes the frames: use the keys below instead of `listen`, `pages` and the keys about
                              # packets
# nics    = ["mlx5_0"]        #   the NIC; "auto": the best one for the ring; ["emulated"]: for daq emulate hsb --nic emulated
# path    = "direct"          #   write directly to GPU memory, if the CPU can access it
# relaxed_ordering = true     #   allow reordering of the NIC's PCIe writes
"#,
    schema: |_| {
        let keys = schemars::schema_for!(HsbConfig);
        let defaults = [
            ("window", keys::WINDOW.into()),
            ("max_gap", keys::MAX_GAP.into()),
            ("receive_buffer", RECEIVE_BUFFER.to_string().into()),
        ];
        section::with_defaults(keys, defaults)
    },
    parse,
    recognise: &[],
};

/// A source whose configuration was checked.
#[derive(Clone, Debug)]
struct Hsb {
    config: HsbConfig,
    samples: Samples,
}

fn parse(
    section: &mut Section,
    _: &Registry,
    diagnostics: &mut Diagnostics,
) -> Option<Box<dyn SourceSpec>> {
    let config: HsbConfig = section.finish_checked(&[], diagnostics, HsbConfig::problems)?;
    let samples = config.packet_keys.samples();
    Some(Box::new(Hsb { config, samples }))
}

impl Hsb {
    fn sensor(&self) -> String {
        let HsbConfig {
            device,
            sensor,
            plane,
            ..
        } = &self.config;
        if self.config.control {
            format!("sensor {sensor} of {device}, plane {plane}")
        } else {
            "sensor armed by another program".to_owned()
        }
    }

    /// Returns whether the source chooses a new key each time it arms the sensor.
    const fn has_own_key(&self) -> bool {
        self.config.control && self.config.rkey.is_none()
    }

    /// Returns the control port of the device, or `None` if no device announces itself. For `"auto"`, the device is
    /// discovered.
    fn device(&self) -> Result<Option<SocketAddr>, SourceError> {
        if let Some(device) = self.config.device() {
            return Ok(Some(device));
        }
        let error = |why: String| SourceError::new("device = \"auto\"", why);
        let port = discovery::PORT;
        tracing::debug!(
            "waiting {} s for a device to announce itself on UDP {port}",
            discovery::TIMEOUT.as_secs_f64()
        );
        let found = discovery::listen((Ipv4Addr::UNSPECIFIED, port).into(), discovery::TIMEOUT)
            .map_err(|why| {
                error(format!(
                    "cannot listen for announcements on UDP {port}: {why}; set `device` to the address of the device"
                ))
            })?;
        let on_plane = |found: &discovery::Found| {
            let plane = found.announcement.plane;
            plane.is_none_or(|plane| u32::from(plane) == self.config.plane)
        };
        let found: Vec<_> = found.into_iter().filter(on_plane).collect();
        match found.as_slice() {
            [one] => {
                tracing::info!("found {one}");
                Ok(Some((one.address, ecb::PORT).into()))
            }
            [] => Ok(None),
            several => {
                let list: Vec<_> = several.iter().map(ToString::to_string).collect();
                Err(error(format!(
                    "several devices announce themselves; set `device` to one of {}",
                    list.join(", ")
                )))
            }
        }
    }

    /// Returns the control port of the device. Fails if no device announces itself.
    fn announced_device(&self) -> Result<SocketAddr, SourceError> {
        self.device()?.ok_or_else(|| {
            SourceError::new(
                "device = \"auto\"",
                format!(
                    "no device announced itself on UDP {} for plane {}: check that the device has power and is in this \
                     network, and that no firewall drops broadcasts; or set `device` to the device's address",
                    discovery::PORT,
                    self.config.plane
                ),
            )
        })
    }

    /// Returns the control of the sensor that sends to `local`. If the sensor's device has not announced itself yet, returns a
    /// function that discovers the device.
    fn target(&self, local: SocketAddr, pages: pages::Pages) -> Result<Target, SourceError> {
        if let Some(device) = self.device()? {
            return Ok(Target::Known(self.control(device, local, pages)?));
        }
        let hsb = self.clone();
        let find: Find = Box::new(move || {
            let device = hsb.announced_device()?;
            hsb.control(device, local, pages)
        });
        Ok(Target::Unknown(find))
    }

    /// Returns the network interface that receives the sensor's packets, if it can be determined. Sends nothing.
    fn interface(&self) -> Option<Interface> {
        let address = match self.config.listen.map(|listen| listen.ip()) {
            Some(ip) if !ip.is_unspecified() => ip,
            _ => ecb::local_address_to(self.config.device()?).ok()?,
        };
        match address {
            IpAddr::V4(address) => Interface::with_address(address).ok()?,
            IpAddr::V6(_) => None,
        }
    }

    /// Returns why the sensor's packets do not fit through `interface`, or `None` if they fit or the MTU cannot be
    /// read.
    fn mtu_problem(&self, interface: &Interface) -> Option<String> {
        let pages = self.config.pages(0);
        let packet = pages.packet.min(pages::Pages::page_bytes(pages.frame));
        too_large(packet, interface.name(), interface.mtu().ok()?)
    }

    /// Returns all parameters for arming the sensor of `device`, so that it sends to `local` and writes to `pages`.
    fn control(
        &self,
        device: SocketAddr,
        local: SocketAddr,
        pages: pages::Pages,
    ) -> Result<Control, SourceError> {
        let error = |why: String| SourceError::new(format!("device {device}"), why);
        let ecb = Ecb::shared(device).map_err(|why| error(why.to_string()))?;
        let mut host = local.ip();
        if host.is_unspecified() {
            let ecb = ecb.lock().unwrap_or_else(PoisonError::into_inner);
            host = ecb.host().map_err(|why| error(why.to_string()))?;
        }
        let IpAddr::V4(host) = host else {
            return Err(error(format!(
                "{host} is not an IPv4 address: set an IPv4 address in `listen`"
            )));
        };
        let interface = Interface::with_address(host)
            .map_err(|why| error(format!("cannot list interfaces: {why}")))?;
        let interface = interface.ok_or_else(|| {
            error(format!(
                "{host} is not an address of this machine: `ip address` lists its addresses"
            ))
        })?;
        if let Some(problem) = self.mtu_problem(&interface) {
            return Err(error(problem));
        }
        let sensor = self.config.sensor;
        let reservation = Reservation::new(&ecb, sensor).ok_or_else(|| {
            error(format!(
                "sensor {sensor} of this device is already used by another source, which names the device differently; \
                 in this source `device` is \"{}\"",
                self.config.device
            ))
        })?;
        let mac = interface.mac().map_err(|why| {
            error(format!(
                "cannot read the MAC address of {}: {why}",
                interface.name()
            ))
        })?;
        let parameters = arm::ArmParameters {
            sensor,
            plane: self.config.plane,
            pages,
            host: SocketAddrV4::new(host, local.port()),
            mac,
        };
        Ok(Control {
            ecb,
            parameters,
            reservation,
        })
    }

    fn claims(&self) -> Vec<Claim> {
        let mut claims: Vec<_> = self.config.listen.map(Claim::UdpPort).into_iter().collect();
        if self.config.control {
            let HsbConfig { device, sensor, .. } = &self.config;
            let device = self
                .config
                .device()
                .map_or_else(|| device.clone(), |device| device.to_string());
            claims.push(Claim::Device(format!("hsb {device} sensor {sensor}")));
        }
        claims
    }

    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<_> = self.config.packet_keys.note().into_iter().collect();
        if !self.config.control {
            notes.push("another program arms and disarms the sensor".to_owned());
        }
        notes.extend(self.config.socket_keys.note());
        if let Some(nic) = self.nic() {
            self.note_queue_pair(nic, &mut notes);
        }
        notes
    }

    /// Returns a function that lists possible causes if no data arrives.
    fn silence_hint(&self) -> SilenceHint {
        let sensor = self.sensor();
        let socket = self.config.listen.map(|listen| {
            let is_filtered = self.config.socket_keys.from.is_some();
            move || silence::hint(&[listen], &[], None, is_filtered)
        });
        Box::new(move || {
            let link = socket
                .as_ref()
                .map_or_else(String::new, |hint| format!("; {}", hint()));
            format!(
                "{sensor}: check that the bridge has power and a network link, and that its sensor streams{link}"
            )
        })
    }
}

impl SourceSpec for Hsb {
    fn facts(&self) -> SourceFacts {
        let by = match (self.nic(), self.config.listen) {
            (Some(nic), _) => format!(", queue pair of {nic}"),
            (None, Some(listen)) => format!(", UDP {listen}"),
            (None, None) => String::new(),
        };
        let frame = self.config.frame.bytes();
        SourceFacts {
            claims: self.claims(),
            origins: vec![self.sensor() + &by],
            preferred_slot: frame.map(|frame| match self.config.mode {
                Mode::Socket => frame,
                Mode::QueuePair => pages::Pages::page_bytes(frame),
            }),
            engine: self.nic().map(|_| self.engine_needs()),
            counts: vec![SensorCounts::SET],
            cores: self.config.core.into_iter().collect(),
            notes: self.notes(),
            silence_hint: self.silence_hint(),
            ..SourceFacts::default()
        }
    }

    fn frames(&self, slot_bytes: usize) -> Result<FrameFacts, Problem> {
        let pages = self.config.pages(0);
        if pages.frame > slot_bytes {
            let (frame, slot) = (self.config.frame, ByteSize(slot_bytes as u64));
            let message = format!("frames of {frame} do not fit into slots of {slot}");
            let help = format!("set `slot = \"{frame}\"` in the ring's section");
            return Err(Problem::at("frame", message).help(help));
        }
        let min = pages::Pages::page_bytes(pages.frame);
        if self.nic().is_some() && min > slot_bytes {
            let (min, slot) = (ByteSize(min as u64), ByteSize(slot_bytes as u64));
            let message =
                format!("a frame and its metadata ({min}) do not fit into slots of {slot}");
            let help = format!("set `slot = \"{min}\"` in the ring's section");
            return Err(Problem::at("frame", message).help(help));
        }
        let packets_per_frame = u32::try_from(pages.packets()).unwrap_or(u32::MAX);
        let geometry = Geometry {
            first_bytes: pages.packet.min(pages.frame),
            frame_bytes: pages.frame,
            numbering: Numbering {
                width: 64,
                step: 1,
                packets_per_unit: packets_per_frame,
            },
            window: self.config.window(),
            max_gap: self.config.max_gap(),
            resync_after: self.config.packet_keys.resync_after,
            close_after: self.config.packet_keys.close_after.0,
            ..Geometry::new(packets_per_frame, pages.packet)
        };
        let help = "correct `type`, `complex` or `channels`, or `frame`";
        let layout = sample_layout(&self.samples, geometry.frame_bytes, help)?;
        let resync_after = self.config.packet_keys.resync_after;
        let memory = match self.config.mode {
            Mode::Socket => {
                filler::MEMORY + placer::kept_bytes(&pages, resync_after, !self.has_own_key())
            }
            Mode::QueuePair => 0,
        };
        Ok(FrameFacts {
            memory,
            ..FrameFacts::new(geometry, layout)
        })
    }

    fn unavailable(&self) -> Option<String> {
        self.mtu_problem(&self.interface()?)
    }

    fn build(&self, context: &SourceContext) -> Result<Producers, SourceError> {
        if let Some(nic) = self.nic() {
            return self.build_queue_pair(nic, context);
        }
        let listen = self.config.listen.ok_or_else(|| {
            SourceError::new(
                "listen",
                "no address to receive on; set `listen`".to_owned(),
            )
        })?;
        let options = Options {
            coalesce: true,
            ..self.config.socket_keys.options(RECEIVE_BUFFER)
        };
        let socket = UdpSocket::open(listen, &options)
            .map_err(|why| SourceError::new(format!("UDP {listen}"), why.to_string()))?;
        let granted = socket.granted();
        if granted.is_short() {
            tracing::warn!("source {}: {granted}", context.name);
        }
        let pages = self.config.pages(key());
        let has_own_key = self.has_own_key();
        let supervision = if self.config.control {
            Some(Supervision {
                target: self.target(socket.local(), pages)?,
                rearm: if has_own_key {
                    Rearm::NewKey
                } else {
                    Rearm::SameKey
                },
                rearm_after: self.config.rearm_after.0,
            })
        } else {
            None
        };
        let window = context.geometry.window;
        let mut placer = Placer::new(
            &context.name,
            pages,
            window,
            self.config.packet_keys.resync_after,
        )
        .with_rejections(context.rejections.clone());
        if has_own_key {
            placer = placer.with_unique_key();
        }
        let receiver = Receiver::new(context, socket, placer, supervision)?;
        Ok(Producers::Fillers(vec![
            Box::new(receiver) as Box<dyn Filler>
        ]))
    }
}

/// Returns why packets with `packet` bytes of payload do not fit through the interface `name`, or `None` if they fit.
fn too_large(packet: usize, name: &str, mtu: usize) -> Option<String> {
    let max = mtu.saturating_sub(OVERHEAD) / pages::ALIGNMENT * pages::ALIGNMENT;
    (packet > max).then(|| {
        format!(
            "packets of {packet} bytes plus {OVERHEAD} bytes of headers exceed the MTU of {name}, {mtu} bytes: set `packet = \
             \"{max} B\"`, or raise the MTU along the whole path: ip link set {name} mtu {}",
            packet + OVERHEAD
        )
    })
}

/// Returns a random key.
#[expect(
    clippy::cast_possible_truncation,
    reason = "any 32 bits of the random number can be used"
)]
fn key() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}

#[cfg(test)]
mod tests;
