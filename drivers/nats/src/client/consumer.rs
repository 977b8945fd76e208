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

mod frames;
mod position;
mod resent;

use super::{END_TIMEOUT, SEND_TIMEOUT, Shared, TICK, Worker, connect, with_sources};
use crate::NatsError;
use crate::options::{ConsumerCounters, ConsumerOptions, Losses};
use crate::order::Runs;
use async_nats::connection::State;
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::consumer::pull::Stream as Messages;
use async_nats::jetstream::context::{ConsumerInfoErrorKind, Context};
use async_nats::jetstream::{AckKind, Message};
use async_nats::{Client, Subject};
use bytes::Bytes;
use daq_core::frame::FrameMeta;
use daq_core::log_limit::LogLimit;
use frames::{Complete, Partial};
use futures_util::StreamExt;
use position::Position;
use resent::{MAX_ROUNDS, Resent, Sent, Turn};
use ringbuf::HeapRb;
use ringbuf::traits::{Consumer as _, Observer as _, Producer as _, Split};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time after which the server sends an unacknowledged message again.
const ACK_WAIT: Duration = Duration::from_secs(1);
/// Time after the interval of [`ACK_WAIT`] after which the server has queued unacknowledged messages to send them again.
const REDELIVERY_MARGIN: Duration = Duration::from_millis(250);
/// Number of progress reports to the server for frames in flight in the time after which it sends them again.
const PROGRESS_REPORTS: u32 = 4;
/// Maximum time for the server's answer about the consumer.
const INFO_TIMEOUT: Duration = Duration::from_millis(1500);
/// Time after which a gap counts as missing frames although the sender could still publish them. Longer than the longest
/// `timeout` of a sink.
const GAP_TIMEOUT: Duration = Duration::from_secs(90);
/// Maximum time without the stream or the consumer before the run fails.
const GONE_TIMEOUT: Duration = Duration::from_mins(1);
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
    losses: Arc<Mutex<Losses>>,
}

impl Consumer {
    /// Connects, creates the consumer if it does not exist, and starts the client's thread.
    pub fn start(options: ConsumerOptions, counters: ConsumerCounters) -> Result<Self, NatsError> {
        let shared = Shared::new(&options.name, counters.connections.clone());
        let (queue, frames) = HeapRb::new(options.window.max(1)).split();
        let (done, finished) = HeapRb::new(options.window.max(1)).split();
        let (inner, losses) = (shared.clone(), Arc::<Mutex<Losses>>::default());
        let reported = losses.clone();
        let (worker, ()) = Worker::start(shared.clone(), move || async move {
            let client = connect(&options.connection, &inner, 4 * options.window + 64).await?;
            let receiving =
                Receiving::new(client, options, inner, counters, (queue, finished)).await?;
            let receiving = Receiving {
                losses: reported,
                ..receiving
            };
            Ok(((), receiving.run()))
        })?;
        Ok(Self {
            worker,
            shared,
            frames,
            done,
            losses,
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

    /// Returns what was lost since the last call and no frame reports.
    pub fn take_losses(&self) -> Losses {
        let mut losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *losses)
    }

    /// Returns why no frame can be received: the first one does not fit the configuration, or the stream is gone.
    pub fn failure(&self) -> Option<NatsError> {
        self.shared.failure.get().cloned()
    }

    /// Acknowledges the returned frames, gives the others back to the server, and disconnects.
    pub fn close(&mut self) {
        self.worker.join();
    }
}

/// A frame that is delivered and not acknowledged.
struct Outstanding {
    /// Sequence numbers of its messages in the stream.
    sequences: Vec<u64>,
    /// Where answers about its messages are sent.
    replies: Vec<Subject>,
}

/// The last restart of a sender that keeps the name of its run.
#[derive(Clone, Copy, Debug, Default)]
struct Restart {
    /// Number of restarts.
    count: u64,
    /// Sequence number in the stream of the first message after the last one.
    first: u64,
}

/// The client's side.
struct Receiving {
    client: Client,
    context: Context,
    consumer: PullConsumer,
    options: ConsumerOptions,
    shared: Arc<Shared>,
    counters: ConsumerCounters,
    queue: ringbuf::HeapProd<Received>,
    finished: ringbuf::HeapCons<Received>,
    losses: Arc<Mutex<Losses>>,
    order: Runs<Complete>,
    partial: HashMap<(String, u64), Partial>,
    /// Memory of the frames in `order` and in `partial`, in bytes.
    held: usize,
    /// Frames in the queue or with the data thread.
    outstanding: VecDeque<Outstanding>,
    /// The run of the last delivered frame, and the number of times that it has changed.
    run: (String, u64),
    /// Senders that were restarted and keep the name of their run.
    restarts: HashMap<String, Restart>,
    position: Position,
    /// When messages are requested again; `None` if this is not known yet.
    request_at: Option<Instant>,
    interruptions: u64,
    /// The messages that the server sends again after an interruption.
    resent: Resent<Message>,
    /// Time after which the server sends an unacknowledged message again.
    ack_wait: Duration,
    progressed: Instant,
    /// Whether a usable message was received.
    has_started: bool,
    /// Since when the stream or the consumer is gone.
    gone_since: Option<Instant>,
    /// Whether the client does not accept answers at the moment.
    is_blocked: bool,
    limits: [LogLimit; 5],
}

impl Receiving {
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
                    Some(Ok(message)) => {
                        if !self.receive_in_turn(message).await {
                            // All messages are received again in their order.
                            messages = None;
                            self.request_at = None;
                        }
                    }
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
            self.limit_resent().await;
            let limit = self.ack_wait + REDELIVERY_MARGIN;
            if messages.is_none() || !self.has_room() {
                self.resent.restart_timeout();
            } else if self.resent.is_overdue(Instant::now(), limit) {
                messages = None;
                self.request_at = None;
            }
            let is_receiving = messages.is_some()
                && !self.resent.is_awaiting()
                && self.outstanding.len() < self.options.window;
            self.check_timeouts(is_receiving).await;
            self.deliver();
            self.limit_memory().await;
            self.report_progress().await;
        }
        self.end().await;
    }

