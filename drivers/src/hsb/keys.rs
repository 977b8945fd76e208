//! The keys of an `hsb` source.

use super::arm::{MAX_PLANES, MAX_SENSORS};
use super::ecb;
use super::pages::{ALIGNMENT, Pages};
use super::placer;
use crate::packet::{PacketKeys, keys};
use crate::socket::{RECEIVE_BUFFER, SocketKeys};
use daq_core::config::Problem;
use daq_core::reorder::CLOSE_AFTER;
use daq_core::topology::P2pPreference;
use daq_core::units::{ByteSize, Span};
use daq_rdma::nics::NicNames;
use schemars::JsonSchema;
use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Maximum size in bytes of a UDP payload over IPv4.
const DATAGRAM: usize = 65_507;
/// Maximum number of pages of a sensor: the page number in an immediate has 12 bits.
const MAX_PAGES: u32 = 4096;
/// Size in bytes of the marker by which the queue-pair engine detects whether a packet arrived.
const MARKER_BYTES: usize = 8;
/// Width in bits of a queue pair number.
const QUEUE_PAIR_BITS: u32 = 24;

/// The keys of an `hsb` source.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct HsbConfig {
    /// How frames are received: `"socket"`, as packets through a UDP socket on any NIC; `"queue-pair"`, written to memory by an
    /// RDMA NIC, see `nics`.
    #[serde(default)]
    pub mode: Mode,
    /// Address and port to receive on, such as `"192.168.0.101:4791"`. The sensor is configured to send to this address; for
    /// `0.0.0.0`, to the local address from which the device is reached. Each sensor needs its own port. Not for queue pairs,
    /// which use the address of the NIC and port 4791.
    pub listen: Option<SocketAddr>,
    /// The NIC of the queue pair, as in `["mlx5_0"]`, `["mlx5_0:PORT"]` or `["mlx5_0:PORT@GID"]`. The GID table entry must be a
    /// RoCE v2 entry with an IPv4 address. `"auto"` selects the NIC nearest to the GPU of the ring or, for a ring in host
    /// memory, the fastest NIC that is up. `["emulated"]` or `["emulated:ADDRESS"]` is an emulated NIC: only
    /// `daq emulate hsb --nic emulated` can write to it, no real sensor.
    pub nics: Option<NicNames>,
    /// Destination of a queue pair's writes: `"auto"` and `"staged"`, host memory, from which frames are copied to a ring on a
    /// GPU; `"direct"`, the memory of that GPU, which the CPU must be able to read to detect missing packets.
    #[serde(default)]
    pub path: P2pPreference,
    /// Allow the PCIe writes of a queue pair to be reordered, including the write that ends a frame. Set it only if the NIC
    /// completes a write after all earlier writes are visible.
    #[serde(default)]
    pub relaxed_ordering: bool,
    /// Number of payload bytes per frame, as configured in the sensor.
    pub frame: ByteSize,
    /// The device: its address, `ADDRESS:PORT` if its control port is not 8192, or `"auto"` for the only device that announces
    /// itself.
    #[serde(default = "auto")]
    pub device: String,
    /// Index of the sensor in the device, 0 to 31.
    #[serde(default)]
    pub sensor: u32,
    /// Index of the host interface (data plane) that the sensor sends through, 0 to 31.
    #[serde(default)]
    pub plane: u32,
    /// Whether to arm and disarm the sensor. Set it to false if another program arms the sensor; then also set `queue_pair` and
    /// `rkey`.
    #[serde(default = "yes")]
    pub control: bool,
    /// Number of payload bytes in each packet except the last of a frame, a multiple of 128. Each packet, with 64 bytes of
    /// headers and, in the last packet, the metadata, must fit into the network's MTU. All sensors of a plane have the same
    /// packet size.
    #[serde(default = "packet")]
    pub packet: ByteSize,
    /// Number of pages that the sensor writes in cyclic order, 1 to 4096; default 64. Pages are numbers only and need no
    /// memory; more pages distinguish frames across longer gaps. Not for queue pairs: their pages are the slots of the ring.
    pub pages: Option<u32>,
    /// The queue pair number of the packets, 24 bits; default 1.
    pub queue_pair: Option<u32>,
    /// The key that packets must carry, 32 bits; by default a new key each time the sensor is armed, so that packets of an
    /// earlier arming are rejected.
    pub rkey: Option<u32>,
    /// The address of page 0 in the packets.
    #[serde(default)]
    pub base: u64,
    /// Distance between pages in bytes, a multiple of 128; by default a frame, rounded up to 128, plus 128 for its metadata.
    pub stride: Option<ByteSize>,
    /// CPU core for the receiving thread; by default any core.
    pub core: Option<usize>,
    /// Silence of the sensor after which its registers are read back. If the device has lost them, as after a restart, the
    /// sensor is armed again, with a new key unless `rkey` is set, and a new epoch begins. `"0 s"` disables the check.
    #[serde(default = "rearm_after")]
    pub rearm_after: Span,
    /// The keys of Linux sockets.
    #[serde(rename = "..socket_keys")]
    #[schemars(flatten)]
    pub socket_keys: SocketKeys,
    /// The keys about packets and frames.
    #[serde(rename = "..packet_keys")]
    #[schemars(flatten)]
    pub packet_keys: PacketKeys,
}

