//! Publishes frames and counts their acknowledgements.
//!
//! ```text
//!   data thread: frame n ──copy──▶ buffer n % window ──▶ submitted ──▶ in flight ── all messages acknowledged ──▶ free
//!                                                                       └── no answer: published again, same id
//! ```
//! Buffer `n % window` is free again when frame `n` and all frames before it are acknowledged or refused. The data thread
//! reads this from the number `oldest`.

use super::state::{StateCheck, Unstored};
use super::stream::{Prepared, is_limit};
use super::{
    END_TIMEOUT, SEND_TIMEOUT, Shared, TICK, Trouble, Worker, connect, stream, with_sources,
};
use crate::NatsError;
use crate::options::{PublisherCounters, PublisherOptions};
use crate::wire::{Chunk, HEADER_BYTES, MAX_CHUNKS, encode};
use async_nats::connection::State;
use async_nats::jetstream::context::Context;
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::Config;
use async_nats::{Client, HeaderMap, Message, StatusCode, Subscriber};
use bytes::Bytes;
use daq_core::frame::FrameMeta;
use daq_core::log_limit::LogLimit;
use daq_core::notify::Wait;
use daq_core::ring::Frame;
use futures_util::StreamExt;
use ringbuf::HeapRb;
use ringbuf::traits::{Consumer as _, Producer as _, Split};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time before a message that the server cannot store at the moment is published again.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum time to create the stream again.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum time without an acknowledgement at the end of the run. The runtime expects the end of a sink within 5 s.
const FINISH_TIMEOUT: Duration = Duration::from_secs(3);
/// Time without accepted messages after which this is logged.
const TROUBLE_TIME: Duration = Duration::from_secs(1);
/// Maximum number of frames that are published before acknowledgements are handled.
const MAX_BURST: usize = 64;

/// A copy of a frame.
#[derive(Debug)]
struct Buffer {
    number: u64,
    meta: FrameMeta,
    present: Vec<u64>,
    payload: Vec<u8>,
}

/// A range of a frame's payload, which keeps the frame until the client has sent it.
struct Part(Arc<Buffer>, Range<usize>);

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.0.payload[self.1.clone()]
    }
}

/// The data thread's side.
pub struct Publisher {
    worker: Worker,
    shared: Arc<Shared>,
    oldest: Arc<AtomicU64>,
    buffers: Vec<Arc<Buffer>>,
    submit: ringbuf::HeapProd<Arc<Buffer>>,
    next: u64,
    counters: PublisherCounters,
    timeout: Duration,
    server: String,
}

impl Publisher {
    /// Connects, prepares the stream, and starts the client's thread.
    pub fn start(
        options: PublisherOptions,
        counters: PublisherCounters,
    ) -> Result<Self, NatsError> {
        let window = options.window.max(1);
        let words = (options.packets_per_frame as usize).div_ceil(64);
        let buffers = (0..window).map(|_| {
            Arc::new(Buffer {
                number: 0,
                meta: FrameMeta::default(),
                present: Vec::with_capacity(words),
                payload: Vec::with_capacity(options.slot_bytes),
            })
        });
        let buffers = buffers.collect();
        let (submit, submitted) = HeapRb::new(window).split();
        let shared = Shared::new(&options.name, counters.connections.clone());
        let oldest = Arc::new(AtomicU64::new(0));
        let timeout = options.timeout;
        let servers: Vec<_> = options
            .connection
            .servers
            .iter()
            .map(ToString::to_string)
            .collect();
        let (inner, free, counts) = (shared.clone(), oldest.clone(), counters.clone());
        let (worker, ()) = Worker::start(shared.clone(), move || async move {
            let client = connect(&options.connection, &inner, 2 * window + 64).await?;
            let context = async_nats::jetstream::new(client.clone());
            let stream = stream::prepare(&context, &options.stream, &options.subject).await?;
            let mut sending =
                Sending::new(client, options, inner, free, counts, submitted, &stream).await?;
            sending.check_size(&stream.config)?;
            sending.declare(&stream);
            Ok(((), sending.run()))
        })?;
        Ok(Self {
            worker,
            shared,
            oldest,
            buffers,
            submit,
            next: 0,
            counters,
            timeout,
            server: format!("NATS server {}", servers.join(", ")),
        })
    }

