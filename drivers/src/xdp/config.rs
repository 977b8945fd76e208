//! The keys of an `xdp` source.

use super::program::MAX_ADDRESSES;
use crate::list::List;
use crate::packet::frames;
use crate::sender::{self, Allowed};
use crate::udp::Listen;
use daq_core::config::Problem;
use daq_core::layout::Samples;
use daq_core::units::{ByteSize, Span, counted};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// Queues that one source takes, at most.
const MAX_QUEUES: usize = 64;
/// Queue numbers are below this.
const QUEUE_NUMBERS: u32 = 4096;
/// Packets that the kernel holds for a queue, at least and at most.
const PACKETS: (u32, u32) = (64, 1 << 18);

/// Who copies packets out of the card's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "XdpMode")]
pub enum Mode {
    /// Nobody where the card's driver can do without, else the kernel.
    #[default]
    Auto,
    /// The kernel.
    Copy,
    /// Nobody: the card writes to the memory that is shared with it.
    ZeroCopy,
}

/// Where the program that picks packets runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Attach {
    /// In the card's driver where it can, else behind it.
    #[default]
    Auto,
    /// In the card's driver.
    Native,
    /// Behind the driver: works with every interface, and costs more.
    Generic,
}

/// Which queues of an interface are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queues(pub Vec<u32>);

impl<'de> Deserialize<'de> for Queues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Queues;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "how many queues, such as 2, or an array of their numbers, such as [0, 3]",
                )
            }

            fn visit_u64<E: Error>(self, count: u64) -> Result<Queues, E> {
                // One more than are possible is refused below all the same.
                let count = count.min(MAX_QUEUES as u64 + 1);
                Ok(Queues((0..u32::try_from(count).unwrap_or(0)).collect()))
            }

            fn visit_i64<E: Error>(self, count: i64) -> Result<Queues, E> {
                u64::try_from(count)
                    .map_err(|_| E::custom("there is no negative number of queues"))
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

/// The keys of an `xdp` source, but for the table `format`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct XdpConfig {
    /// The network interface, such as `"eth1"`. One program sees its packets, so one source takes it.
    pub interface: String,
    /// Address and port whose packets are taken, such as `"10.0.0.1:4950"`, or an array of up to 64; a multicast group is
    /// joined. No other packet is touched.
    pub listen: Listen,
    /// Senders whose packets are accepted: addresses, networks, or addresses with a port, such as `["10.0.0.5",
    /// "10.1.0.0/16", "10.0.0.7:4000"]`; without it, every sender. The program drops the other packets before anything counts
    /// them.
    pub from: Option<List<Allowed>>,
    /// Receive queues to take packets from, each with a socket and a thread: how many, counted from 0, or an array of their
    /// numbers. Packets of other queues are received too, through the kernel's stack, which is slower and is told.
    #[serde(default = "one")]
    pub queues: Queues,
    /// Cores for the threads, one each in the order of queues; without it, any.
    #[serde(default)]
    pub cores: Vec<usize>,
    /// `"zero-copy"`: the card writes to memory that it shares with daq; `"copy"`: the kernel copies there; `"auto"`:
    /// the first where the card's driver can, else the second; which one it became is told.
    #[serde(default)]
    pub mode: Mode,
    /// Where packets are picked: `"native"`, in the card's driver; `"generic"`, behind it, for drivers that cannot;
    /// `"auto"`: the first where it works, else the second; which one it became is told.
    #[serde(default)]
    pub attach: Attach,
    /// Memory for a packet, 2 or 4 KiB, 256 bytes of which the kernel keeps. Longer packets take several, which needs
    /// Linux 6.6 or newer.
    #[serde(default = "chunk")]
    pub chunk: ByteSize,
    /// Packets that the kernel holds for each queue while its thread is held up: a power of two, 64 to 262144.
    #[serde(default = "packets")]
    pub packets: u32,
    /// How long a call may poll the card instead of having it interrupt, such as `"50 us"`; takes effect where the card's
    /// driver supports it. Without it, interrupts.
    #[serde(default)]
    pub busy_poll: Span,
    /// Receive buffer to ask of the kernel for packets that come through its stack: those of other queues, fragments.
    #[serde(default = "receive_buffer")]
    pub receive_buffer: ByteSize,
    /// Frames open at a time, so how far packets may come out of order; at least 1. Without it, as many as hold several
    /// receive batches of each thread, at least 8, as far as the ring has slots: `daq plan` prints the number and the reason.
    /// Where SPEAD sizes are learned, it is computed for the most packets that a slot may hold, not for those of the heaps: set
    /// `window` if `late` grows.
    /// A frame that lacks packets is published when a packet of a frame `window` frames later arrives, or when the source
    /// ends, and never because of time: while the sender is silent, it stays `pending`, and so do complete frames behind it.
    pub window: Option<usize>,
    /// Packets beyond twice the window that may be missing in a row: a longer gap, or a step back, is no loss but a count
    /// that begins anew, an epoch.
    #[serde(default = "frames::default_max_gap")]
    pub max_gap: u64,
    /// Packets in a row that must agree on a number beyond twice the window before any of them is believed. They are
    /// kept aside until then, and rejected if they do not agree. At least 1.
    #[serde(default = "frames::default_resync_after")]
    pub agree: u32,
    /// What the payload means; without it, real int8 of one channel.
    pub samples: Option<Samples>,
}

