//! Receives the frames of a stream through a durable pull consumer.
//!
//! ```text
//!   server ══ messages ══▶ frames from messages ─▶ order ─▶ queue ─▶ data thread: ring
//!          ◀═ acknowledgement ════════════════════════════ returned after the frame is in the ring
//! ```
//! The server stores the position of the consumer, so another process continues where this one stopped. Not more than
//! `window` frames are received and not acknowledged, so a full ring stops the server.
//!
//! After an interruption, the server sends the messages of the broken connection again only after the consumer's `ack_wait`. Until then, the
//! client requests no messages, because later ones would arrive first.

use super::stream::is_absent;
use super::{SEND_TIMEOUT, Shared, TICK, Worker, connect, with_sources};
use crate::NatsError;
use crate::options::{Begin, ConsumerCounters, ConsumerOptions};
use crate::order::{Inserted, Runs};
use crate::subject::covers;
use crate::wire::{Chunk, FrameHeader, WHOLE, decode, layout_difference};
use async_nats::connection::State;
use async_nats::jetstream::consumer::pull::{Config, Stream as Messages};
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer};
use async_nats::jetstream::stream::ConsumerErrorKind;
use async_nats::jetstream::{AckKind, Message};
use async_nats::{Client, HeaderMap, Subject};
use bytes::Bytes;
use daq_core::frame::FrameMeta;
use daq_core::log_limit::LogLimit;
use futures_util::StreamExt;
use ringbuf::HeapRb;
use ringbuf::traits::{Consumer as _, Observer as _, Producer as _, Split};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time after which the server sends an unacknowledged message again.
const ACK_WAIT: Duration = Duration::from_secs(1);
/// Time after the interval of [`ACK_WAIT`] after which the server has queued unacknowledged messages to send them again.
const REDELIVERY_MARGIN: Duration = Duration::from_millis(250);
/// Number of progress reports to the server for frames in flight in the time after which it sends them again.
const PROGRESS_REPORTS: u32 = 4;
/// Maximum number of times that the client waits for messages that the server has sent, until it receives later ones.
const MAX_ROUNDS: u32 = 30;
/// Maximum time for the server's answer about the consumer.
const INFO_TIMEOUT: Duration = Duration::from_millis(1500);
/// Time after which a gap counts as missing frames although the sender could still publish them. Longer than the longest
/// `timeout` of a sink.
const GAP_TIMEOUT: Duration = Duration::from_secs(90);
/// Interval between attempts to receive after an error.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// A frame that was received.
pub struct Received {
    /// The metadata; `meta.length` bytes are in [`parts`](Self::parts).
    pub meta: FrameMeta,
    /// Bitmap of the packets that arrived; empty if all did.
    pub present: Vec<u64>,
    /// Number of frames that are missing before this frame, for a reason other than expiry.
    pub missing: u64,
    /// Number of frames before this frame that the server deleted.
    pub expired: u64,
    /// A number that changes with the sender's run.
    pub run: u64,
    payload: Vec<Bytes>,
    messages: Vec<Message>,
}

impl Received {
    /// Returns the parts of the payload, in order.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.payload.iter().map(AsRef::as_ref)
    }
}

/// The data thread's side.
pub struct Consumer {
    worker: Worker,
    shared: Arc<Shared>,
    frames: ringbuf::HeapCons<Received>,
    done: ringbuf::HeapProd<Received>,
}

impl Consumer {
    /// Connects, creates the consumer if it does not exist, and starts the client's thread.
    pub fn start(options: ConsumerOptions, counters: ConsumerCounters) -> Result<Self, NatsError> {
        let shared = Shared::new(&options.name, counters.connections.clone());
        let (queue, frames) = HeapRb::new(options.window.max(1)).split();
        let (done, finished) = HeapRb::new(options.window.max(1)).split();
        let inner = shared.clone();
        let (worker, ()) = Worker::start(shared.clone(), move || async move {
            let client = connect(&options.connection, &inner, 4 * options.window + 64).await?;
            let receiving =
                Receiving::new(client, options, inner, counters, queue, finished).await?;
            Ok(((), receiving.run()))
        })?;
        Ok(Self {
            worker,
            shared,
            frames,
            done,
        })
    }

