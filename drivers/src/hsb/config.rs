//! The keys of an `hsb` source.

use super::arm::{MAX_PLANES, MAX_SENSORS};
use super::ecb;
use super::pages::{GRAIN, Pages};
use super::placer;
use crate::list::List;
use crate::packet::frames;
use crate::sender::{self, Allowed};
use daq_core::config::Problem;
use daq_core::layout::Samples;
use daq_core::topology::P2pPreference;
use daq_core::units::{ByteSize, Span};
use daq_rdma::nics::NicNames;
use schemars::JsonSchema;
use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// The largest UDP payload over IPv4.
const DATAGRAM: usize = 65_507;
/// Pages of a sensor, at most: an immediate has 12 bits for them.
const MAX_PAGES: u32 = 4096;
/// Bytes by which a queue pair tells whether a packet came.
const MARK: usize = 8;
/// Bits of a queue pair's number.
const QUEUE_PAIR_BITS: u32 = 24;

/// The keys of an `hsb` source.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HsbConfig {
    /// How frames come: `"socket"`, as packets through a UDP socket of any network card; `"queue-pair"`, written into memory
    /// by a card that does RDMA, `nics`.
    #[serde(default)]
    pub mode: Mode,
    /// Address and port to receive on, such as `"192.168.0.101:4791"`. The sensor is told to send there; for `0.0.0.0` it is
    /// told the address from which the device is reached. Each sensor needs a port of its own. A queue pair has the
    /// address of its card, and port 4791.
    pub listen: Option<SocketAddr>,
    /// The one card of a queue pair, by name as in `["mlx5_0"]`, `["mlx5_0:PORT"]` or `["mlx5_0:PORT@GID"]`, of which the
    /// entry GID of its table of addresses must be one of RoCE v2 with an IPv4 address; `"auto"`, the card nearest to the
    /// GPU of the ring, or, for a ring in host memory, the fastest that is up. `["software"]`, or `["software:ADDRESS"]`, is
    /// a card made of software, to which `daq emulate hsb --nic software` writes and no real sensor.
    pub nics: Option<NicNames>,
    /// Where a queue pair's writes go: `"auto"` and `"staged"`, into host memory, from where frames are copied to a ring on a
    /// GPU; `"direct"`, straight into that GPU's memory, which the CPU must reach to see which packets came.
    #[serde(default)]
    pub path: P2pPreference,
    /// Whether a queue pair's writes may pass each other on the bus. The write that ends a frame is among them: set it only
    /// where the card completes no write before all those before it are visible.
    #[serde(default)]
    pub relaxed_ordering: bool,
    /// Payload bytes of a frame: what the sensor is set to.
    pub frame: ByteSize,
    /// Which device: its address, `ADDRESS:PORT` where its control port is not 8192, or `"auto"` for the only one that
    /// announces itself.
    #[serde(default = "auto")]
    pub device: String,
    /// Which of the device's sensors, 0 to 31.
    #[serde(default)]
    pub sensor: u32,
    /// Which of the device's host interfaces (data planes) it sends through, 0 to 31.
    #[serde(default)]
    pub plane: u32,
    /// Whether to arm and disarm the sensor; false where somebody else does, who then says `queue_pair` and `rkey`.
    #[serde(default = "yes")]
    pub control: bool,
    /// Payload bytes of each packet but a frame's last, a multiple of 128: with 64 bytes of headers and, in the last,
    /// metadata, it must fit the network's MTU. All sensors of a plane have the same.
    #[serde(default = "packet")]
    pub packet: ByteSize,
    /// Pages that the sensor writes to in turn, 1 to 4096; without it 64. They are numbers only and take no memory; many tell
    /// frames apart over long gaps. The pages of a queue pair are memory, as many as the ring has slots.
    pub pages: Option<u32>,
    /// The queue pair that packets are for, 24 bits; without it 1.
    pub queue_pair: Option<u32>,
    /// The key that packets must carry, 32 bits; without it a new one each time the sensor is armed, so that packets of
    /// before are refused.
    pub rkey: Option<u32>,
    /// The address of page 0, as packets name it.
    #[serde(default)]
    pub base: u64,
    /// Bytes from page to page, a multiple of 128; without it a frame, rounded up to 128, and 128 for its metadata.
    pub stride: Option<ByteSize>,
    /// Receive buffer to ask of the kernel: what it holds while the thread is held up. Limited by `net.core.rmem_max` unless
    /// the process has CAP_NET_ADMIN; what was granted is told.
    #[serde(default = "receive_buffer")]
    pub receive_buffer: ByteSize,
    /// How long a receiving call may poll the network card instead of sleeping, such as `"50 us"`; takes effect where the
    /// card's driver supports it. Without it, the system's value.
    #[serde(default)]
    pub busy_poll: Span,
    /// Senders whose packets are accepted: addresses, networks, or addresses with a port, such as `"192.168.0.2"` or
    /// `["192.168.0.0/24"]`; without it, every sender. The kernel drops the other packets, and counts them among the drops of
    /// the socket, not among `rejected`. A queue pair accepts no packets but those with its number and key.
    pub from: Option<List<Allowed>>,
    /// Core for its thread; without it, any.
    pub core: Option<usize>,
    /// Frames open at a time, so how far packets may come out of order, and for how many frames one with a gap is kept; at
    /// least 1.
    /// A frame that lacks packets is published when a packet of a frame `window` frames later arrives, or when the source
    /// ends, and never because of time: while the sender is silent, it stays `pending`, and so do complete frames behind it.
    #[serde(default = "window")]
    pub window: usize,
    /// Packets beyond twice the window that may be missing in a row: a longer gap is no loss but a count that begins anew,
    /// an epoch.
    #[serde(default = "max_gap")]
    pub max_gap: u64,
    /// Number of packets in a row that must agree on a sequence number that does not continue the stream, before an epoch
    /// opens. All of them are placed then. At least 1.
    #[serde(default = "frames::default_resync_after")]
    pub agree: u32,
    /// Silence of the sensor after which its registers are read back. If the device has lost them, as after a restart, the
    /// sensor is armed again, with a new key unless `rkey` is given, and an epoch begins. `"0 s"` never reads them.
    #[serde(default = "rearm_after")]
    pub rearm_after: Span,
    /// What the payload means; without it, real int8 of one channel.
    pub samples: Option<Samples>,
}