    fn free(&mut self) -> Option<&mut Buffer> {
        let window = self.buffers.len() as u64;
        if self.next >= self.oldest.load(Ordering::Acquire) + window {
            return None;
        }
        let index = usize::try_from(self.next % window).unwrap_or(0);
        // The client may still hold a message that was published twice.
        Arc::get_mut(&mut self.buffers[index])
    }

    /// Copies `frame` into the window. Returns false if the window is full.
    pub fn offer(&mut self, frame: &Frame<'_>) -> bool {
        let number = self.next;
        if number == self.oldest.load(Ordering::Acquire) {
            // The time without an answer begins with this frame.
            self.shared.progress();
        }
        let Some(buffer) = self.free() else {
            return false;
        };
        buffer.number = number;
        buffer.meta = *frame.meta();
        buffer.present.clear();
        buffer.present.extend_from_slice(frame.present().words());
        buffer.payload.clear();
        buffer
            .payload
            .extend_from_slice(frame.bytes().unwrap_or_default());
        buffer.meta.length = buffer.payload.len();
        let index = usize::try_from(number % self.buffers.len() as u64).unwrap_or(0);
        self.counters.published.add(1);
        self.next += 1;
        // The queue has room for the whole window.
        self.submit.try_push(self.buffers[index].clone()).is_ok()
    }

    /// Wakes the client's thread after one or several frames were offered.
    pub fn commit(&self) {
        self.shared.client.notify_one();
    }

    /// Waits until the window has room or about `limit` has passed. Returns whether the window has room.
    pub fn wait(&mut self, wait: Wait, limit: Duration) -> bool {
        let shared = self.shared.clone();
        shared.data.wait(wait, limit, || self.free().is_some())
    }

    /// Returns the server's name for messages.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Returns why the window stays full: whether the stream is full, the server's name, and the reason. `None` if the
    /// server answers.
    pub fn obstacle(&self) -> Option<(bool, String, String)> {
        let trouble = self.shared.trouble();
        if trouble != Trouble::None {
            return Some((
                trouble == Trouble::Full,
                self.server.clone(),
                self.shared.why(),
            ));
        }
        let idle = self.shared.idle();
        (idle > self.timeout).then(|| {
            let why = format!(
                "it has acknowledged nothing for {} s; check the load of the server",
                idle.as_secs()
            );
            (false, self.server.clone(), why)
        })
    }

    /// Waits for the acknowledgements of all frames, as long as some arrive within the timeout, at most 3 s. Frames without an
    /// acknowledgement count as refused. Returns their number.
    pub fn finish(&mut self) -> u64 {
        self.shared.client.notify_one();
        self.shared.progress();
        let timeout = self.timeout.min(FINISH_TIMEOUT);
        while self.oldest.load(Ordering::Acquire) < self.next && self.shared.idle() < timeout {
            let oldest = self.oldest.load(Ordering::Acquire);
            let shared = self.shared.clone();
            let mut is_done = || self.oldest.load(Ordering::Acquire) > oldest;
            shared.data.sleep(TICK, &mut is_done);
        }
        let refused = self.counters.refused.get();
        self.worker.join();
        self.counters.refused.get() - refused
    }
}

/// A frame in flight.
struct Flight {
    frame: Arc<Buffer>,
    chunks: u32,
    /// Indices of the messages that are not acknowledged.
    open: BTreeSet<u32>,
    /// When the open messages are published again; `None` before they are published.
    due: Option<Instant>,
    /// Number of times that each message was published.
    sends: Vec<u8>,
    is_refused: bool,
}

impl Flight {
    /// Counts the frame when it leaves the window. Returns whether all its messages are acknowledged.
    fn count(&self, counters: &PublisherCounters) -> bool {
        let is_acknowledged = !self.is_refused && self.open.is_empty();
        if is_acknowledged {
            counters.acknowledged.add(1);
        } else {
            counters.refused.add(1);
            counters.lost.add(1);
        }
        is_acknowledged
    }
}

