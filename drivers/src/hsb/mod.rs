//! The source `hsb`: sensors behind a Holoscan Sensor Bridge, which write their frames by RoCE v2.
//!
//! ```text
//!   sensor ─ RDMA writes over UDP ─▶ socket ─▶ headers checked ─▶ window of open slots ─▶ ring
//!     ▲
//!     └─ registers (control plane) ─ armed at start, disarmed at the end
//! ```
//! By default no RDMA card is needed: the packets are taken from a plain UDP socket, and each write is checked before it is
//! placed. With `mode = "queue-pair"` an RDMA card takes the writes into memory itself, see [Queue pairs](#queue-pairs). A
//! sensor has the data plane and the control plane of its device in common with others: one source a sensor.
//!
//! # From writes to frames
//! A write's address names a page and a packet of the frame in it, see [`pages`]; its packet sequence number says which of
//! the frames that this page holds in turn it is, see [`order`]. The window then knows it as (frame, packet). A frame is
//! complete when all its packets have come and the one that ends it, which brings the sensor's time of the frame. Of one
//! with gaps, what is missing is marked and filled when the window has left it behind.
//!
//! # Ledger
//! The unit is the packet that carries a part of a frame.
//!
//! | what happens | what is counted |
//! |---|---|
//! | a packet never comes | lost, `wire_gap`; `kernel_drop` if the kernel counted drops at the socket meanwhile |
//! | the sensor ends a frame early | what it did not send: lost, `wire_gap`, and the frame is counted as `short` |
//! | it comes after its frame was closed | lost, `late` |
//! | it comes twice, or so long after the others of its frame that nothing is known of it any more | `duplicates` |
//! | it is no write, of another queue pair or key, outside the pages, not of a packet's length or at its place, or its number fits no frame | `rejected` |
//! | it carries metadata alone | `control` |
//! | its frame finds no slot | lost, `ring_full` |
//!
//! `wire_gap` are packets that never came and those that were refused: compare it with `rejected`. A packet's invariant
//! checksum (`ICRC`) is not looked at: it covers parts of the IP header that no socket tells. What guards the bytes on the
//! way is the checksum of each Ethernet frame; cards that do RDMA look at both.
//!
//! Beside it are counted: `metadata`, frames whose metadata came; `skipped`, frames that the sensor numbered and never
//! sent; `short`, frames that it ended early; `control_errors`, requests of this source to the device's registers that it
//! did not answer or refused; `rearmed`, times that the sensor was armed again.
//!
//! # Restarts
//! A device that restarts loses its registers, and its sensors send nothing. See `supervisor`: after `rearm_after` without
//! a packet the registers are read back, and where they are lost the sensor is armed again with a new key (of a queue pair,
//! with a new queue pair). The first packet opens an epoch. Packets with the old key are `rejected`. What the sensor did not
//! send meanwhile is not known and not counted as lost; packets of frames that were open are lost, `wire_gap`. A sensor
//! that cannot be armed at startup is tried again, so that it does not end other sources. With `device = "auto"`, a device
//! that does not announce itself at startup is looked for until it does.
//!
//! # Counting anew
//! A sensor that restarts its count opens an epoch when `agree` packets in succession fit each other and no frame. Their
//! numbers may also fit frames of long ago. Where the key is ours, new each time the sensor is armed, those are repeated
//! packets for ever, because a sensor must be armed before it restarts its count; with `control = false` or an `rkey` that is
//! given, two frames of nothing else open an epoch, and so does a long replay. The packets before the one that confirms the
//! new count are kept, and placed once it is confirmed. If a packet of the old count comes first, or the run ends, they are
//! counted as `rejected` or as `duplicates`. At most 64 MiB of them are kept.
//!
//! # Queue pairs
//! A network card writes the frames into slots of the engine's own, from where they are copied to the ring, and completes
//! the packet that ends each; see `queue_pair`. The unit of the ledger is the frame; the first whose end is heard after an
//! arming begins the count, and of those before it nothing is known.
//!
//! | what happens | what is counted |
//! |---|---|
//! | a frame's end never comes | lost, `wire_gap` |
//! | packets inside of a frame never come | delivered as `incomplete`, those filled and marked as missing; lost, `bad_packet`, where nothing but its end came, or where the ring lies in memory that the CPU does not reach, so that nothing can be filled |
//! | the sensor ends a frame early | the same with the packets that it did not write to their ends, and the frame is counted as `short`; lost, `bad_packet`, where none is whole |
//! | the sensor comes round before a frame was copied | lost, `overrun`; `bad_packet` where its page was not ready for it, with the fault `overtaken` |
//! | more frames end at a time than there are receives | those that were not copied: lost, `overrun`; those of which nothing is heard as ends that never come |
//! | it is armed anew before frames were told of | lost, `overrun` |
//! | its frame finds no slot | lost, `ring_full` |
//! | an outage of more than 2^19 packets | by the metadata, lost, `wire_gap`; where they do not tell, a new epoch, with the fault `order`, and the loss is not known; without metadata one that is a multiple of 2^20 packets and of a round over the pages is not seen |
//! | a frame's end comes again | the fault `repeated`; where its page has another end since, frames that were not copied are lost, `overrun` |
//! | ends of the past that go on from each other | a new epoch, with the fault `order`; those that were not believed before: lost, `wire_gap`, with the fault `repeated` |
//! | a number that fits no frame | a new epoch, with the fault `order`; where its page is not the next, frames that were not copied are lost, `overrun` |
//! | the card refuses a write: key, address | nothing, as if it had never come |
//! | metadata that came are not in the frame's page any more | lost, `bad_packet`, with the faults `metadata` and `overtaken` |
//! | the queue or the card fails | the fault `queue` or `card`; all is made anew; unless the queue itself has stopped, frames that were not copied are lost, `overrun` or `bad_packet`, with the fault `overtaken` |
//! | it is disarmed and does not fall silent | frames that were not copied: the same |
//!
//! Beside it the same is counted, from the metadata. It has run on cards of software, and on
//! soft-RoCE in a QEMU guest, with a simulated bridge: not yet on a ConnectX, nor with a real one.