    /// Returns the next frame without removing it.
    pub fn peek(&self) -> Option<&Received> {
        self.frames.try_peek()
    }

    /// Removes the next frame. It must be [returned](Self::finish).
    pub fn take(&mut self) -> Option<Received> {
        self.frames.try_pop()
    }

    /// Returns a frame that is in the ring, so that it is acknowledged.
    pub fn finish(&mut self, frame: Received) {
        // The queue has room for all frames that are received and not acknowledged.
        let _ = self.done.try_push(frame);
    }

    /// Wakes the client's thread after frames were returned.
    pub fn commit(&self) {
        self.shared.client.notify_one();
    }

    /// Waits until a frame is available or about `limit` has passed.
    pub fn wait(&self, limit: Duration) {
        self.shared
            .data
            .sleep(limit, &mut || !self.frames.is_empty());
    }

    /// Returns why no frame can be received: the first one does not fit the configuration.
    pub fn failure(&self) -> Option<NatsError> {
        self.shared.failure.get().cloned()
    }

    /// Acknowledges the returned frames, gives the others back to the server, and disconnects.
    pub fn close(&mut self) {
        self.worker.join();
    }
}

/// The messages of a frame that have arrived.
struct Partial {
    header: FrameHeader,
    chunks: Vec<Option<(Chunk, Bytes)>>,
    messages: Vec<Message>,
    /// Since when the other messages could arrive.
    since: Instant,
}

/// A complete frame that waits for its turn.
struct Complete {
    header: FrameHeader,
    payload: Vec<Bytes>,
    messages: Vec<Message>,
    /// Number of messages that the server deleted before the first message of this frame.
    deleted: u64,
}

/// A frame that is delivered and not acknowledged.
struct Outstanding {
    run: String,
    number: u64,
    /// Where answers about its messages are sent.
    replies: Vec<Subject>,
}

/// The client's side.
#[expect(clippy::struct_excessive_bools, reason = "independent properties")]
struct Receiving {
    client: Client,
    consumer: PullConsumer,
    options: ConsumerOptions,
    shared: Arc<Shared>,
    counters: ConsumerCounters,
    queue: ringbuf::HeapProd<Received>,
    finished: ringbuf::HeapCons<Received>,
    order: Runs<Complete>,
    partial: HashMap<(String, u64), Partial>,
    /// Frames in the queue or with the data thread.
    outstanding: VecDeque<Outstanding>,
    /// The run of the last delivered frame, and the number of times that it has changed.
    run: (String, u64),
    /// The last message that an earlier process received belongs to this run, and its frames below this number were
    /// received by that process.
    resumed: Option<(String, u64)>,
    /// Whether the position of an earlier process is known only as a sequence number of the stream.
    has_lost_position: bool,
    /// Whether the consumer receives all messages of the stream, so that a gap in their sequence numbers shows deletions.
    is_whole: bool,
    /// Whether the server deleted messages between the position of an earlier process and the first message.
    is_purged: bool,
    /// The stream sequence of the last new message.
    last: u64,
    /// Messages that were deleted since the last complete frame, if gaps in the sequence numbers show deletions.
    deleted: u64,
    /// When messages are requested again; `None` if this is not known yet.
    request_at: Option<Instant>,
    interruptions: u64,
    /// The stream sequence of the last message that the server had sent before the last request, and the number of messages
    /// up to it that must arrive before later ones.
    sent: (u64, usize),
    /// Number of times that the client has waited for these messages without receiving a later one.
    rounds: u32,
    /// Time after which the server sends an unacknowledged message again.
    ack_wait: Duration,
    progressed: Instant,
    /// Whether a usable message was received.
    has_started: bool,
    limits: [LogLimit; 3],
}