/// The client's side.
struct Sending {
    client: Client,
    options: PublisherOptions,
    shared: Arc<Shared>,
    oldest: Arc<AtomicU64>,
    counters: PublisherCounters,
    submitted: ringbuf::HeapCons<Arc<Buffer>>,
    flights: VecDeque<Flight>,
    /// Number of the first flight.
    first: u64,
    inbox: String,
    acknowledgements: Subscriber,
    chunk: usize,
    /// Headers that all messages have.
    common: HeaderMap,
    connects: u64,
    context: Context,
    check: StateCheck,
    /// Since when messages are not accepted, and whether this was logged.
    trouble: Option<(Instant, bool)>,
    /// When the client looks for the stream, because the server has answered that no stream stores the messages.
    missing: Option<Instant>,
    refusals: LogLimit,
    limits: [LogLimit; 2],
}

impl Sending {
    async fn new(
        client: Client,
        options: PublisherOptions,
        shared: Arc<Shared>,
        oldest: Arc<AtomicU64>,
        counters: PublisherCounters,
        submitted: ringbuf::HeapCons<Arc<Buffer>>,
        stream: &Prepared,
    ) -> Result<Self, NatsError> {
        let inbox = client.new_inbox();
        let subscribed = client.subscribe(format!("{inbox}.*.*")).await;
        let acknowledgements = subscribed.map_err(|error| {
            NatsError::new(format!("NATS subject {inbox}"), with_sources(&error))
        })?;
        let header = HEADER_BYTES + options.layout.len() + options.packets_per_frame as usize / 4;
        let max = client.max_payload().saturating_sub(header);
        let chunk = options.chunk.unwrap_or(max);
        let what = format!("`chunk` of {}", options.name);
        if chunk > max || chunk == 0 {
            let why = format!(
                "messages of {chunk} bytes and their headers exceed `max_payload` of the server ({} bytes); set chunk to at \
                 most {max}, or raise `max_payload`",
                client.max_payload()
            );
            return Err(NatsError::configuration(what, why));
        }
        if options.slot_bytes.div_ceil(chunk) > MAX_CHUNKS as usize {
            let why = format!(
                "frames of {} bytes need more than {MAX_CHUNKS} messages; raise chunk",
                options.slot_bytes
            );
            return Err(NatsError::configuration(what, why));
        }
        let context = async_nats::jetstream::new(client.clone());
        let mut common = HeaderMap::new();
        common.insert("Daq-Run", options.run.as_str());
        common.insert("Daq-Layout", options.layout.as_str());
        Ok(Self {
            client,
            shared,
            oldest,
            counters,
            submitted,
            flights: VecDeque::with_capacity(options.window),
            first: 0,
            inbox,
            acknowledgements,
            chunk,
            common,
            connects: 1,
            check: StateCheck::new(context.clone(), &stream.config),
            context,
            trouble: None,
            missing: None,
            refusals: LogLimit::new(),
            limits: <[LogLimit; 2]>::default(),
            options,
        })
    }

    /// States in all messages where their run begins in `stream`, so that receivers know whether they receive all its frames.
    fn declare(&mut self, stream: &Prepared) {
        self.common
            .insert("Daq-After", stream.last.to_string().as_str());
        if self.first > 0 {
            self.common
                .insert("Daq-First", self.first.to_string().as_str());
        }
    }