/// How frames are received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "HsbMode")]
pub(super) enum Mode {
    /// As packets through a UDP socket.
    #[default]
    Socket,
    /// As writes of an RDMA NIC.
    QueuePair,
}

/// Default number of pages.
const PAGES: u32 = 64;
/// Default number of frames open at the same time.
pub(super) const WINDOW: usize = 2;
/// Default maximum number of packets missing in a row.
pub(super) const MAX_GAP: u64 = 1 << 19;

/// The value of `device` that selects the only device that announces itself.
const AUTO: &str = "auto";

fn auto() -> String {
    AUTO.to_owned()
}

const fn yes() -> bool {
    true
}

const fn packet() -> ByteSize {
    ByteSize(1408)
}

const fn rearm_after() -> Span {
    Span(Duration::from_secs(2))
}

fn bytes(size: ByteSize) -> usize {
    size.bytes().unwrap_or(usize::MAX)
}

impl HsbConfig {
    /// Returns the control port of the device, or `None` for `"auto"` or if `device` is not an address.
    pub(super) fn device(&self) -> Option<SocketAddr> {
        let text = self.device.as_str();
        let with_port = || Some(SocketAddr::new(text.parse::<IpAddr>().ok()?, ecb::PORT));
        text.parse().ok().or_else(with_port)
    }