/// How frames come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "HsbMode")]
pub enum Mode {
    /// As packets through a UDP socket.
    #[default]
    Socket,
    /// As writes of a card that does RDMA.
    QueuePair,
}

/// Pages where nothing else is said.
const PAGES: u32 = 64;

/// The value of `device` for the only one that announces itself.
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

const fn receive_buffer() -> ByteSize {
    ByteSize(64 << 20)
}

const fn window() -> usize {
    2
}

const fn rearm_after() -> Span {
    Span(Duration::from_secs(2))
}

const fn max_gap() -> u64 {
    1 << 19
}

fn bytes(size: ByteSize) -> usize {
    size.bytes().unwrap_or(usize::MAX)
}

impl HsbConfig {
    /// The device's control port; `None` for the only one that announces itself, or where it is no address.
    pub fn device(&self) -> Option<SocketAddr> {
        let text = self.device.as_str();
        let with_port = || Some(SocketAddr::new(text.parse::<IpAddr>().ok()?, ecb::PORT));
        text.parse().ok().or_else(with_port)
    }

    /// Everything that is wrong with it.
    pub fn problems(&self) -> Vec<Problem> {
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
            "give the device's address such as \"192.168.0.2\", or \"auto\" for the only one that there is",
        );
        must(
            self.sensor < MAX_SENSORS,
            "sensor",
            format!(
                "sensor {} of a device that has at most {MAX_SENSORS}",
                self.sensor
            ),
            "sensors count from 0",
        );
        must(
            self.plane < MAX_PLANES,
            "plane",
            format!(
                "plane {} of a device that has at most {MAX_PLANES}",
                self.plane
            ),
            "planes count from 0",
        );
        must(
            (1..=1 << 31).contains(&self.frame.0),
            "frame",
            format!("frames of {}", self.frame),
            "give 1 B to 2 GiB: what the sensor makes",
        );
        let packet = bytes(self.packet);
        must(
            packet > 0
                && packet.is_multiple_of(GRAIN)
                && placer::largest(packet.min(DATAGRAM)) <= DATAGRAM,
            "packet",
            format!("packets of {}", self.packet),
            "give a multiple of 128 B that fits the network: 1408 B for an MTU of 1500, 8704 B for one of 9000",
        );
        must(
            (1..=MAX_PAGES).contains(&self.page_count()),
            "pages",
            format!("{} pages", self.page_count()),
            "give 1 to 4096",
        );
        must(
            self.queue_pair
                .is_none_or(|pair| pair >> QUEUE_PAIR_BITS == 0),
            "queue_pair",
            "a queue pair has 24 bits".into(),
            "give 0 to 16777215",
        );
        must(
            self.control || (self.rkey.is_some() && self.queue_pair.is_some()),
            "control",
            "without control nobody knows which packets are for this source".into(),
            "give `queue_pair` and `rkey` as they were told to the sensor, or let daq control it",
        );
        let least = Pages::page_bytes(bytes(self.frame).min(1 << 31));
        let stride = self.stride();
        must(
            stride >= least as u64
                && stride.is_multiple_of(GRAIN as u64)
                && u32::try_from(stride / (GRAIN as u64)).is_ok(),
            "stride",
            format!("{} from page to page", ByteSize(stride)),
            "give a multiple of 128 B that has room for a frame and 128 B of metadata, or leave it out",
        );
        must(
            self.base
                .checked_add(stride.saturating_mul(self.page_count().into()))
                .is_some(),
            "base",
            format!("pages from {:#x} on end beyond all addresses", self.base),
            "leave it out unless somebody else arms the sensor",
        );
        found.extend(frames::problems(self.window, self.agree));
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
                "no address to receive on".into(),
                "give an IPv4 address of this machine and a port, such as \"192.168.0.101:4791\"",
            ),
            Some(listen) if !listen.is_ipv4() || listen.ip().is_multicast() => report(
                "listen",
                format!("{listen} is no address that a sensor can send to"),
                "give an IPv4 address of this machine and a port, such as \"192.168.0.101:4791\"",
            ),
            Some(listen) if listen.port() == 0 && self.control => report(
                "listen",
                "no port".into(),
                "give the port that the sensor is to send to, such as 4791",
            ),
            Some(_) => {}
        }
        found.extend(sender::problems(self.from.as_ref(), self.listen.as_slice()));
        let mut report = |key: &str, message: String, help: &str| {
            found.push(Problem::at(key, message).help(help));
        };
        let left = "leave it out, or write mode = \"queue-pair\"";
        if self.nics.is_some() {
            report("nics", "a socket goes through any card".into(), left);
        }
        if self.path != P2pPreference::Auto {
            report(
                "path",
                "a socket's frames go through host memory".into(),
                left,
            );
        }
        if self.relaxed_ordering {
            let message = "no card writes what a socket receives".into();
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
                "no card for the queue pair",
                "name one, as in nics = [\"mlx5_0\"]; `rdma link` lists them",
            ),
            _ => report(
                "nics",
                "several cards for one sensor, which sends to one address",
                "name one; each sensor of a device may have another",
            ),
        }
        if !self.control {
            let help = "leave it out: the card chooses the queue pair's number and key, and the sensor must be told them";
            report(
                "control",
                "nobody else can arm a sensor for a queue pair",
                help,
            );
        }
        let left = "leave it out";
        if self.listen.is_some() {
            report("listen", "a queue pair has the address of its card", left);
        }
        if self.queue_pair.is_some() {
            report("queue_pair", "the card chooses the number", left);
        }
        if self.rkey.is_some() {
            report("rkey", "the card chooses the key", left);
        }
        if self.from.is_some() {
            let message = "a queue pair accepts no packets but those with its number and key";
            report("from", message, left);
        }
        if self.base != 0 {
            report("base", "the card says where its memory begins", left);
        }
        if self.stride.is_some() {
            let help = "leave it out; `slot` of the ring is what it follows from";
            report("stride", "the pages are as far apart as slots", help);
        }
        if self.pages.is_some() {
            let help = "leave it out; `slots` of the ring says how many";
            report("pages", "the pages are slots", help);
        }
        let is_usual = [
            (
                "receive_buffer",
                self.receive_buffer.0 == receive_buffer().0,
            ),
            ("busy_poll", self.busy_poll.0.is_zero()),
            ("window", self.window == window()),
            ("max_gap", self.max_gap == max_gap()),
            ("agree", self.agree == frames::default_resync_after()),
        ];
        for (key, _) in is_usual.iter().filter(|(_, is_usual)| !is_usual) {
            report(key, "it says nothing of a queue pair", left);
        }
        let last = bytes(self.frame) % bytes(self.packet).max(1);
        if (1..MARK).contains(&last) {
            let help = "choose another `packet`";
            report(
                "frame",
                "its last packet has fewer than 8 bytes, too few to tell whether it came",
                help,
            );
        }
        found
    }

    fn page_count(&self) -> u32 {
        self.pages.unwrap_or(PAGES)
    }

    /// Bytes from page to page.
    fn stride(&self) -> u64 {
        let usual = || Pages::page_bytes(bytes(self.frame).min(1 << 31)) as u64;
        self.stride.map_or_else(usual, |stride| stride.0)
    }

    /// Where the sensor writes to, with a key of `rkey` where none is given.
    pub fn pages(&self, rkey: u32) -> Pages {
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