    /// Creates the stream again if it was deleted, for example because the server was restarted and had stored it in memory.
    async fn prepare_again(&mut self) {
        if self.missing.is_none_or(|due| due > Instant::now())
            || self.client.connection_state() != State::Connected
        {
            return;
        }
        let (name, stream) = (&self.options.name, &self.options.stream.name);
        let options = &self.options;
        let prepared = async {
            match self.context.get_stream(stream).await {
                Err(error) if stream::is_absent(error.kind()) => {}
                _ => return Ok(None),
            }
            let prepared = stream::prepare(&self.context, &options.stream, &options.subject).await;
            prepared.map(Some)
        };
        match tokio::time::timeout(PREPARE_TIMEOUT, prepared).await {
            // The stream exists, or no server answers. The next answer to a message shows whether the stream is missing.
            Ok(Ok(None)) | Err(_) => self.missing = None,
            Ok(Ok(Some(prepared))) => {
                tracing::warn!("{name}: the stream {stream} was deleted; daq has created it again");
                self.missing = None;
                if let Some(unstored) = self.check.restart() {
                    self.count_unstored(&unstored);
                }
                self.declare(&prepared);
                self.repeat_all();
                // Messages of these frames that the old stream had stored are gone.
                for flight in self.flights.iter_mut().filter(|flight| !flight.is_refused) {
                    flight.open = (0..flight.chunks).collect();
                }
            }
            Ok(Err(error)) => {
                self.limits[1].run(|suppressed| {
                    tracing::error!("{name}: cannot create the stream again: {error}{suppressed}");
                });
                self.missing = Some(Instant::now() + RETRY_INTERVAL);
            }
        }
    }

    /// Logs that the server stores no messages, before the window is full.
    fn log_trouble(&mut self) {
        if self.shared.trouble() == Trouble::None || self.flights.is_empty() {
            self.trouble = None;
            return;
        }
        let (since, is_logged) = self.trouble.get_or_insert((Instant::now(), false));
        if *is_logged || since.elapsed() < TROUBLE_TIME {
            return;
        }
        *is_logged = true;
        let (name, why, frames) = (&self.options.name, self.shared.why(), self.flights.len());
        self.limits[0].run(|suppressed| {
            tracing::warn!(
                "{name}: {why}; frames without an acknowledgement: {frames}{suppressed}"
            );
        });
    }

    /// Checks that `stream` can hold a whole frame with its headers.
    fn check_size(&self, stream: &Config) -> Result<(), NatsError> {
        let bytes = self.options.slot_bytes;
        let messages = bytes.div_ceil(self.chunk).max(1);
        let common =
            self.options.subject.len() + self.options.run.len() + self.options.layout.len();
        stream::check_size(
            stream,
            messages,
            bytes + messages * common,
            bytes.min(self.chunk),
        )
    }