    /// Returns every problem of the configuration.
    pub(super) fn problems(&self) -> Vec<Problem> {
        let mut found = Vec::new();
        let mut must = |holds: bool, key: &str, message: String, help: &str| {
            if !holds {
                found.push(Problem::at(key, message).help(help));
            }
        };
        must(
            self.device == AUTO || self.device().is_some_and(|device| device.is_ipv4()),
            "device",
            format!("`{}` is neither an IPv4 address nor \"auto\"", self.device),
            "set the device's address such as \"192.168.0.2\", or \"auto\" for the only device in the network",
        );
        must(
            self.sensor < MAX_SENSORS,
            "sensor",
            format!(
                "sensor index {} is too large: a device has at most {MAX_SENSORS} sensors",
                self.sensor
            ),
            "set a smaller `sensor`; sensor indices start at 0",
        );
        must(
            self.plane < MAX_PLANES,
            "plane",
            format!(
                "plane index {} is too large: a device has at most {MAX_PLANES} planes",
                self.plane
            ),
            "set a smaller `plane`; plane indices start at 0",
        );
        must(
            (1..=1 << 31).contains(&self.frame.0),
            "frame",
            format!("a frame must have 1 B to 2 GiB, not {}", self.frame),
            "set the frame size that is configured in the sensor",
        );
        let packet = bytes(self.packet);
        must(
            packet > 0
                && packet.is_multiple_of(ALIGNMENT)
                && placer::largest(packet.min(DATAGRAM)) <= DATAGRAM,
            "packet",
            format!(
                "the packet size must be a multiple of 128 B and fit into a datagram, but is {}",
                self.packet
            ),
            "set a multiple of 128 B that fits the network: 1408 B for an MTU of 1500, 8704 B for an MTU of 9000",
        );
        must(
            (1..=MAX_PAGES).contains(&self.page_count()),
            "pages",
            format!(
                "a sensor must have 1 to {MAX_PAGES} pages, not {}",
                self.page_count()
            ),
            "set a number of pages from 1 to 4096",
        );
        must(
            self.queue_pair
                .is_none_or(|pair| pair >> QUEUE_PAIR_BITS == 0),
            "queue_pair",
            "a queue pair number must fit into 24 bits".into(),
            "set a number from 0 to 16777215",
        );
        must(
            self.control || (self.rkey.is_some() && self.queue_pair.is_some()),
            "control",
            "without `control`, `queue_pair` and `rkey` are needed to identify the packets of this source".into(),
            "set `queue_pair` and `rkey` as configured in the sensor, or set `control = true`",
        );
        let min = Pages::page_bytes(bytes(self.frame).min(1 << 31));
        let stride = self.stride();
        must(
            stride >= min as u64
                && stride.is_multiple_of(ALIGNMENT as u64)
                && u32::try_from(stride / (ALIGNMENT as u64)).is_ok(),
            "stride",
            format!(
                "the distance between pages must be a multiple of 128 B that holds a frame and 128 B of metadata, not {}",
                ByteSize(stride)
            ),
            "omit `stride` to use the smallest possible distance",
        );
        must(
            self.base
                .checked_add(stride.saturating_mul(self.page_count().into()))
                .is_some(),
            "base",
            format!(
                "pages from address {:#x} exceed the 64-bit address space",
                self.base
            ),
            "omit `base`; if another program arms the sensor, set `base` to the address that the other program configures in the sensor",
        );
        found.extend(self.packet_keys.problems());
        found.extend(match self.mode {
            Mode::Socket => self.socket_problems(),
            Mode::QueuePair => self.queue_pair_problems(),
        });
        found
    }

    fn socket_problems(&self) -> Vec<Problem> {
        let mut found = Vec::new();
        let mut report = |key: &str, message: String, help: &str| {
            found.push(Problem::at(key, message).help(help));
        };
        match self.listen {
            None => report(
                "listen",
                "`listen` is missing, so there is no address to receive on".into(),
                "set an IPv4 address of this machine and a port, such as \"192.168.0.101:4791\"",
            ),
            Some(listen) if !listen.is_ipv4() || listen.ip().is_multicast() => report(
                "listen",
                format!("a sensor can send only to an IPv4 unicast address, not to {listen}"),
                "set an IPv4 address of this machine and a port, such as \"192.168.0.101:4791\"",
            ),
            Some(listen) if listen.port() == 0 && self.control => report(
                "listen",
                "the port in `listen` must not be 0".into(),
                "set the port that the sensor sends to, such as 4791",
            ),
            Some(_) => {}
        }
        found.extend(self.socket_keys.problems(self.listen.as_slice()));
        let mut report = |key: &str, message: String, help: &str| {
            found.push(Problem::at(key, message).help(help));
        };
        let left = "omit this key, or set mode = \"queue-pair\"";
        if self.nics.is_some() {
            report(
                "nics",
                "`nics` cannot be set in socket mode, which receives packets from any NIC".into(),
                left,
            );
        }
        if self.path != P2pPreference::Auto {
            report(
                "path",
                "`path` cannot be set in socket mode, because frames always pass through host memory".into(),
                left,
            );
        }
        if self.relaxed_ordering {
            let message = "`relaxed_ordering` cannot be set in socket mode, because no NIC writes frames to the ring".into();
            report("relaxed_ordering", message, left);
        }
        found
    }

