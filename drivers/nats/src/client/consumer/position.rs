//! The position of a consumer in its stream: where it begins, continues, and begins again after the stream was created again.

use super::resent::Resent;
use super::{ACK_WAIT, GONE_TIMEOUT, RETRY_INTERVAL, Received, Receiving};
use crate::NatsError;
use crate::client::stream::is_absent;
use crate::client::{Shared, with_sources};
use crate::options::{Begin, ConsumerCounters, ConsumerOptions};
use crate::order::Runs;
use crate::subject::covers;
use crate::wire::{FrameHeader, decode};
use async_nats::Client;
use async_nats::jetstream::consumer::pull::Config;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, Info, PullConsumer};
use async_nats::jetstream::context::Context;
use async_nats::jetstream::stream::{ConsumerErrorKind, Stream};
use daq_core::log_limit::LogLimit;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum time to create the consumer again.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(3);

/// What the client knows about its position.
#[derive(Debug, Default)]
pub(super) struct Position {
    /// When the stream was created.
    created: String,
    /// Number of times that the stream was created again.
    pub(super) streams: u64,
    /// This consumer receives all messages after this one.
    origin: u64,
    /// The last message that an earlier process received belongs to this run, and its frames below this number were
    /// received by that process.
    resumed: Option<(String, u64)>,
    /// Whether the position of an earlier process is known only as a sequence number of the stream.
    has_lost: bool,
    /// Whether the consumer receives all messages of the stream, so that a gap in their sequence numbers shows deletions.
    pub(super) is_whole: bool,
    /// Whether the server deleted messages between the position of an earlier process and the first message.
    pub(super) is_purged: bool,
    /// The stream sequence of the last new message.
    pub(super) last: u64,
    /// Number of deleted messages that are not counted yet, if gaps in the sequence numbers show deletions.
    deleted: u64,
}

impl Position {
    /// Records the sequence number of a message. Returns whether the message is new.
    pub(super) fn advance(&mut self, sequence: u64) -> bool {
        let is_new = sequence > self.last;
        if is_new {
            if self.is_whole || self.is_purged {
                self.deleted += sequence - self.last - 1;
            }
            self.last = sequence;
        }
        is_new
    }

    /// Continues after message `sequence`. The server has not deleted the messages before it that have not arrived.
    pub(super) fn pass(&mut self, sequence: u64) {
        self.last = self.last.max(sequence);
    }

    /// Returns the number of whole frames of `chunks` messages that the server deleted.
    pub(super) fn deleted_frames(&self, chunks: u32) -> u64 {
        self.deleted / u64::from(chunks.max(1))
    }

    /// Returns how many of `missing` frames of `chunks` messages the server deleted, and counts them.
    pub(super) fn expire(&mut self, missing: u64, chunks: usize) -> u64 {
        let chunks = chunks.max(1) as u64;
        let expired = if std::mem::take(&mut self.has_lost) {
            self.deleted / chunks
        } else {
            missing.min(self.deleted.div_ceil(chunks))
        };
        self.deleted = self.deleted.saturating_sub(expired * chunks);
        expired
    }

    /// Declares that no frame is missing. Further deleted messages belonged to no frame of this source.
    pub(super) fn settle(&mut self) {
        self.deleted = 0;
    }

    /// Whether an earlier process has received frames of the run of `header` after this one.
    pub(super) fn is_earlier(&self, header: &FrameHeader) -> bool {
        let resumed = self.resumed.as_ref();
        !header.run.is_empty()
            && resumed.is_some_and(|(run, next)| *run == header.run && header.number < *next)
    }

    /// Returns the first frame that is expected of the unknown run of `header`. A run begins with frame 0, and the server can
    /// store the frames of a window in any order. A consumer that has joined a run later expects no frames before its first one.
    pub(super) fn first_frame(&self, header: &FrameHeader) -> u64 {
        let (first, has_joined) = if let Some(after) = header.after {
            (header.first, after < self.origin)
        } else {
            let is_resumed = self.resumed.is_some() || self.has_lost || self.origin > 0;
            (0, is_resumed || header.number >= header.window)
        };
        if has_joined {
            header.number
        } else {
            first.min(header.number)
        }
    }
}

/// Returns the stream of `options`.
async fn find_stream(context: &Context, options: &ConsumerOptions) -> Result<Stream, NatsError> {
    context.get_stream(&options.stream).await.map_err(|error| {
        let fix = if is_absent(error.kind()) {
            format!(
                "the stream does not exist; start its sink first, or create it with `nats stream add {}`",
                options.stream
            )
        } else {
            let text = with_sources(&error);
            format!("{text}; enable JetStream in the server (`nats-server -js`)")
        };
        NatsError::new(format!("NATS stream {}", options.stream), fix)
    })
}