    async fn run(mut self) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !self.shared.is_closing.load(Ordering::Acquire) {
            let shared = self.shared.clone();
            tokio::select! {
                biased;
                Some(message) = self.acknowledgements.next() => {
                    self.acknowledged(&message);
                    self.drain_acknowledgements();
                }
                () = shared.client.notified() => {}
                _ = tick.tick() => {}
            }
            self.take_submitted();
            let connects = self.shared.connects.load(Ordering::Acquire);
            if connects != self.connects {
                self.connects = connects;
                self.repeat_all();
            }
            self.publish_due().await;
            let is_storing = self.shared.trouble() == Trouble::None;
            if let Some(unstored) = self.check.tick(is_storing).await {
                self.count_unstored(&unstored);
                self.missing.get_or_insert_with(Instant::now);
            }
            self.prepare_again().await;
            self.log_trouble();
        }
        self.end().await;
    }

    /// Handles the acknowledgements that have already arrived.
    fn drain_acknowledgements(&mut self) {
        use futures_util::FutureExt;
        while let Some(Some(message)) = self.acknowledgements.next().now_or_never() {
            self.acknowledged(&message);
        }
    }

    fn take_submitted(&mut self) {
        while let Some(frame) = self.submitted.try_pop() {
            let chunks = frame.payload.len().div_ceil(self.chunk).max(1);
            let chunks = u32::try_from(chunks).unwrap_or(u32::MAX);
            self.flights.push_back(Flight {
                frame,
                chunks,
                open: (0..chunks).collect(),
                due: None,
                sends: vec![0; chunks as usize],
                is_refused: false,
            });
        }
    }

    /// After an interruption, all open messages are published again, in order.
    fn repeat_all(&mut self) {
        for flight in &mut self.flights {
            flight.due = None;
        }
    }

    async fn publish_due(&mut self) {
        let now = Instant::now();
        let mut published = 0;
        for i in 0..self.flights.len() {
            let flight = &self.flights[i];
            if flight.open.is_empty() || flight.due.is_some_and(|due| due > now) {
                continue;
            }
            if published == MAX_BURST {
                // Handle acknowledgements first, so that the window moves.
                self.shared.client.notify_one();
                return;
            }
            if self.client.connection_state() != State::Connected || !self.publish(i).await {
                return;
            }
            published += 1;
        }
    }

    /// Publishes the open messages of flight `i`. Returns false if the client accepts no messages.
    async fn publish(&mut self, i: usize) -> bool {
        let flight = &self.flights[i];
        let (frame, chunks) = (flight.frame.clone(), flight.chunks);
        let open: Vec<u32> = flight.open.iter().copied().collect();
        for index in open {
            let start = index as usize * self.chunk;
            let range = start..(start + self.chunk).min(frame.payload.len());
            let chunk = Chunk {
                index,
                count: chunks,
                offset: start as u64,
            };
            let mut headers = self.common.clone();
            encode(
                &self.options.run,
                (frame.number, self.options.window as u64),
                &frame.meta,
                &frame.present,
                &self.options.kept,
                chunk,
                |name, value| headers.insert(name, value.as_str()),
            );
            let payload = Bytes::from_owner(Part(frame.clone(), range));
            let reply = format!("{}.{}.{index}", self.inbox, frame.number);
            let subject = self.options.subject.clone();
            let published = self
                .client
                .publish_with_reply_and_headers(subject, reply, headers, payload);
            match tokio::time::timeout(SEND_TIMEOUT, published).await {
                Ok(Ok(())) => {
                    let sends = &mut self.flights[i].sends[index as usize];
                    self.counters.repeated.add(u64::from(*sends > 0));
                    *sends = sends.saturating_add(1);
                }
                Ok(Err(error)) => {
                    let why = format!("{}; set a smaller `chunk`", with_sources(&error));
                    self.shared.set_trouble(Trouble::Unavailable, &why);
                    return false;
                }
                Err(_) => return false,
            }
        }
        self.flights[i].due = Some(Instant::now() + self.options.timeout);
        true
    }

    fn acknowledged(&mut self, message: &Message) {
        let tokens = message.subject.strip_prefix(self.inbox.as_str());
        let numbers = tokens.and_then(|tokens| {
            let (number, index) = tokens.strip_prefix('.')?.split_once('.')?;
            Some((number.parse::<u64>().ok()?, index.parse::<u32>().ok()?))
        });
        let Some((number, index)) = numbers else {
            return;
        };
        let flight = number
            .checked_sub(self.first)
            .and_then(|at| usize::try_from(at).ok());
        let Some(flight) = flight.and_then(|at| self.flights.get_mut(at)) else {
            return;
        };
        if !flight.open.contains(&index) {
            return;
        }
        let name = &self.options.stream.name;
        if message.status == Some(StatusCode::NO_RESPONDERS) {
            flight.due = Some(Instant::now() + RETRY_INTERVAL);
            let subject = &self.options.subject;
            let why = format!(
                "no stream stores the subject {subject}; check that the stream {name} exists and has a leader"
            );
            self.shared.set_trouble(Trouble::Unavailable, &why);
            self.missing.get_or_insert_with(Instant::now);
            return;
        }
        match serde_json::from_slice::<Response<PublishAck>>(&message.payload) {
            Ok(Response::Ok(ack)) if ack.duplicate && flight.sends[index as usize] < 2 => {
                // The server stores another message with this id, so it does not store this one.
                flight.open.clear();
                flight.is_refused = true;
                self.shared.progress();
                self.refuse("another message of the stream has the same `Nats-Msg-Id`");
            }
            Ok(Response::Ok(acknowledgement)) => {
                flight.open.remove(&index);
                self.check.message(acknowledgement.sequence);
                self.shared.progress();
                self.counters
                    .deduplicated
                    .add(u64::from(acknowledgement.duplicate));
                // An answer of an interrupted connection does not show that a server is available.
                if self.shared.trouble() != Trouble::None
                    && self.client.connection_state() == State::Connected
                {
                    self.shared.set_trouble(Trouble::None, "");
                }
            }
            Ok(Response::Err { error }) if is_limit(error.error_code()) => {
                flight.due = Some(Instant::now() + RETRY_INTERVAL);
                let why = format!(
                    "the stream {name} does not store messages: {error}; raise the limits of the server's account \
                     (`max_file_store`, `max_memory_store`), or delete messages"
                );
                self.shared.set_trouble(Trouble::Full, &why);
            }
            Ok(Response::Err { error }) if error.code() >= 500 => {
                flight.due = Some(Instant::now() + RETRY_INTERVAL);
                let text = error.to_string();
                let trouble = if text.contains("maximum") {
                    Trouble::Full
                } else {
                    Trouble::Unavailable
                };
                self.shared.set_trouble(
                    trouble,
                    &format!("the stream {name} does not store messages: {text}"),
                );
            }
            Ok(Response::Err { error }) => {
                flight.open.clear();
                flight.is_refused = true;
                let text = error.to_string();
                self.shared.progress();
                self.refuse(&text);
            }
            Err(error) => {
                flight.due = Some(Instant::now() + RETRY_INTERVAL);
                self.shared.set_trouble(
                    Trouble::Unavailable,
                    &format!("the server's answer is not valid: {error}"),
                );
            }
        }
        self.advance();
    }

    /// Counts frames that the server has acknowledged, but that the stream does not hold.
    fn count_unstored(&self, unstored: &Unstored) {
        let (name, stream) = (&self.options.name, &self.options.stream.name);
        let Unstored { frames, why } = unstored;
        self.counters.lost.add(*frames);
        tracing::error!(
            "{name}: {frames} acknowledged frames are not in the stream {stream}, and count as lost: {why}; raise the limits of \
             the stream, and check who deletes its messages"
        );
    }

    fn refuse(&self, why: &str) {
        let name = &self.options.name;
        self.refusals.run(|suppressed| {
            tracing::error!(
                "{name}: the server refuses a frame, which is lost: {why}; raise the limits of the stream, or lower `chunk`{suppressed}"
            );
        });
    }

    /// Frees the frames at the front that are stored or refused.
    fn advance(&mut self) {
        let mut count = 0;
        while self
            .flights
            .front()
            .is_some_and(|flight| flight.open.is_empty())
        {
            let Some(flight) = self.flights.pop_front() else {
                break;
            };
            if flight.count(&self.counters) {
                self.check.frame(flight.chunks);
            }
            count += 1;
        }
        if count > 0 {
            self.first += count;
            self.oldest.store(self.first, Ordering::Release);
            self.shared.data.notify();
        }
    }

    /// Counts what is left, and sends what the client still holds.
    async fn end(mut self) {
        self.take_submitted();
        for flight in self.flights.drain(..) {
            flight.count(&self.counters);
        }
        if self.client.connection_state() != State::Connected {
            return;
        }
        let _ = tokio::time::timeout(SEND_TIMEOUT, self.client.flush()).await;
        let checked = tokio::time::timeout(END_TIMEOUT, self.check.finish()).await;
        if let Ok(Some(unstored)) = checked {
            self.count_unstored(&unstored);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::ledger::Counter;

    #[test]
    fn frames_with_all_acknowledgements_are_not_lost() {
        let counters = PublisherCounters::default();
        for (open, is_refused) in [(1, false), (0, false), (0, true)] {
            let flight = Flight {
                frame: Arc::new(Buffer {
                    number: 0,
                    meta: FrameMeta::default(),
                    present: Vec::new(),
                    payload: Vec::new(),
                }),
                chunks: 1,
                open: (0..open).collect(),
                due: None,
                sends: vec![1],
                is_refused,
            };
            flight.count(&counters);
        }
        let counts = [&counters.acknowledged, &counters.refused, &counters.lost];
        assert_eq!(counts.map(Counter::get), [1, 2, 2]);
    }
}