    fn is_interrupted(&self) -> bool {
        self.shared.interruptions.load(Ordering::Acquire) != self.interruptions
    }

    /// Receives a message when it is its turn. Returns false if messages are missing that the server sent before it.
    async fn receive_in_turn(&mut self, message: Message) -> bool {
        let Ok(sequence) = message.info().map(|info| info.stream_sequence) else {
            return true;
        };
        let bytes = message_bytes(&message);
        match self.resent.turn(sequence, message, bytes) {
            Turn::Now(message) => self.receive(message).await,
            Turn::All(messages) => self.receive_all(messages).await,
            Turn::Wait => {}
            Turn::Drop => return false,
        }
        true
    }

    async fn receive_all(&mut self, messages: Vec<Message>) {
        for message in messages {
            self.receive(message).await;
        }
    }

    /// Receives the messages that wait for others, and waits for the others no longer. They are not counted as deleted.
    async fn pass_resent(&mut self) {
        for (sequence, message) in self.resent.end() {
            self.position.pass(sequence - 1);
            self.receive(message).await;
        }
    }

    /// Limits the memory of messages that wait for others.
    async fn limit_resent(&mut self) {
        let bytes = self.resent.bytes();
        if bytes <= self.max_held() {
            return;
        }
        let name = &self.options.name;
        self.limits[4].run(|suppressed| {
            tracing::warn!(
                "{name}: messages that wait for earlier ones, which the server has not sent again, need {bytes} bytes; receiving them \
                 out of order, so frames may count as lost; set a larger `window`{suppressed}"
            );
        });
        self.pass_resent().await;
    }

    /// Whether a further message can be received. Frames that wait for earlier ones do not stop the client, because the earlier
    /// ones may follow.
    fn has_room(&self) -> bool {
        self.shared.failure.get().is_none() && self.outstanding.len() < self.options.window
    }

    /// Returns where answers about messages are sent that are received and not acknowledged.
    fn replies(&self) -> Vec<Subject> {
        let partial = self.partial.values().flat_map(|frame| &frame.replies);
        let waiting = self.order.items().flat_map(|frame| &frame.replies);
        let outstanding = self.outstanding.iter().flat_map(|frame| &frame.replies);
        let resent = self.resent.messages();
        let resent = resent.filter_map(|message| message.reply.as_ref());
        let held = partial.chain(waiting).chain(outstanding).chain(resent);
        held.cloned().collect()
    }

