//! Creates the stream of a publisher, or compares an existing stream with the configuration.

use super::with_sources;
use crate::NatsError;
use crate::options::{Discard, Storage, StreamOptions};
use crate::subject::covers;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{Context, CreateStreamErrorKind, GetStreamErrorKind};
use async_nats::jetstream::stream::{
    Config, DiscardPolicy, RetentionPolicy, State, StorageType, Stream,
};
use daq_core::units::counted;
use std::time::Duration;

/// Default time in which the server recognises repeated messages.
const DUPLICATE_WINDOW: Duration = Duration::from_mins(2);

/// Answers of the server that a limit is reached, so that it can store messages later.
const LIMITS: [ErrorCode; 4] = [
    ErrorCode::ACCOUNT_RESOURCES_EXCEEDED,
    ErrorCode::INSUFFICIENT_RESOURCES,
    ErrorCode::MEMORY_RESOURCES_EXCEEDED,
    ErrorCode::STORAGE_RESOURCES_EXCEEDED,
];

/// Answers of servers of a cluster that cannot create a stream yet.
const NOT_YET: [ErrorCode; 3] = [
    ErrorCode::CLUSTER_NO_PEERS,
    ErrorCode::CLUSTER_NOT_AVAILABLE,
    ErrorCode::CLUSTER_NOT_LEADER,
];

/// Returns whether the server does not store a message because of a limit of its account or of itself.
pub(super) fn is_limit(code: ErrorCode) -> bool {
    LIMITS.contains(&code)
}

/// A stream that stores the messages of a publisher.
pub(super) struct Prepared {
    /// Its settings.
    pub(super) config: Config,
    /// Sequence number of its last message.
    pub(super) last: u64,
}

impl Prepared {
    fn of(stream: &Stream) -> Self {
        let info = stream.cached_info();
        Self {
            config: info.config.clone(),
            last: info.state.last_sequence,
        }
    }
}

/// Makes sure that `options.name` stores messages with `subject` as configured. Returns the settings of the stream.
pub(super) async fn prepare(
    context: &Context,
    options: &StreamOptions,
    subject: &str,
) -> Result<Prepared, NatsError> {
    let what = format!("NATS stream {}", options.name);
    let error = |text: String, fix: &str| NatsError::new(&what, format!("{text}; {fix}"));
    match context.get_stream(&options.name).await {
        Ok(stream) => {
            let info = stream.cached_info();
            let differences = differences(&info.config, options, subject);
            if differences.is_empty() {
                return match unsuitable(&info.config, &info.state) {
                    Some(why) => Err(NatsError::configuration(what, why)),
                    None => Ok(Prepared::of(&stream)),
                };
            }
            let why = format!(
                "the stream exists with other settings: {}; change these keys of the sink, or the stream with \
                 `nats stream edit {}`",
                differences.join("; "),
                options.name
            );
            Err(NatsError::configuration(what, why))
        }
        Err(found) if is_absent(found.kind()) => {
            let created = context.create_stream(wanted(options)).await;
            let stream = created.map_err(|found| {
                let fix = "correct the keys of the stream, or the limits of the server's account";
                let text = format!("cannot create the stream: {}", with_sources(&found));
                NatsError {
                    is_configuration: is_refusal(&found.kind()),
                    ..error(text, fix)
                }
            })?;
            let prepared = Prepared::of(&stream);
            match uncovered(&prepared.config, subject) {
                Some(why) => {
                    let fix = "correct `subjects` of the sink, and delete the stream";
                    Err(NatsError::configuration(what, format!("{why}; {fix}")))
                }
                None => Ok(prepared),
            }
        }
        Err(found) => {
            let fix = "enable JetStream in the server (`nats-server -js`), and allow the user to access `$JS.API.>`";
            Err(error(with_sources(&found), fix))
        }
    }
}

/// Checks that a stream with the settings `found` can hold a whole frame of `messages` messages with `bytes` bytes. A server
/// acknowledges messages of a stream with discard = "old" even if it removes them at once.
pub(super) fn check_size(
    found: &Config,
    messages: usize,
    bytes: usize,
    largest: usize,
) -> Result<(), NatsError> {
    let limits = [
        ("max_bytes", found.max_bytes, bytes),
        ("max_messages", found.max_messages, messages),
        (
            "max_msgs_per_subject",
            found.max_messages_per_subject,
            messages,
        ),
        ("max_msg_size", i64::from(found.max_message_size), largest),
    ];
    for (key, limit, needed) in limits {
        let is_small = |limit: u64| limit > 0 && limit < needed as u64;
        if u64::try_from(limit).is_ok_and(is_small) {
            let why = format!(
                "`{key}` is {limit}, but a frame needs {needed}: {} of {bytes} bytes in total with headers, so the stream \
                 would not keep a whole frame; raise {key}, or make frames smaller",
                counted(messages, "message")
            );
            return Err(NatsError::configuration(
                format!("NATS stream {}", found.name),
                why,
            ));
        }
    }
    Ok(())
}

/// Whether the server has answered that there is no such stream.
pub(super) fn is_absent(kind: GetStreamErrorKind) -> bool {
    matches!(kind, GetStreamErrorKind::JetStream(error) if error.code() == 404)
}

/// Whether the server has refused to create a stream, so that only other settings help.
fn is_refusal(kind: &CreateStreamErrorKind) -> bool {
    match kind {
        CreateStreamErrorKind::JetStream(error) => {
            let code = error.error_code();
            error.code() != 503 && !is_limit(code) && !NOT_YET.contains(&code)
        }
        _ => false,
    }
}