fn one() -> Queues {
    Queues(vec![0])
}

const fn chunk() -> ByteSize {
    ByteSize(4096)
}

const fn packets() -> u32 {
    4096
}

const fn receive_buffer() -> ByteSize {
    ByteSize(8 << 20)
}

impl XdpConfig {
    /// Everything that is wrong with it.
    pub fn problems(&self) -> Vec<Problem> {
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
                "{} addresses; 1 to {MAX_ADDRESSES} are possible",
                listen.len()
            ),
            "give one such as \"10.0.0.1:4950\"",
        );
        for (i, address) in listen.iter().enumerate() {
            let at = format!("listen.{i}");
            must(
                !address.ip().is_unspecified() && address.port() != 0,
                &at,
                format!("{address} is not one address and port"),
                "packets are picked by address and port: name the interface's address (`ip address` lists them), or the \
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
            format!("{} queues; 1 to {MAX_QUEUES} are possible", queues.len()),
            "one for each receive queue of the interface: `ethtool -l` lists them",
        );
        for (i, queue) in queues.iter().enumerate() {
            must(
                *queue < QUEUE_NUMBERS && !queues[..i].contains(queue),
                &format!("queues.{i}"),
                format!(
                    "queue {queue} is listed twice, or is above {}",
                    QUEUE_NUMBERS - 1
                ),
                "give each number once",
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
            "give one core for each queue",
        );
        must(
            matches!(self.chunk.0, 2048 | 4096),
            "chunk",
            format!("a chunk of {}", self.chunk),
            "give \"2 KiB\" or \"4 KiB\": the kernel takes no others",
        );
        must(
            self.packets.is_power_of_two() && (PACKETS.0..=PACKETS.1).contains(&self.packets),
            "packets",
            format!("memory for {} packets", self.packets),
            "give a power of two from 64 to 262144, such as 4096",
        );
        must(
            self.mode != Mode::ZeroCopy || self.attach != Attach::Generic,
            "attach",
            "a card writes to shared memory only where its driver picks packets".into(),
            "set `attach = \"native\"`, or `mode = \"copy\"`",
        );
        found.extend(sender::problems(self.from.as_ref(), listen));
        found.extend(frames::problems(self.window.unwrap_or(1), self.agree));
        found
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self) -> usize {
        self.chunk.bytes().unwrap_or(usize::MAX)
    }
}
