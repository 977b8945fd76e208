//! Creates the stream of a publisher, or compares an existing stream with the configuration.

use super::with_sources;
use crate::NatsError;
use crate::options::{Discard, Storage, StreamOptions};
use crate::subject::covers;
use async_nats::jetstream::context::{Context, GetStreamErrorKind};
use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType};
use std::time::Duration;

/// Default time in which the server recognises repeated messages.
const DUPLICATE_WINDOW: Duration = Duration::from_mins(2);

/// Makes sure that `options.name` stores messages with `subject` as configured. Returns the settings of the stream.
pub(super) async fn prepare(
    context: &Context,
    options: &StreamOptions,
    subject: &str,
) -> Result<Config, NatsError> {
    let what = format!("NATS stream {}", options.name);
    let error = |text: String, fix: &str| NatsError::new(&what, format!("{text}; {fix}"));
    match context.get_stream(&options.name).await {
        Ok(stream) => {
            let found = &stream.cached_info().config;
            let differences = differences(found, options, subject);
            if differences.is_empty() {
                return Ok(found.clone());
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
            let created = created.map(|stream| stream.cached_info().config.clone());
            created.map_err(|found| {
                let fix = "correct the keys of the stream, or the limits of the server's account";
                error(
                    format!("cannot create the stream: {}", with_sources(&found)),
                    fix,
                )
            })
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
                "`{key}` is {limit}, but a frame needs {needed}: {messages} messages of {bytes} bytes in total with their \
                 headers, so the stream would not keep a whole frame; raise {key}, or make frames smaller",
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
    if !found
        .subjects
        .iter()
        .any(|pattern| covers(pattern, subject))
    {
        differences.push(format!(
            "it stores {:?}, but not the subject \"{subject}\"",
            found.subjects
        ));
    }
    differences
}