    /// Returns the stream sequences of the messages that are received and not acknowledged.
    fn sequences(&self) -> impl Iterator<Item = u64> {
        let partial = self.partial.values().flat_map(|frame| &frame.sequences);
        let waiting = self.order.items().flat_map(|frame| &frame.sequences);
        let outstanding = self.outstanding.iter().flat_map(|frame| &frame.sequences);
        let held = partial.chain(waiting).chain(outstanding).copied();
        held.chain(self.resent.sequences())
    }

    /// Returns when messages can be requested: after the server has sent those again that did not arrive.
    async fn request_at(&mut self) -> Option<Instant> {
        let name = &self.options.name;
        // The client cancels the subscription of the last requests in a task of its own.
        tokio::task::yield_now().await;
        let info = tokio::time::timeout(INFO_TIMEOUT, self.consumer.get_info()).await;
        let sent = match info.ok()? {
            Ok(info) => info,
            Err(error) if is_gone(&error.kind()) => {
                self.recover().await;
                return None;
            }
            Err(error) => {
                let text = with_sources(&error);
                self.limits[0].run(|suppressed| {
                    tracing::warn!("{name}: cannot receive: {text}; trying again{suppressed}");
                });
                tokio::time::sleep(RETRY_INTERVAL).await;
                return None;
            }
        };
        self.gone_since = None;
        let held: Vec<_> = self.sequences().collect();
        let sent = Sent {
            last: sent.delivered.stream_sequence,
            floor: sent.ack_floor.stream_sequence,
            pending: sent.num_ack_pending,
        };
        let unreceived = self.resent.begin(sent, &held);
        if unreceived == 0 {
            let messages = self.resent.take_waiting();
            self.receive_all(messages).await;
            return Some(Instant::now());
        }
        if !self.resent.may_wait() {
            tracing::warn!(
                "{name}: the server has not sent {unreceived} messages again in {MAX_ROUNDS} attempts; receiving later messages. \
                 Another process may use the same consumer"
            );
            self.pass_resent().await;
            self.position.pass(sent.last);
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

    /// Sends an answer about a message. An answer that the client does not accept is dropped: the server then sends the message
    /// again.
    async fn answer(&mut self, reply: Subject, kind: AckKind) {
        if self.client.connection_state() == State::Connected {
            self.is_blocked = false;
        } else if self.is_blocked {
            return;
        }
        let sent = tokio::time::timeout(SEND_TIMEOUT, self.client.publish(reply, kind.into()));
        self.is_blocked = sent.await.is_err();
    }

    async fn answer_all(&mut self, replies: impl IntoIterator<Item = Subject>, kind: AckKind) {
        for reply in replies {
            self.answer(reply, kind).await;
        }
    }

    /// Acknowledges the frames that the data thread has returned.
    async fn acknowledge(&mut self) {
        while self.finished.try_pop().is_some() {
            if let Some(frame) = self.outstanding.pop_front() {
                self.answer_all(frame.replies, AckKind::Ack).await;
            }
        }
    }

    /// Keeps the server from sending messages again that are still being handled.
    async fn report_progress(&mut self) {
        let is_due = self.progressed.elapsed() >= self.ack_wait / PROGRESS_REPORTS;
        if !is_due || self.client.connection_state() != State::Connected {
            return;
        }
        self.progressed = Instant::now();
        self.answer_all(self.replies(), AckKind::Progress).await;
    }

    /// Answers all messages in a limited time.
    async fn end(mut self) {
        let _ = tokio::time::timeout(END_TIMEOUT, async {
            self.acknowledge().await;
            self.answer_all(self.replies(), AckKind::Nak(None)).await;
            let _ = tokio::time::timeout(SEND_TIMEOUT, self.client.flush()).await;
        })
        .await;
    }
}

/// Whether the server has answered that the consumer or its stream does not exist.
fn is_gone(kind: &ConsumerInfoErrorKind) -> bool {
    match kind {
        ConsumerInfoErrorKind::NotFound | ConsumerInfoErrorKind::StreamNotFound => true,
        ConsumerInfoErrorKind::JetStream(error) => error.code() == 404,
        _ => false,
    }
}

/// Returns the estimated memory of a message in bytes.
fn message_bytes(message: &Message) -> usize {
    message.payload.len() + frames::MESSAGE_BYTES
}

async fn next(
    messages: &mut Option<Messages>,
) -> Option<Result<Message, async_nats::jetstream::consumer::pull::MessagesError>> {
    messages.as_mut()?.next().await
}