mod arm;
mod card;
mod config;
mod discovery;
mod ecb;
mod filler;
#[cfg(test)]
#[path = "../../tests/common/hsb_packet.rs"]
mod hand;
pub mod metadata;
pub mod order;
pub mod pages;
pub mod placer;
mod queue_pair;
pub mod roce;
mod seen;
mod supervisor;

pub use config::{HsbConfig, Mode};

use crate::list::List;
use crate::sender;
use crate::silence;
use crate::sys::interface::Interface;
use crate::sys::socket::{Options, UdpSocket};
use daq_core::claim::Claim;
use daq_core::config::{Diagnostics, Problem, Section};
use daq_core::entry::{EngineRequirements, SilenceHint, SourceContext, SourceEntry, SourceSpec};
use daq_core::layout::{Layout, Samples};
use daq_core::reorder::{Geometry, Numbering};
use daq_core::source::{Filler, Producers, SourceError};
use daq_core::units::ByteSize;
use ecb::{Ecb, Taken};
use filler::{Receiver, Supervision};
use placer::Placer;
use seen::COUNTS;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::PoisonError;
use supervisor::{Control, Find, Rearm, Target};

/// Bytes of a packet beside its payload that count towards the MTU: IPv4 20, UDP 8, base and RDMA headers 28, immediate 4,
/// checksum 4.
const OVERHEAD: usize = 64;

/// The registry entry.
pub const ENTRY: SourceEntry = SourceEntry {
    name: "hsb",
    summary: "A sensor behind a Holoscan Sensor Bridge, over a UDP socket of any network card or a queue pair of one that does RDMA",
    example: EXAMPLE,
    schema: || schemars::schema_for!(HsbConfig),
    parse,
};