    fn queue_pair_problems(&self) -> Vec<Problem> {
        let mut found = Vec::new();
        let mut report = |key: &str, message: &str, help: &str| {
            found.push(Problem::at(key, message.to_owned()).help(help));
        };
        match self.nics.as_ref().map_or(&[][..], NicNames::all) {
            [nic] if !nic.is_empty() => {}
            [] | [_] => report(
                "nics",
                "`nics` must name one NIC for the queue pair",
                "set one NIC, such as nics = [\"mlx5_0\"]; `rdma link` lists the NICs",
            ),
            _ => report(
                "nics",
                "a sensor sends to one address and can use only one NIC",
                "set one NIC; each sensor of a device may use a different NIC",
            ),
        }
        if !self.control {
            let help = "omit `control`: the NIC chooses the queue pair's number and key, and this source must write \
                        them to the sensor";
            report(
                "control",
                "`control = false` is not possible in this mode, because no other program can arm a sensor for this queue pair",
                help,
            );
        }
        let left = "omit this key";
        if self.listen.is_some() {
            report(
                "listen",
                "`listen` cannot be set in this mode, because a queue pair uses the address of its NIC",
                left,
            );
        }
        if self.queue_pair.is_some() {
            report(
                "queue_pair",
                "`queue_pair` cannot be set in this mode, because the NIC chooses the number of the queue pair",
                left,
            );
        }
        if self.rkey.is_some() {
            report(
                "rkey",
                "`rkey` cannot be set in this mode, because the NIC chooses the remote key",
                left,
            );
        }
        if self.socket_keys.from.is_some() {
            let message = "`from` cannot be set in this mode, because a queue pair already accepts only packets with its own number and key";
            report("from", message, left);
        }
        if self.base != 0 {
            report(
                "base",
                "`base` cannot be set in this mode, because the memory region of the NIC determines the address",
                left,
            );
        }
        if self.stride.is_some() {
            let help = "omit `stride`; set `slot` of the ring instead";
            report(
                "stride",
                "`stride` cannot be set in this mode, because the slot size of the ring determines the distance between pages",
                help,
            );
        }
        if self.pages.is_some() {
            let help = "omit `pages`; set `slots` of the ring instead";
            report(
                "pages",
                "`pages` cannot be set in this mode, because each slot of the ring is a page",
                help,
            );
        }
        let socket = &self.socket_keys;
        let is_default = [
            (
                "receive_buffer",
                socket.receive_buffer.unwrap_or(RECEIVE_BUFFER).0 == RECEIVE_BUFFER.0,
            ),
            ("busy_poll", socket.busy_poll.0.is_zero()),
            ("window", self.window() == WINDOW),
            ("max_gap", self.max_gap() == MAX_GAP),
            (
                "resync_after",
                self.packet_keys.resync_after == keys::default_resync_after(),
            ),
            ("close_after", self.packet_keys.close_after.0 == CLOSE_AFTER),
        ];
        for (key, _) in is_default.iter().filter(|(_, is_default)| !is_default) {
            report(key, "this key has no effect on a queue pair", left);
        }
        let last = bytes(self.frame) % bytes(self.packet).max(1);
        if (1..MARKER_BYTES).contains(&last) {
            let help = "choose another `packet`";
            report(
                "frame",
                "the last packet of a frame has fewer than 8 bytes, too few to detect whether it arrived",
                help,
            );
        }
        found
    }

    /// Returns the number of frames open at the same time.
    pub(super) fn window(&self) -> usize {
        self.packet_keys.window.unwrap_or(WINDOW)
    }

    /// Returns the maximum number of packets missing in a row.
    pub(super) fn max_gap(&self) -> u64 {
        self.packet_keys.max_gap.unwrap_or(MAX_GAP)
    }

    fn page_count(&self) -> u32 {
        self.pages.unwrap_or(PAGES)
    }

    /// Returns the distance between two pages in bytes.
    fn stride(&self) -> u64 {
        let default = || Pages::page_bytes(bytes(self.frame).min(1 << 31)) as u64;
        self.stride.map_or_else(default, |stride| stride.0)
    }

    /// Returns the pages that the sensor writes to. `rkey` is used unless the configuration sets a key.
    pub(super) fn pages(&self, rkey: u32) -> Pages {
        Pages {
            base: self.base,
            stride: self.stride(),
            count: self.page_count(),
            frame: bytes(self.frame),
            packet: bytes(self.packet),
            queue_pair: self.queue_pair.unwrap_or(1),
            rkey: self.rkey.unwrap_or(rkey),
        }
    }
}
