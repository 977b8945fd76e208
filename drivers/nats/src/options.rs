//! Options of the client.

use crate::keys::Connection;
use daq_core::ledger::{Counter, Rejections};
use schemars::JsonSchema;
use serde::Deserialize;
use std::time::Duration;

/// Where the server stores the messages of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    /// In files, which survive a restart of the server.
    File,
    /// In memory; a restart of the server deletes all messages.
    Memory,
}

/// What the server does when a stream has reached its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Discard {
    /// It deletes the oldest messages.
    Old,
    /// It refuses new messages.
    New,
}

/// The stream that stores the messages. Limits that are `None` are not checked; a new stream has no such limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    /// The name.
    pub name: String,
    /// The subjects that the stream stores.
    pub subjects: Vec<String>,
    /// Whether `subjects` was configured, so that an existing stream must have exactly these subjects.
    pub has_subjects: bool,
    /// Where messages are stored.
    pub storage: Option<Storage>,
    /// Number of servers that store each message.
    pub replicas: Option<u32>,
    /// Maximum age of a message.
    pub max_age: Option<Duration>,
    /// Maximum size of all messages in bytes.
    pub max_bytes: Option<u64>,
    /// Maximum number of messages.
    pub max_messages: Option<u64>,
    /// What happens at a limit.
    pub discard: Option<Discard>,
    /// Time in which the server recognises repeated messages.
    pub duplicate_window: Option<Duration>,
}

/// Options of a publisher.
#[derive(Clone, Debug)]
pub struct PublisherOptions {
    /// The component in log messages and in the name of the connection, such as `sink events`.
    pub name: String,
    /// Where to connect.
    pub connection: Connection,
    /// The subject of all messages.
    pub subject: String,
    /// The stream that must store the subject.
    pub stream: StreamOptions,
    /// Identifies this run of the sink in the ids of messages.
    pub run: String,
    /// The layout of the frames as JSON.
    pub layout: String,
    /// Names of the kept fields.
    pub kept: Vec<String>,
    /// Maximum number of frames without an acknowledgement.
    pub window: usize,
    /// Maximum payload bytes of a message; `None`: as much as the server accepts.
    pub chunk: Option<usize>,
    /// Maximum payload bytes of a frame.
    pub slot_bytes: usize,
    /// Maximum number of packets of a frame.
    pub packets_per_frame: u32,
    /// Time without an acknowledgement after which messages are published again.
    pub timeout: Duration,
}

/// Counters that the publisher's own thread updates.
#[derive(Clone, Debug, Default)]
pub struct PublisherCounters {
    /// Frames whose publishing began. The data thread updates this counter.
    pub published: Counter,
    /// Frames whose messages are all stored.
    pub acknowledged: Counter,
    /// Frames that the server refused, or that were not acknowledged before the end.
    pub refused: Counter,
    /// The same frames as lost frames of the sink.
    pub lost: Counter,
    /// Messages that were published again.
    pub repeated: Counter,
    /// Repeated messages that the server had stored before.
    pub deduplicated: Counter,
    /// Connections to a server.
    pub connections: Counter,
}

/// Which messages a new consumer receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Begin {
    /// All messages that the stream contains.
    #[default]
    All,
    /// Only messages that arrive after the consumer was created.
    New,
}

/// Options of a consumer.
#[derive(Clone, Debug)]
pub struct ConsumerOptions {
    /// The component in log messages, such as `source events`.
    pub name: String,
    /// Where to connect.
    pub connection: Connection,
    /// The stream.
    pub stream: String,
    /// Pattern of the subjects to receive; `None`: all subjects of the stream.
    pub subject: Option<String>,
    /// Name of the durable consumer, which stores the position.
    pub consumer: String,
    /// Where a new consumer begins.
    pub begin: Begin,
    /// Maximum number of frames that are received and not yet acknowledged.
    pub window: usize,
    /// Names of the kept fields.
    pub kept: Vec<String>,
    /// The expected layout of frames, as the text of [`layout_header`](crate::wire::layout_header); `None` if it is not declared.
    pub layout: Option<String>,
    /// Maximum payload bytes of a frame.
    pub slot_bytes: usize,
    /// Maximum number of packets of a frame.
    pub packets_per_frame: u32,
}

/// Counters of a consumer.
#[derive(Clone, Debug, Default)]
pub struct ConsumerCounters {
    /// Connections to a server.
    pub connections: Counter,
    /// Messages that were received.
    pub messages: Counter,
    /// Messages that were received again and not delivered again.
    pub duplicates: Counter,
    /// Frames that arrived after they were counted as lost.
    pub late: Counter,
    /// Frames of which a message is missing.
    pub incomplete: Counter,
    /// Messages that contain no valid frame, or a frame that does not fit into a slot.
    pub invalid: Counter,
    /// The same messages by reason.
    pub rejections: Rejections,
}

/// What a consumer has lost and no frame reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Number of missing frames.
    pub missing: u64,
    /// Number of frames that the server deleted.
    pub expired: u64,
    /// Number of messages that are not usable.
    pub rejected: u64,
}