/// Creates the consumer of `options`, which begins as `policy` states, if it does not exist.
async fn create(
    stream: &Stream,
    options: &ConsumerOptions,
    policy: DeliverPolicy,
) -> Result<PullConsumer, NatsError> {
    let config = Config {
        durable_name: Some(options.consumer.clone()),
        filter_subject: options.subject.clone().unwrap_or_default(),
        deliver_policy: policy,
        ack_policy: AckPolicy::Explicit,
        ack_wait: ACK_WAIT,
        max_ack_pending: -1,
        description: Some("created by daq".to_owned()),
        ..Config::default()
    };
    let (name, stream_name) = (&options.consumer, &options.stream);
    let what = format!("NATS consumer {name} of stream {stream_name}");
    let fix = format!(
        "choose another name in `consumer`, or delete it with `nats consumer rm {stream_name} {name}`"
    );
    let created = stream.get_or_create_consumer(name, config.clone()).await;
    let consumer: PullConsumer = created.map_err(|error| match error.kind() {
        ConsumerErrorKind::InvalidConsumerType => {
            let why = "the consumer is a push consumer, but daq needs a pull consumer";
            NatsError::configuration(&what, format!("{why}; {fix}"))
        }
        ConsumerErrorKind::InvalidName => {
            let why = "the name is invalid; choose another name in `consumer`";
            NatsError::configuration(&what, why)
        }
        _ => NatsError::new(&what, with_sources(&error)),
    })?;
    let found = &consumer.cached_info().config;
    if found.filter_subject != config.filter_subject || found.ack_policy != AckPolicy::Explicit {
        let why = format!(
            "the consumer exists with other settings: subject \"{}\", acknowledgements {:?}; {fix}",
            found.filter_subject, found.ack_policy
        );
        return Err(NatsError::configuration(what, why));
    }
    Ok(consumer)
}

/// Returns when `stream` was created.
fn created(stream: &Stream) -> String {
    format!("{:?}", stream.cached_info().created)
}

/// Returns the sequence number after which the messages are new for this process, or are sent again.
fn position(info: &Info) -> u64 {
    // Messages after the last acknowledged one that are not pending were deleted before they were received.
    if info.num_ack_pending == 0 && info.ack_floor.consumer_sequence > 0 {
        info.ack_floor.stream_sequence
    } else {
        info.delivered.stream_sequence
    }
}

impl Receiving {
    pub(super) async fn new(
        client: Client,
        options: ConsumerOptions,
        shared: Arc<Shared>,
        counters: ConsumerCounters,
        (queue, finished): (ringbuf::HeapProd<Received>, ringbuf::HeapCons<Received>),
    ) -> Result<Self, NatsError> {
        let context = async_nats::jetstream::new(client.clone());
        let stream = find_stream(&context, &options).await?;
        let has_existed = stream.consumer_info(&options.consumer).await.is_ok();
        let policy = match options.begin {
            Begin::All => DeliverPolicy::All,
            Begin::New => DeliverPolicy::New,
        };
        let consumer = create(&stream, &options, policy).await?;
        let info = consumer.cached_info().clone();
        let last = position(&info);
        let state = &stream.cached_info().state;
        let subjects = &stream.cached_info().config.subjects;
        let filter = options.subject.as_deref().unwrap_or(">");
        let mut receiving = Self {
            client,
            context,
            consumer,
            shared,
            counters,
            queue,
            finished,
            losses: Arc::default(),
            order: Runs::new(super::GAP_TIMEOUT),
            partial: HashMap::new(),
            held: 0,
            outstanding: VecDeque::new(),
            run: (String::new(), 0),
            restarts: HashMap::new(),
            position: Position {
                created: created(&stream),
                origin: last,
                is_whole: subjects.iter().all(|subject| covers(filter, subject)),
                is_purged: has_existed && state.first_sequence > last + 1,
                last,
                ..Position::default()
            },
            request_at: None,
            interruptions: 0,
            resent: Resent::default(),
            // A consumer that exists keeps its time.
            ack_wait: info.config.ack_wait,
            progressed: Instant::now(),
            has_started: false,
            gone_since: None,
            is_blocked: false,
            limits: <[LogLimit; 5]>::default(),
            options,
        };
        if last > 0 {
            receiving.resume(&stream, has_existed).await;
        }
        Ok(receiving)
    }