const EXAMPLE: &str = r#"[source.NAME]
driver = "hsb"
ring   = "OUTPUT"
listen = "0.0.0.0:4791"       # the sensor is told to send there
frame  = "1 MiB"              # payload bytes of a frame
device = "192.168.0.2"        # or "auto": the only one that announces itself
sensor = 0
samples = { type = "uint8" }
# plane   = 0                 # the device's host interface
# packet  = "1408 B"          # a multiple of 128 that fits the MTU
# pages   = 64                # that the sensor writes to in turn
# control = true              # arm and disarm it; false where somebody else does, then:
# queue_pair = 1              #   24 bits
# rkey    = 1                 #   32 bits
# base    = 0                 #   address of page 0
# stride  = "1048704 B"       #   from page to page
# from    = "192.168.0.2"     # accept packets of this sender only
# core    = 2                 # for its thread
# receive_buffer = "64 MiB"   # limited by net.core.rmem_max
# window  = 2                 # frames open at a time
# max_gap = 524288            # packets that may be missing in a row
# rearm_after = "2 s"         # silence after which a restarted device is looked for and armed again; 0 = never
# agree   = 4                 # packets in a row that confirm a restarted count
# mode    = "queue-pair"      # written by a card that does RDMA: with the keys below instead of `listen`, `pages` and those that
                              # speak of packets
# nics    = ["mlx5_0"]        #   the card; "auto": the one that suits the ring; ["software"]: for daq emulate hsb --nic software
# path    = "direct"          #   straight into a GPU's memory, where the CPU reaches that
# relaxed_ordering = true     #   let the card's writes pass each other on the bus
"#;

/// A checked configuration.
#[derive(Clone, Debug)]
struct Hsb {
    config: HsbConfig,
    samples: Samples,
}

fn parse(section: &mut Section, diagnostics: &mut Diagnostics) -> Option<Box<dyn SourceSpec>> {
    let config: HsbConfig = section.finish_checked(&[], diagnostics, HsbConfig::problems)?;
    let samples = config.samples.clone().unwrap_or_default();
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
            "sensor armed by others".to_owned()
        }
    }

    /// Whether the sensor is given a new key each time it is armed.
    const fn has_own_key(&self) -> bool {
        self.config.control && self.config.rkey.is_none()
    }

    /// The control port of the device, found where it is not named; `None` where no device announces itself.
    fn device(&self) -> Result<Option<SocketAddr>, SourceError> {
        if let Some(device) = self.config.device() {
            return Ok(Some(device));
        }
        let error = |why: String| SourceError::new("device = \"auto\"", why);
        let port = discovery::PORT;
        tracing::debug!(
            "looking for the device for {} s: it announces itself on UDP {port}",
            discovery::TIMEOUT.as_secs_f64()
        );
        let found = discovery::listen((Ipv4Addr::UNSPECIFIED, port).into(), discovery::TIMEOUT)
            .map_err(|why| {
                error(format!(
                    "cannot listen for devices on UDP {port}: {why}; name the device by its address"
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
                    "several devices announce themselves, name one of {}",
                    list.join(", ")
                )))
            }
        }
    }

    /// The control port of the device; an error where no device announces itself.
    fn announced_device(&self) -> Result<SocketAddr, SourceError> {
        self.device()?.ok_or_else(|| {
            SourceError::new(
                "device = \"auto\"",
                format!(
                    "no device announced itself on UDP {} for plane {}: check that it is on and in this network, and that no \
                     firewall drops broadcasts; or name the device by its address",
                    discovery::PORT,
                    self.config.plane
                ),
            )
        })
    }

    /// The sensor that is to send to `local`: of a device that does not announce itself yet, what looks for it.
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

    /// The interface that the sensor's packets arrive on, as far as this machine has it. Sends nothing.
    fn interface(&self) -> Option<Interface> {
        let address = match self.config.listen.map(|listen| listen.ip()) {
            Some(ip) if !ip.is_unspecified() => ip,
            _ => ecb::host_towards(self.config.device()?).ok()?,
        };
        match address {
            IpAddr::V4(address) => Interface::with_address(address).ok()?,
            IpAddr::V6(_) => None,
        }
    }

    /// Why the sensor's packets do not fit through `interface`; `None` where they do, or its MTU cannot be read.
    fn mtu_problem(&self, interface: &Interface) -> Option<String> {
        let pages = self.config.pages(0);
        let packet = pages.packet.min(pages::Pages::page_bytes(pages.frame));
        too_large(packet, interface.name(), interface.mtu().ok()?)
    }

    /// Everything that arms the sensor of `device` to send to `local`, as `pages` say.
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
                "{host} is not IPv4: listen on an IPv4 address"
            )));
        };
        let interface = Interface::with_address(host)
            .map_err(|why| error(format!("cannot list interfaces: {why}")))?;
        let interface = interface.ok_or_else(|| {
            error(format!(
                "{host} is no address of this machine: `ip address` lists them"
            ))
        })?;
        if let Some(problem) = self.mtu_problem(&interface) {
            return Err(error(problem));
        }
        let sensor = self.config.sensor;
        let taken = Taken::take(&ecb, sensor).ok_or_else(|| {
            error(format!(
                "another source has its sensor {sensor} already, although they name the device differently: `device` is \"{}\" \
                 here",
                self.config.device
            ))
        })?;
        let mac = interface.mac().map_err(|why| {
            error(format!(
                "cannot read the MAC address of {}: {why}",
                interface.name()
            ))
        })?;
        let orders = arm::Orders {
            sensor,
            plane: self.config.plane,
            pages,
            host: SocketAddrV4::new(host, local.port()),
            mac,
        };
        Ok(Control { ecb, orders, taken })
    }
}