/// Returns why a stream that exists would not store frames safely.
fn unsuitable(found: &Config, state: &State) -> Option<String> {
    let name = &found.name;
    if found.no_ack {
        return Some(format!(
            "the stream does not acknowledge messages (`no_ack`), so stored frames cannot be counted; set `no_ack` to false, or \
             choose another name in `stream` of the sink; `nats stream edit {name}` changes the stream"
        ));
    }
    (found.retention == RetentionPolicy::Interest && state.consumer_count == 0).then(|| {
        format!(
            "the stream has the retention \"interest\" and no consumer, so the server removes each message at once; create a \
             consumer first (start its readers), or use a stream with the retention \"limits\"; `nats stream info {name}` shows \
             the stream"
        )
    })
}

/// Returns why a stream does not store messages with `subject`.
fn uncovered(found: &Config, subject: &str) -> Option<String> {
    let subjects = &found.subjects;
    let is_covered = subjects.iter().any(|pattern| covers(pattern, subject));
    (!is_covered).then(|| format!("it stores {subjects:?}, but not the subject \"{subject}\""))
}

fn wanted(options: &StreamOptions) -> Config {
    let limit =
        |limit: Option<u64>| limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(i64::MAX));
    let window = options.duplicate_window.unwrap_or(DUPLICATE_WINDOW);
    Config {
        name: options.name.clone(),
        subjects: options.subjects.clone(),
        storage: match options.storage {
            Some(Storage::Memory) => StorageType::Memory,
            _ => StorageType::File,
        },
        num_replicas: options.replicas.unwrap_or(1) as usize,
        max_age: options.max_age.unwrap_or_default(),
        max_bytes: limit(options.max_bytes),
        max_messages: limit(options.max_messages),
        discard: match options.discard {
            Some(Discard::New) => DiscardPolicy::New,
            _ => DiscardPolicy::Old,
        },
        // The server requires a window that is not longer than the age.
        duplicate_window: options.max_age.map_or(window, |age| window.min(age)),
        description: Some("created by daq".to_owned()),
        ..Config::default()
    }
}

/// Returns each difference between an existing stream and the configured values.
fn differences(found: &Config, options: &StreamOptions, subject: &str) -> Vec<String> {
    let wanted = wanted(options);
    let mut differences = Vec::new();
    let mut compare = |key: &str, is_set: bool, found: String, wanted: String| {
        if is_set && found != wanted {
            differences.push(format!(
                "`{key}` is {found} in the server, but {wanted} is configured"
            ));
        }
    };
    let text = |value: &dyn std::fmt::Debug| format!("{value:?}").to_lowercase();
    let sorted = |subjects: &[String]| {
        let mut subjects = subjects.to_vec();
        subjects.sort();
        format!("{subjects:?}")
    };
    compare(
        "subjects",
        options.has_subjects,
        sorted(&found.subjects),
        sorted(&wanted.subjects),
    );
    compare(
        "storage",
        options.storage.is_some(),
        text(&found.storage),
        text(&wanted.storage),
    );
    compare(
        "replicas",
        options.replicas.is_some(),
        text(&found.num_replicas),
        text(&wanted.num_replicas),
    );
    compare(
        "max_age",
        options.max_age.is_some(),
        text(&found.max_age),
        text(&wanted.max_age),
    );
    compare(
        "max_bytes",
        options.max_bytes.is_some(),
        text(&found.max_bytes),
        text(&wanted.max_bytes),
    );
    compare(
        "max_messages",
        options.max_messages.is_some(),
        text(&found.max_messages),
        text(&wanted.max_messages),
    );
    compare(
        "discard",
        options.discard.is_some(),
        text(&found.discard),
        text(&wanted.discard),
    );
    compare(
        "duplicate_window",
        options.duplicate_window.is_some(),
        text(&found.duplicate_window),
        text(&wanted.duplicate_window),
    );
    differences.extend(uncovered(found, subject));
    differences
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn state(consumers: usize) -> State {
        let time = "2026-01-01T00:00:00Z";
        serde_json::from_value(json!({
            "messages": 0, "bytes": 0, "first_seq": 1, "last_seq": 0, "first_ts": time, "last_ts": time,
            "consumer_count": consumers,
        }))
        .unwrap()
    }

    #[test]
    fn streams_that_would_lose_frames_are_refused() {
        let stream = |retention, no_ack| Config {
            retention,
            no_ack,
            ..Config::default()
        };
        let interest = RetentionPolicy::Interest;
        for (retention, no_ack, consumers, part) in [
            (RetentionPolicy::Limits, false, 0, None),
            (RetentionPolicy::WorkQueue, false, 0, None),
            (interest, false, 1, None),
            (interest, false, 0, Some("no consumer")),
            (RetentionPolicy::Limits, true, 0, Some("`no_ack`")),
        ] {
            let why = unsuitable(&stream(retention, no_ack), &state(consumers));
            assert_eq!(why.is_some(), part.is_some());
            assert!(why.unwrap_or_default().contains(part.unwrap_or_default()));
        }
    }

    #[test]
    fn streams_must_store_the_subject() {
        let stream = Config {
            subjects: vec!["obs.*.{ring}".to_owned()],
            ..Config::default()
        };
        assert!(uncovered(&stream, "obs.r.events").is_some());
        assert!(uncovered(&stream, "obs.r.{ring}").is_none());
    }
}
