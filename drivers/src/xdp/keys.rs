//! The keys of an `xdp` source.

use super::program::MAX_ADDRESSES;
use crate::packet::PacketKeys;
use crate::socket::SocketKeys;
use daq_core::config::List;
use daq_core::config::Problem;
use daq_core::units::{ByteSize, counted};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;

/// Maximum number of queues of a source.
const MAX_QUEUES: usize = 64;
/// Exclusive upper bound of queue numbers.
const QUEUE_NUMBERS: u32 = 4096;
/// Minimum and maximum number of packets that Linux stores per queue.
const PACKETS: (u32, u32) = (64, 1 << 18);

/// How packets reach the memory of daq.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "XdpMode")]
pub(super) enum Mode {
    /// Zero-copy if the NIC's driver supports it, otherwise copy.
    #[default]
    Auto,
    /// Linux copies packets.
    Copy,
    /// The NIC writes to memory that it shares with daq.
    ZeroCopy,
}

/// Where the XDP program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Attach {
    /// In the NIC's driver if supported, otherwise in the network stack after the driver.
    #[default]
    Auto,
    /// In the NIC's driver.
    Native,
    /// In the network stack, after the driver: works with every interface, but is slower.
    Generic,
}

/// The receive queues of an interface that the source uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Queues(pub Vec<u32>);

impl<'de> Deserialize<'de> for Queues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Queues;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a number of queues, such as 2, or an array of queue numbers, such as [0, 3]",
                )
            }

            fn visit_u64<E: Error>(self, count: u64) -> Result<Queues, E> {
                // A larger count is rejected later, so limit it here to avoid a huge allocation.
                let count = count.min(MAX_QUEUES as u64 + 1);
                Ok(Queues((0..u32::try_from(count).unwrap_or(0)).collect()))
            }

            fn visit_i64<E: Error>(self, count: i64) -> Result<Queues, E> {
                u64::try_from(count)
                    .map_err(|_| E::custom("the number of queues cannot be negative"))
                    .and_then(|count| self.visit_u64(count))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Queues, A::Error> {
                let mut queues = Vec::new();
                while let Some(queue) = list.next_element()? {
                    queues.push(queue);
                }
                Ok(Queues(queues))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl JsonSchema for Queues {
    fn schema_name() -> Cow<'static, str> {
        "Queues".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let number = serde_json::json!({ "type": "integer", "minimum": 0, "exclusiveMaximum": QUEUE_NUMBERS });
        schemars::json_schema!({
            "anyOf": [
                { "type": "integer", "minimum": 1, "maximum": MAX_QUEUES },
                { "type": "array", "items": number, "minItems": 1, "maxItems": MAX_QUEUES },
            ],
            "examples": [1, [0, 3]],
        })
    }
}

/// The keys of an `xdp` source, without the table `format`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct XdpConfig {
    /// The network interface, such as `"eth1"`. Only one XDP program can be attached to an interface, so only one source can
    /// use the interface.
    pub interface: String,
    /// Address and port to receive on, such as `"10.0.0.1:4950"`, or an array of up to 64 such addresses. A multicast group is
    /// joined. All other packets continue to the Linux network stack.
    pub listen: List<SocketAddr>,
    /// Receive queues to use: the number of queues, counted from queue 0, or an array of queue numbers. Each queue has its own
    /// socket and thread. Packets of other queues are received through the Linux network stack, which is slower and is logged.
    #[serde(default = "one")]
    pub queues: Queues,
    /// CPU cores of the threads, one core per thread in the order of queues; by default any core.
    #[serde(default)]
    pub cores: Vec<usize>,
    /// `"zero-copy"`: the NIC writes to memory that it shares with daq; `"copy"`: Linux copies packets to that memory;
    /// `"auto"`: zero-copy if the NIC's driver supports it, otherwise copy. The selected mode is logged.
    #[serde(default)]
    pub mode: Mode,
    /// Where the XDP program runs: `"native"`, in the NIC's driver; `"generic"`, in the network stack after the driver, for
    /// drivers without XDP support; `"auto"`: native if supported, otherwise generic. The selected mode is logged.
    #[serde(default)]
    pub attach: Attach,
    /// Size of a chunk of packet memory, 2 or 4 KiB, of which Linux reserves 256 bytes. Longer packets need several chunks,
    /// which requires Linux 6.6 or newer.
    #[serde(default = "chunk")]
    pub chunk: ByteSize,
    /// Number of packets that Linux stores per queue while its thread is delayed: a power of two, 64 to 262144.
    #[serde(default = "packets")]
    pub packets: u32,
    /// Verify the checksums of IPv4 and UDP where packets have them, as Linux does for sockets. Damaged packets are rejected;
    /// default true. With `false`, damaged packets are stored unless the NIC drops them.
    #[serde(default = "yes")]
    pub checksums: bool,
    /// The keys of Linux sockets.
    #[serde(rename = "..socket_keys")]
    #[schemars(flatten)]
    pub socket_keys: SocketKeys,
    /// The keys about packets and frames.
    #[serde(rename = "..packet_keys")]
    #[schemars(flatten)]
    pub packet_keys: PacketKeys,
}