impl SourceSpec for Hsb {
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

    fn origins(&self) -> Vec<String> {
        let by = match (self.nic(), self.config.listen) {
            (Some(nic), _) => format!(", queue pair of {nic}"),
            (None, Some(listen)) => format!(", UDP {listen}"),
            (None, None) => String::new(),
        };
        vec![self.sensor() + &by]
    }

    fn preferred_slot(&self) -> Option<usize> {
        let frame = self.config.frame.bytes()?;
        Some(match self.config.mode {
            Mode::Socket => frame,
            Mode::QueuePair => pages::Pages::page_bytes(frame),
        })
    }

    fn geometry(&self, slot_bytes: usize) -> Result<Geometry, Problem> {
        let pages = self.config.pages(0);
        if pages.frame > slot_bytes {
            let (frame, slot) = (self.config.frame, ByteSize(slot_bytes as u64));
            let message = format!("frames of {frame} do not fit into slots of {slot}");
            let help = format!("set `slot = \"{frame}\"` in the ring's section");
            return Err(Problem::at("frame", message).help(help));
        }
        let least = pages::Pages::page_bytes(pages.frame);
        if self.nic().is_some() && least > slot_bytes {
            let (least, slot) = (ByteSize(least as u64), ByteSize(slot_bytes as u64));
            let message =
                format!("a frame and its metadata, {least}, do not fit into slots of {slot}");
            let help = format!("set `slot = \"{least}\"` in the ring's section");
            return Err(Problem::at("frame", message).help(help));
        }
        let places = u32::try_from(pages.packets()).unwrap_or(u32::MAX);
        let HsbConfig {
            window,
            max_gap,
            agree,
            ..
        } = self.config;
        Ok(Geometry {
            first_bytes: pages.packet.min(pages.frame),
            frame_bytes: pages.frame,
            numbering: Numbering {
                width: 64,
                step: 1,
                places_per_unit: places,
            },
            window,
            max_gap,
            resync_after: agree,
            ..Geometry::new(places, pages.packet)
        })
    }