impl Receiving {
    async fn new(
        client: Client,
        options: ConsumerOptions,
        shared: Arc<Shared>,
        counters: ConsumerCounters,
        queue: ringbuf::HeapProd<Received>,
        finished: ringbuf::HeapCons<Received>,
    ) -> Result<Self, NatsError> {
        let context = async_nats::jetstream::new(client.clone());
        let stream = context.get_stream(&options.stream).await.map_err(|error| {
            let fix = if is_absent(error.kind()) {
                format!("the stream does not exist; start its sink first, or create it with `nats stream add {}`", options.stream)
            } else {
                format!("{}; enable JetStream in the server (`nats-server -js`)", with_sources(&error))
            };
            NatsError::new(format!("NATS stream {}", options.stream), fix)
        })?;
        let config = Config {
            durable_name: Some(options.consumer.clone()),
            filter_subject: options.subject.clone().unwrap_or_default(),
            deliver_policy: match options.begin {
                Begin::All => DeliverPolicy::All,
                Begin::New => DeliverPolicy::New,
            },
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            max_ack_pending: -1,
            description: Some("created by daq".to_owned()),
            ..Config::default()
        };
        let what = format!(
            "NATS consumer {} of stream {}",
            options.consumer, options.stream
        );
        let created = stream
            .get_or_create_consumer(&options.consumer, config.clone())
            .await;
        let fix = format!(
            "choose another name in `consumer`, or delete it with `nats consumer rm {} {}`",
            options.stream, options.consumer
        );
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
        let info = consumer.cached_info().clone();
        let found = &info.config;
        if found.filter_subject != config.filter_subject || found.ack_policy != AckPolicy::Explicit
        {
            let why = format!(
                "the consumer exists with other settings: subject \"{}\", acknowledgements {:?}; {fix}",
                found.filter_subject, found.ack_policy
            );
            return Err(NatsError::configuration(what, why));
        }
        // Messages after the last acknowledged one that are not pending were deleted before they were received.
        let position = if info.num_ack_pending == 0 {
            info.ack_floor.stream_sequence
        } else {
            info.delivered.stream_sequence
        };
        let mut receiving = Self {
            client,
            consumer,
            shared,
            counters,
            queue,
            finished,
            order: Runs::new(GAP_TIMEOUT),
            partial: HashMap::new(),
            outstanding: VecDeque::new(),
            run: (String::new(), 0),
            resumed: None,
            has_lost_position: false,
            is_whole: false,
            is_purged: false,
            last: position,
            deleted: 0,
            request_at: None,
            interruptions: 0,
            sent: (0, 0),
            rounds: 0,
            // A consumer that exists keeps its time.
            ack_wait: info.config.ack_wait,
            progressed: Instant::now(),
            has_started: false,
            limits: <[LogLimit; 3]>::default(),
            options,
        };
        let subjects = &stream.cached_info().config.subjects;
        let filter = receiving.options.subject.as_deref().unwrap_or(">");
        receiving.is_whole = subjects.iter().all(|subject| covers(filter, subject));
        receiving.is_purged = stream.cached_info().state.first_sequence > receiving.last + 1;
        if receiving.last > 0 {
            receiving.resume(&stream).await;
        }
        Ok(receiving)
    }

    /// Finds the position of an earlier process, so that only frames after it can be missing.
    async fn resume(&mut self, stream: &async_nats::jetstream::stream::Stream) {
        if let Ok(message) = stream.get_raw_message(self.last).await {
            let get = |name: &str| {
                message
                    .headers
                    .get(name)
                    .map(async_nats::HeaderValue::as_str)
            };
            let decoded = decode(get, message.payload.len(), self.last, &self.options.kept);
            if let Ok((header, chunk)) = decoded {
                let next = header.number + u64::from(chunk.index + 1 == chunk.count);
                self.order.resume(&header.run, next);
                self.resumed = Some((header.run, next));
            }
            return;
        }
        self.has_lost_position = self.is_whole;
    }