fn one() -> Queues {
    Queues(vec![0])
}

const fn chunk() -> ByteSize {
    ByteSize(4096)
}

const fn yes() -> bool {
    true
}

const fn packets() -> u32 {
    4096
}

impl XdpConfig {
    /// Returns every problem of the configuration.
    pub(super) fn problems(&self) -> Vec<Problem> {
        let mut found = Vec::new();
        let mut must = |holds: bool, key: &str, message: String, help: &str| {
            if !holds {
                found.push(Problem::at(key, message).help(help));
            }
        };
        let listen = &self.listen.0;
        must(
            (1..=MAX_ADDRESSES).contains(&listen.len()),
            "listen",
            format!(
                "`listen` has {} addresses, but must have 1 to {MAX_ADDRESSES}",
                listen.len()
            ),
            "set at least one address and port, such as \"10.0.0.1:4950\"",
        );
        for (i, address) in listen.iter().enumerate() {
            let at = format!("listen.{i}");
            must(
                !address.ip().is_unspecified() && address.port() != 0,
                &at,
                format!("{address} must be a specific address and port"),
                "packets are selected by address and port: set the interface's address (`ip address` lists them), or the \
                 multicast group",
            );
            must(
                !listen[..i].contains(address),
                &at,
                format!("{address} is listed twice"),
                "remove one",
            );
        }
        let queues = &self.queues.0;
        must(
            (1..=MAX_QUEUES).contains(&queues.len()),
            "queues",
            format!(
                "`queues` has {} queues, but must have 1 to {MAX_QUEUES}",
                queues.len()
            ),
            "set one queue for each receive queue of the interface; `ethtool -l` lists the receive queues",
        );
        for (i, queue) in queues.iter().enumerate() {
            must(
                *queue < QUEUE_NUMBERS && !queues[..i].contains(queue),
                &format!("queues.{i}"),
                format!(
                    "queue {queue} is listed twice, or is above {}",
                    QUEUE_NUMBERS - 1
                ),
                "list each number once",
            );
        }
        must(
            self.cores.is_empty() || self.cores.len() == queues.len(),
            "cores",
            format!(
                "{} for {}",
                counted(self.cores.len(), "core"),
                counted(queues.len(), "thread")
            ),
            "list one core for each queue",
        );
        must(
            matches!(self.chunk.0, 2048 | 4096),
            "chunk",
            format!("a chunk must have 2 KiB or 4 KiB, not {}", self.chunk),
            "set \"2 KiB\" or \"4 KiB\": Linux supports no other sizes",
        );
        must(
            self.packets.is_power_of_two() && (PACKETS.0..=PACKETS.1).contains(&self.packets),
            "packets",
            format!(
                "`packets` is {}, but must be a power of two from 64 to 262144",
                self.packets
            ),
            "set for instance 4096",
        );
        must(
            self.mode != Mode::ZeroCopy || self.attach != Attach::Generic,
            "attach",
            "zero-copy needs an XDP program in the NIC's driver".into(),
            "set `attach = \"native\"`, or `mode = \"copy\"`",
        );
        found.extend(self.socket_keys.problems(listen));
        found.extend(self.packet_keys.problems());
        found
    }

    /// Returns the chunk size in bytes.
    pub(super) fn chunk_bytes(&self) -> usize {
        self.chunk.bytes().unwrap_or(usize::MAX)
    }
}