    /// Finds the position of an earlier process, so that only frames after it can be missing.
    async fn resume(&mut self, stream: &Stream, has_existed: bool) {
        let last = self.position.last;
        let Ok(message) = stream.get_raw_message(last).await else {
            self.position.has_lost = self.position.is_whole && has_existed;
            return;
        };
        let get = |name: &str| {
            message
                .headers
                .get(name)
                .map(async_nats::HeaderValue::as_str)
        };
        let decoded = decode(get, message.payload.len(), last, &self.options.kept);
        if let Ok((header, chunk)) = decoded
            && !header.run.is_empty()
        {
            let next = header.number + u64::from(chunk.index + 1 == chunk.count);
            self.order.resume(&header.run, next, header.window);
            self.position.resumed = Some((header.run, next));
        }
    }

    /// Creates the consumer again, because it or its stream is gone. The run fails if that is not possible in time.
    pub(super) async fn recover(&mut self) {
        let since = *self.gone_since.get_or_insert_with(Instant::now);
        let created = tokio::time::timeout(RECOVERY_TIMEOUT, self.create_again()).await;
        let late = || {
            let what = format!("NATS stream {}", self.options.stream);
            NatsError::new(what, "the server does not answer; check its load")
        };
        let Err(error) = created.unwrap_or_else(|_| Err(late())) else {
            return;
        };
        let name = &self.options.name;
        self.limits[3].run(|suppressed| {
            tracing::error!(
                "{name}: {error}; trying again for {} s{suppressed}",
                GONE_TIMEOUT.as_secs()
            );
        });
        if error.is_configuration || since.elapsed() > GONE_TIMEOUT {
            let _ = self.shared.failure.set(error);
            self.shared.data.notify();
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }

    async fn create_again(&mut self) -> Result<(), NatsError> {
        let stream = find_stream(&self.context, &self.options).await?;
        let created = created(&stream);
        let is_new = created != self.position.created;
        let policy = if is_new {
            DeliverPolicy::All
        } else {
            let next = self.position.last + 1;
            let start_sequence = self.sequences().min().unwrap_or(next).min(next);
            DeliverPolicy::ByStartSequence { start_sequence }
        };
        self.consumer = create(&stream, &self.options, policy).await?;
        let last = position(self.consumer.cached_info());
        if is_new {
            self.pass_resent().await;
            self.position.created = created;
            self.position.streams += 1;
            self.position.origin = last;
            self.position.last = last;
            self.position.is_purged = false;
            self.restarts.clear();
        }
        self.position.settle();
        (self.resent, self.gone_since) = (Resent::default(), None);
        let what = if is_new { "the stream" } else { "the consumer" };
        let (name, stream) = (&self.options.name, &self.options.stream);
        tracing::warn!(
            "{name}: {what} was deleted and created again; receiving stream {stream} from message {}",
            last + 1
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(number: u64, after: Option<u64>, first: u64) -> FrameHeader {
        FrameHeader {
            run: "r".to_owned(),
            number,
            window: 8,
            after,
            first,
            ..FrameHeader::default()
        }
    }

    #[test]
    fn run_begins_at_its_first_frame_if_all_its_messages_arrive() {
        for (origin, number, after, first, expected) in [
            (0, 3, None, 0, 0),
            (0, 8, None, 0, 8),
            (5, 3, None, 0, 3),
            (5, 3, Some(5), 0, 0),
            (5, 300, Some(9), 0, 0),
            (5, 3, Some(4), 0, 3),
            (0, 23, Some(0), 20, 20),
        ] {
            let position = Position {
                origin,
                ..Position::default()
            };
            let found = position.first_frame(&header(number, after, first));
            assert_eq!(found, expected, "origin {origin}, number {number}");
        }
    }

    #[test]
    fn deleted_messages_are_counted_in_whole_frames() {
        let mut position = Position {
            is_whole: true,
            ..Position::default()
        };
        assert!(position.advance(8));
        assert!(!position.advance(8));
        assert_eq!(position.deleted_frames(4), 1, "7 messages");
        assert_eq!(position.expire(1, 4), 1);
        assert_eq!(position.deleted_frames(1), 3);
        assert_eq!(position.expire(9, 4), 1, "the rest of a frame");
        assert_eq!(position.expire(9, 4), 0);
        // Without a known number, the deleted messages themselves are the loss.
        position.has_lost = true;
        position.advance(21);
        assert_eq!(position.expire(0, 4), 3);
    }
}