    fn layout(&self, geometry: &Geometry) -> Result<Layout, Problem> {
        let bytes = geometry.frame_bytes;
        self.samples.layout(bytes).map_err(|rest| {
            let message = format!("a frame of {bytes} bytes ends {rest} bytes into a sample");
            Problem::at("samples", message)
                .help("correct `type`, `complex` or `channels`, or `frame`")
        })
    }

    fn supports_backpressure(&self) -> bool {
        false
    }

    fn engine(&self) -> Option<EngineRequirements> {
        self.nic().map(|_| self.engine_needs())
    }

    fn counts(&self) -> &'static [&'static str] {
        COUNTS
    }

    fn memory(&self, _geometry: &Geometry) -> usize {
        match self.config.mode {
            Mode::Socket => {
                let (pages, can_return) = (self.config.pages(0), !self.has_own_key());
                filler::MEMORY + placer::kept_bytes(&pages, self.config.agree, can_return)
            }
            Mode::QueuePair => 0,
        }
    }

    fn cores(&self) -> Vec<usize> {
        self.config.core.into_iter().collect()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.config.samples.is_none() {
            notes.push("samples not declared: int8 assumed".to_owned());
        }
        if !self.config.control {
            notes.push("the sensor is armed and disarmed by others".to_owned());
        }
        notes.extend(sender::note(self.config.from.as_ref()));
        if let Some(nic) = self.nic() {
            self.note_queue_pair(nic, &mut notes);
        }
        notes
    }

    fn unavailable(&self) -> Option<String> {
        self.mtu_problem(&self.interface()?)
    }

    fn silence_hint(&self) -> SilenceHint {
        let sensor = self.sensor();
        let socket = self.config.listen.map(|listen| {
            let is_filtered = self.config.from.is_some();
            move || silence::hint(&[listen], &[], None, is_filtered)
        });
        Box::new(move || {
            let link = socket
                .as_ref()
                .map_or_else(String::new, |hint| format!("; {}", hint()));
            format!(
                "{sensor}: check that the bridge has power and link and that its sensor streams{link}"
            )
        })
    }

    fn build(&self, context: &SourceContext) -> Result<Producers, SourceError> {
        if let Some(nic) = self.nic() {
            return self.build_queue_pair(nic, context);
        }
        let listen = self
            .config
            .listen
            .ok_or_else(|| SourceError::new("listen", "no address to receive on".to_owned()))?;
        let options = Options {
            receive_buffer: self.config.receive_buffer.bytes().unwrap_or(usize::MAX),
            coalesce: true,
            busy_poll: self.config.busy_poll.0,
            from: List::or_none(self.config.from.as_ref()).to_vec(),
            ..Options::default()
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
        let mut placer = Placer::new(&context.name, pages, window, self.config.agree)
            .with_rejections(context.rejections.clone());
        if has_own_key {
            placer = placer.with_new_key();
        }
        let receiver = Receiver::new(context, socket, placer, supervision)?;
        Ok(Producers::Fillers(vec![
            Box::new(receiver) as Box<dyn Filler>
        ]))
    }
}

/// Why packets with `packet` bytes of payload do not fit through the interface `name`, if they do not.
fn too_large(packet: usize, name: &str, mtu: usize) -> Option<String> {
    let max = mtu.saturating_sub(OVERHEAD) / pages::GRAIN * pages::GRAIN;
    (packet > max).then(|| {
        format!(
            "packets of {packet} bytes and {OVERHEAD} bytes of headers do not fit the MTU of {name}, {mtu} bytes: set `packet = \
             \"{max} B\"`, or raise the MTU on the whole way: ip link set {name} mtu {}",
            packet + OVERHEAD
        )
    })
}

/// A key that was not used before, as far as can be.
#[expect(clippy::cast_possible_truncation, reason = "any half of it will do")]
fn key() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}

#[cfg(test)]
mod tests;
