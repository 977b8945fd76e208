//! The keys of a `nats` sink.

use daq_core::config::{List, Problem};
use daq_core::units::{ByteSize, Span};
use daq_nats::keys::{self as server, Login, Server, Tls};
use daq_nats::options::{Discard, Storage};
use daq_nats::subject;
use schemars::JsonSchema;
use serde::Deserialize;
use std::time::Duration;

/// Maximum number of frames of a window.
const MAX_WINDOW: u32 = 1 << 16;

/// Shortest time that servers accept for limits of a stream.
const MIN_SPAN: Duration = Duration::from_millis(100);

/// The keys of a `nats` sink.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NatsKeys {
    /// The servers: host and port, such as `"127.0.0.1:4222"`, or a list of servers of a cluster. daq connects to one of them,
    /// and to another one if it fails. Default `"127.0.0.1:4222"`.
    #[serde(default = "server::default_servers")]
    pub(super) servers: List<Server>,
    /// How daq logs in.
    #[serde(default)]
    pub(super) login: Login,
    /// Encrypts the connection; `tls = {}` checks the server's certificate with the certificates of the system.
    pub(super) tls: Option<Tls>,
    /// The subject of the messages, such as `"obs.{run}.decisions"`. Placeholders: `{run}` is the start time and a random
    /// number, such as `20261128T044904Z-9c41d2e0`, the same for all sinks of a run; `{pipeline}`, `{ring}` and `{sink}` are names
    /// of the configuration, in which `_` replaces dots and white space.
    pub(super) subject: String,
    /// The stream that stores the messages. If it does not exist, daq creates it with the keys below. If it exists, the
    /// configured keys must agree with it.
    pub(super) stream: String,
    /// The subjects that the stream stores. Default: the subjects of this sink in all runs. Several sinks that share a stream
    /// need the same list, such as `["obs.>"]`.
    pub(super) subjects: Option<Vec<String>>,
    /// Where the server stores the messages: in a `"file"` (default) or in `"memory"`.
    pub(super) storage: Option<Storage>,
    /// Number of servers that store each message, 1 to 5; default 1. More than 1 needs a cluster.
    pub(super) replicas: Option<u32>,
    /// Maximum age of a message; by default, messages do not expire.
    pub(super) max_age: Option<Span>,
    /// Maximum size of all messages of the stream; by default, the limit of the account.
    pub(super) max_bytes: Option<ByteSize>,
    /// Maximum number of messages in the stream; by default, no limit.
    pub(super) max_messages: Option<u64>,
    /// At a limit, the server deletes the `"old"` messages (default), or refuses `"new"` ones; then the sink waits or drops
    /// frames, as `guarantee` declares.
    pub(super) discard: Option<Discard>,
    /// Time in which the server recognises messages that are published again, default `"2 min"`. Interruptions should be
    /// shorter.
    pub(super) duplicate_window: Option<Span>,
    /// Maximum number of frames that are published and not acknowledged, 1 to 65536. The sink allocates memory for all of
    /// them. Default: 256, or as many as fit into 64 MiB, but at least 4.
    pub(super) window: Option<u32>,
    /// Maximum payload of a message; larger frames become several messages. Default: as much as the server accepts.
    pub(super) chunk: Option<ByteSize>,
    /// Time without an acknowledgement after which messages are published again, and after which a full window counts as an
    /// unavailable server. Default `"5 s"`, 100 ms to 60 s.
    #[serde(default = "timeout")]
    pub(super) timeout: Span,
}

const fn timeout() -> Span {
    Span(Duration::from_secs(5))
}

impl NatsKeys {
    /// Returns the servers for messages.
    pub(super) fn server_names(&self) -> String {
        let names: Vec<_> = self.servers.0.iter().map(ToString::to_string).collect();
        names.join(", ")
    }

    /// Returns every problem of the keys.
    pub(super) fn problems(&self) -> Vec<Problem> {
        let mut problems = server::problems(&self.servers, &self.login, self.tls.as_ref());
        let mut add = |key: &str, message: String, help: &str| {
            problems.push(Problem::at(key, message).help(help));
        };
        if let Some((message, help)) = subject::problem(&self.subject, false) {
            add("subject", message, help);
        }
        for (i, pattern) in self.subjects.iter().flatten().enumerate() {
            if let Some((message, help)) = subject::problem(pattern, true) {
                add(&format!("subjects.{i}"), message, help);
            }
        }
        if let Some(subjects) = &self.subjects
            && !subjects
                .iter()
                .any(|pattern| subject::can_cover(pattern, &self.subject))
        {
            let message = format!(
                "`subjects` does not contain the subject \"{}\" of this sink",
                self.subject
            );
            add(
                "subjects",
                message,
                "add it, or use a pattern such as \"obs.>\"",
            );
        }
        if self.stream.is_empty()
            || self
                .stream
                .contains(|c: char| c.is_whitespace() || ".*>/\\".contains(c))
        {
            let message = format!("\"{}\" is not the name of a stream", self.stream);
            add(
                "stream",
                message,
                "use letters, digits, - and _, as in \"OBS\"",
            );
        }
        if self
            .replicas
            .is_some_and(|replicas| !(1..=5).contains(&replicas))
        {
            add(
                "replicas",
                "`replicas` must be 1 to 5".to_owned(),
                "use 1, or 3 for a cluster of three servers",
            );
        }
        if self
            .window
            .is_some_and(|window| !(1..=MAX_WINDOW).contains(&window))
        {
            add(
                "window",
                format!("`window` must be 1 to {MAX_WINDOW}"),
                "try 256",
            );
        }
        if self.chunk.is_some_and(|chunk| chunk.0 == 0) {
            add(
                "chunk",
                "`chunk` must be at least 1 B".to_owned(),
                "remove the key",
            );
        }
        if !(Duration::from_millis(100)..=Duration::from_mins(1)).contains(&self.timeout.0) {
            add(
                "timeout",
                "`timeout` must be 100 ms to 60 s".to_owned(),
                "try \"5 s\"",
            );
        }
        for (key, is_zero) in [
            ("max_age", self.max_age.is_some_and(|age| age.0.is_zero())),
            (
                "max_bytes",
                self.max_bytes.is_some_and(|bytes| bytes.0 == 0),
            ),
            ("max_messages", self.max_messages == Some(0)),
        ] {
            if is_zero {
                add(
                    key,
                    format!("`{key}` must be more than 0"),
                    "remove the key for no limit",
                );
            }
        }
        for (key, span) in [
            ("max_age", self.max_age),
            ("duplicate_window", self.duplicate_window),
        ] {
            let is_short = span.is_some_and(|span| span.0 < MIN_SPAN);
            if is_short && !(key == "max_age" && span.is_some_and(|span| span.0.is_zero())) {
                let message = format!("`{key}` must be at least 100 ms");
                add(
                    key,
                    message,
                    "servers accept no shorter time; try \"2 min\"",
                );
            }
        }
        problems
    }
}