    async fn run(mut self) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut messages: Option<Messages> = None;
        while !self.shared.is_closing.load(Ordering::Acquire) {
            if self.is_interrupted() {
                self.interruptions = self.shared.interruptions.load(Ordering::Acquire);
                messages = None;
                self.request_at = None;
            }
            if messages.is_none() {
                messages = self.messages().await;
            }
            let has_room = self.has_room();
            let shared = self.shared.clone();
            tokio::select! {
                received = next(&mut messages), if has_room && messages.is_some() => match received {
                    // After an interruption, all messages are received again in their order.
                    Some(Ok(_)) if self.is_interrupted() => {}
                    Some(Ok(message)) if self.is_early(&message) => {
                        messages = None;
                        self.request_at = None;
                    }
                    Some(Ok(message)) => self.receive(message).await,
                    Some(Err(error)) => {
                        let text = with_sources(&error);
                        let name = &self.options.name;
                        self.limits[0].run(|suppressed| tracing::warn!("{name}: cannot receive: {text}; trying again{suppressed}"));
                        messages = None;
                    }
                    None => messages = None,
                },
                () = shared.client.notified() => {}
                _ = tick.tick() => {}
            }
            self.acknowledge().await;
            let is_receiving = messages.is_some() && self.outstanding.len() < self.options.window;
            self.check_timeouts(is_receiving).await;
            self.deliver();
            self.report_progress().await;
        }
        self.end().await;
    }

    fn is_interrupted(&self) -> bool {
        self.shared.interruptions.load(Ordering::Acquire) != self.interruptions
    }

    /// Whether messages are missing that the server sent before this one. Then all are received again in their order.
    fn is_early(&mut self, message: &Message) -> bool {
        let (last, unreceived) = &mut self.sent;
        if message
            .info()
            .is_ok_and(|info| info.stream_sequence > *last)
        {
            if *unreceived == 0 {
                self.rounds = 0;
            }
            return *unreceived > 0;
        }
        *unreceived = unreceived.saturating_sub(1);
        false
    }

    /// Whether a further message can be received. Frames that wait for earlier ones do not stop the client, because the earlier
    /// ones may follow; the windows of the senders limit their number.
    fn has_room(&self) -> bool {
        if self.shared.failure.get().is_some() {
            return false;
        }
        if self.outstanding.len() >= self.options.window {
            return false;
        }
        let waiting = self.order.waiting() + self.partial.len();
        let has_partial = |run: &str| self.partial.keys().any(|(of, _)| of == run);
        waiting <= self.options.window || waiting <= self.order.windows(has_partial)
    }

    /// Returns where answers about messages are sent that are received and not acknowledged.
    fn replies(&self) -> Vec<Subject> {
        let partial = self.partial.values().flat_map(|frame| &frame.messages);
        let waiting = self.order.items().flat_map(|frame| &frame.messages);
        let messages = partial
            .chain(waiting)
            .filter_map(|message| message.reply.clone());
        let outstanding = self.outstanding.iter().flat_map(|frame| &frame.replies);
        messages.chain(outstanding.cloned()).collect()
    }

    /// Returns when messages can be requested: after the server has sent those again that did not arrive.
    async fn request_at(&mut self) -> Option<Instant> {
        let name = &self.options.name;
        // The client cancels the subscription of the last requests in a task of its own.
        tokio::task::yield_now().await;
        let info = tokio::time::timeout(INFO_TIMEOUT, self.consumer.get_info()).await;
        let sent = match info.ok()? {
            Ok(info) => info,
            Err(error) => {
                let text = with_sources(&error);
                self.limits[0].run(|suppressed| {
                    tracing::warn!("{name}: cannot receive: {text}; trying again{suppressed}");
                });
                tokio::time::sleep(RETRY_INTERVAL).await;
                return None;
            }
        };
        let unreceived = sent.num_ack_pending.saturating_sub(self.replies().len());
        self.sent = (sent.delivered.stream_sequence, unreceived);
        if unreceived == 0 {
            return Some(Instant::now());
        }
        self.rounds += 1;
        if self.rounds > MAX_ROUNDS {
            tracing::warn!(
                "{name}: the server has not sent {unreceived} messages again in {MAX_ROUNDS} attempts; receiving later messages. \
                 Another process may use the same consumer"
            );
            (self.sent, self.rounds) = ((0, 0), 0);
            return Some(Instant::now());
        }
        let wait = self.ack_wait + REDELIVERY_MARGIN;
        tracing::info!(
            "{name}: the server sent {unreceived} messages that were not received or not acknowledged; waiting {} ms until it sends \
             them again",
            wait.as_millis()
        );
        Some(Instant::now() + wait)
    }

    async fn messages(&mut self) -> Option<Messages> {
        if self.client.connection_state() != State::Connected {
            return None;
        }
        if self.request_at.is_none() {
            self.request_at = self.request_at().await;
        }
        if self.request_at? > Instant::now() {
            return None;
        }
        let batch = self.options.window.clamp(1, 500);
        let stream = self.consumer.stream().max_messages_per_batch(batch);
        let stream = stream
            .expires(Duration::from_secs(10))
            .heartbeat(Duration::from_secs(2));
        match stream.messages().await {
            Ok(messages) => {
                self.request_at = None;
                Some(messages)
            }
            Err(error) => {
                let text = with_sources(&error);
                let name = &self.options.name;
                self.limits[0].run(|suppressed| {
                    tracing::warn!("{name}: cannot receive: {text}; trying again{suppressed}");
                });
                tokio::time::sleep(RETRY_INTERVAL).await;
                None
            }
        }
    }

    async fn receive(&mut self, message: Message) {
        self.counters.messages.add(1);
        self.shared.progress();
        let Ok(info) = message.info() else {
            return;
        };
        let sequence = info.stream_sequence;
        let empty = HeaderMap::new();
        let headers = message.headers.as_ref().unwrap_or(&empty);
        let get = |name: &str| headers.get(name).map(async_nats::HeaderValue::as_str);
        let decoded = decode(get, message.payload.len(), sequence, &self.options.kept);
        let decoded = decoded.map_err(|error| error.to_string()).and_then(|(header, chunk)| {
            let length = header.meta.length;
            let packets = header.meta.packets_per_frame;
            let layouts = self.options.layout.as_deref().zip(get("Daq-Layout"));
            if let Some(why) = layouts.and_then(|(own, sent)| layout_difference(own, sent, length)) {
                return Err(why);
            }
            if length > self.options.slot_bytes {
                return Err(format!(
                    "its frame has {length} bytes, but the slots of the ring have {}; set slot = \"{length} B\" for the ring",
                    self.options.slot_bytes
                ));
            }
            if packets > self.options.packets_per_frame.max(1) {
                return Err(format!("its frame has {packets} packets; set packets_per_frame = {packets}"));
            }
            Ok((header, chunk))
        });
        let (header, chunk) = match decoded {
            Ok(decoded) => decoded,
            Err(why) if !self.has_started && get("Daq-Layout").is_some() => {
                // The configuration is wrong, not the message, which the server sends again to the next run.
                let what = format!(
                    "message {sequence} of the NATS stream {}",
                    self.options.stream
                );
                let _ = self.shared.failure.set(NatsError::configuration(what, why));
                self.shared.data.notify();
                return;
            }
            Err(why) => {
                self.counters.invalid.add(1);
                let name = &self.options.name;
                self.limits[1].run(|suppressed| {
                    tracing::error!("{name}: message {sequence} is not usable: {why}{suppressed}");
                });
                // The server must not send the message again. If it has a number, that frame is missing.
                self.answer(&message, AckKind::Term).await;
                self.last = self.last.max(sequence);
                return;
            }
        };
        self.has_started = true;
        if sequence > self.last {
            let is_first = self.last == 0 && self.options.begin == Begin::New;
            if !is_first && (self.is_whole || self.is_purged) {
                self.deleted += sequence - self.last - 1;
            }
            self.last = sequence;
        }
        let key = self.key(&header);
        match self.order.state(&key, header.number) {
            Inserted::New => {}
            Inserted::Waiting => {
                self.counters.duplicates.add(1);
                return;
            }
            state @ (Inserted::Delivered | Inserted::Late) => {
                let is_outstanding = self
                    .outstanding
                    .iter()
                    .any(|frame| frame.run == header.run && frame.number == header.number);
                if state == Inserted::Late {
                    self.counters.late.add(1);
                } else {
                    self.counters.duplicates.add(1);
                }
                if !is_outstanding {
                    self.answer(&message, AckKind::Ack).await;
                }
                return;
            }
        }
        self.place(&key, header, chunk, message).await;
    }

    /// Returns the name under which a frame is ordered. An earlier process has received the frames before its position and
    /// has finished some of them, so the others are not in an order without gaps.
    fn key(&self, header: &FrameHeader) -> String {
        match &self.resumed {
            Some((run, next)) if *run == header.run && header.number < *next => {
                format!("{run} (earlier)")
            }
            _ => header.run.clone(),
        }
    }

    /// Adds a message to its frame.
    async fn place(&mut self, run: &str, header: FrameHeader, chunk: Chunk, message: Message) {
        let (number, window) = (header.number, header.window);
        if *run != header.run || run.is_empty() {
            // The numbers of these frames do not show what is missing.
            self.order.set_unordered(run);
        }
        let explained = if std::mem::take(&mut self.is_purged) {
            u64::MAX
        } else {
            self.deleted
        };
        if !self.order.knows(run) {
            // A run begins with frame 0, and the server can store the frames of a window in any order. Frames that were
            // deleted, or received by an earlier process, do not arrive.
            let is_first = self.resumed.is_none()
                && self.options.begin == Begin::All
                && explained < number
                && number < window;
            self.order.begin(run, if is_first { 0 } else { number });
        }
        self.order.explain(run, number, explained);
        if chunk == WHOLE {
            let payload = vec![message.payload.clone()];
            let complete = Complete {
                header,
                payload,
                messages: vec![message],
                deleted: std::mem::take(&mut self.deleted),
            };
            self.order.insert(run, number, window, complete);
            return;
        }
        self.order.saw(run, number, window);
        let partial = self
            .partial
            .entry((run.to_owned(), number))
            .or_insert_with(|| Partial {
                header,
                chunks: (0..chunk.count).map(|_| None).collect(),
                messages: Vec::new(),
                since: Instant::now(),
            });
        let Some(place @ None) = partial.chunks.get_mut(chunk.index as usize) else {
            self.counters.duplicates.add(1);
            return;
        };
        *place = Some((chunk, message.payload.clone()));
        partial.messages.push(message);
        if partial.chunks.iter().any(Option::is_none) {
            return;
        }
        let Some(partial) = self.partial.remove(&(run.to_owned(), number)) else {
            return;
        };
        let chunks: Vec<_> = partial.chunks.into_iter().flatten().collect();
        let mut end = 0;
        let is_joined = chunks.iter().all(|(chunk, payload)| {
            let is_next = chunk.offset == end;
            end += payload.len() as u64;
            is_next
        });
        if !is_joined || end != partial.header.meta.length as u64 {
            self.counters.invalid.add(1);
            self.terminate(&partial.messages).await;
            return;
        }
        let complete = Complete {
            payload: chunks.into_iter().map(|(_, payload)| payload).collect(),
            header: partial.header,
            messages: partial.messages,
            deleted: std::mem::take(&mut self.deleted),
        };
        self.order.insert(run, number, window, complete);
    }

    /// Passes frames that are in order to the data thread.
    fn deliver(&mut self) {
        let now = Instant::now();
        let mut count = 0;
        while !self.queue.is_full() && self.outstanding.len() < self.options.window {
            let Some(ordered) = self.order.pop(now) else {
                break;
            };
            let Complete {
                header,
                payload,
                messages,
                deleted,
            } = ordered.item;
            let expired = if std::mem::take(&mut self.has_lost_position) {
                deleted / messages.len().max(1) as u64
            } else {
                ordered.missing.min(deleted)
            };
            if self.run.0 != header.run || self.run.1 == 0 {
                self.run = (header.run.clone(), self.run.1 + 1);
            }
            self.outstanding.push_back(Outstanding {
                run: header.run,
                number: header.number,
                replies: messages
                    .iter()
                    .filter_map(|message| message.reply.clone())
                    .collect(),
            });
            count += 1;
            let received = Received {
                meta: header.meta,
                present: header.present,
                missing: ordered.missing.saturating_sub(expired),
                expired,
                run: self.run.1,
                payload,
                messages,
            };
            if self.queue.try_push(received).is_err() {
                break;
            }
        }
        if count > 0 {
            self.shared.data.notify();
        }
    }

    /// Drops frames that are incomplete for too long or count as missing. While no messages are received, no time is too long.
    async fn check_timeouts(&mut self, is_receiving: bool) {
        let now = Instant::now();
        if !is_receiving {
            self.order.restart_timeouts();
            for partial in self.partial.values_mut() {
                partial.since = now;
            }
            return;
        }
        let order = &self.order;
        let dropped: Vec<_> = self
            .partial
            .extract_if(|(run, number), partial| {
                now.duration_since(partial.since) >= GAP_TIMEOUT
                    || order.state(run, *number) != Inserted::New
            })
            .collect();
        for (_, partial) in dropped {
            self.counters.incomplete.add(1);
            self.terminate(&partial.messages).await;
        }
    }

    /// Answers messages that the server must not send again, because their frame is dropped.
    async fn terminate(&self, messages: &[Message]) {
        for message in messages {
            self.answer(message, AckKind::Term).await;
        }
    }

    async fn answer(&self, message: &Message, kind: AckKind) {
        let _ = tokio::time::timeout(SEND_TIMEOUT, message.ack_with(kind)).await;
    }

    /// Acknowledges the frames that the data thread has returned.
    async fn acknowledge(&mut self) {
        while let Some(frame) = self.finished.try_pop() {
            for message in &frame.messages {
                self.answer(message, AckKind::Ack).await;
            }
            self.outstanding.pop_front();
        }
    }

    /// Keeps the server from sending messages again that are still being handled.
    async fn report_progress(&mut self) {
        if self.progressed.elapsed() < self.ack_wait / PROGRESS_REPORTS {
            return;
        }
        self.progressed = Instant::now();
        self.answer_all(self.replies(), AckKind::Progress).await;
    }

    async fn answer_all(&self, replies: Vec<Subject>, kind: AckKind) {
        for reply in replies {
            let _ =
                tokio::time::timeout(SEND_TIMEOUT, self.client.publish(reply, kind.into())).await;
        }
    }

    async fn end(mut self) {
        self.acknowledge().await;
        self.answer_all(self.replies(), AckKind::Nak(None)).await;
        let _ = tokio::time::timeout(SEND_TIMEOUT, self.client.flush()).await;
    }
}

async fn next(
    messages: &mut Option<Messages>,
) -> Option<Result<Message, async_nats::jetstream::consumer::pull::MessagesError>> {
    messages.as_mut()?.next().await
}
