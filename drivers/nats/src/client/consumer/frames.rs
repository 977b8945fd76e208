//! Frames from messages: decodes and joins messages, puts the frames into order, and counts what is lost.

use super::{GAP_TIMEOUT, Outstanding, Received, Receiving};
use crate::NatsError;
use crate::order::Inserted;
use crate::wire::{Chunk, FrameHeader, WHOLE, decode, layout_difference};
use async_nats::jetstream::{AckKind, Message};
use async_nats::{HeaderMap, Subject};
use bytes::Bytes;
use ringbuf::traits::{Observer as _, Producer as _};
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Instant;

/// Estimated memory of a message besides its payload, in bytes.
pub(super) const MESSAGE_BYTES: usize = 1024;
/// Memory for the messages of a frame besides its payload, in bytes.
const FRAME_BYTES: usize = 16 * MESSAGE_BYTES;

/// Maximum number of restarted senders that are remembered.
const MAX_RESTARTED: usize = 4096;

/// The messages of a frame that have arrived.
pub(super) struct Partial {
    header: FrameHeader,
    count: u32,
    /// Offset and payload of each message by its index.
    chunks: BTreeMap<u32, (u64, Bytes)>,
    pub(super) replies: Vec<Subject>,
    pub(super) sequences: Vec<u64>,
    /// Since when the other messages could arrive.
    since: Instant,
}

impl Partial {
    fn new(header: FrameHeader, count: u32) -> Self {
        Self {
            header,
            count,
            chunks: BTreeMap::new(),
            replies: Vec::new(),
            sequences: Vec::new(),
            since: Instant::now(),
        }
    }

    /// Adds a message.
    fn add(&mut self, chunk: Chunk, arrival: Arrival) {
        self.chunks
            .insert(chunk.index, (chunk.offset, arrival.payload));
        self.replies.extend(arrival.reply);
        self.sequences.push(arrival.sequence);
    }

    fn is_complete(&self) -> bool {
        self.chunks.len() == self.count as usize
    }

    /// Returns whether the messages contain the whole frame without gaps.
    fn is_joined(&self) -> bool {
        let mut end = 0;
        let is_joined = self.chunks.values().all(|(offset, payload)| {
            let is_next = *offset == end;
            end += payload.len() as u64;
            is_next
        });
        is_joined && end == self.header.meta.length as u64
    }

    /// Returns the frame in the epoch `epoch`.
    fn join(self, epoch: String) -> Complete {
        let payloads = self.chunks.into_values().map(|(_, payload)| payload);
        Complete {
            header: self.header,
            epoch,
            payload: payloads.collect(),
            replies: self.replies,
            sequences: self.sequences,
        }
    }

    /// Estimated memory in bytes.
    fn bytes(&self) -> usize {
        let payloads = self.chunks.values().map(|(_, payload)| payload.len());
        payloads.sum::<usize>() + self.chunks.len() * MESSAGE_BYTES
    }
}

/// A complete frame that waits for its turn.
#[derive(Debug)]
pub(super) struct Complete {
    header: FrameHeader,
    /// Frames with another name belong to another epoch.
    epoch: String,
    payload: Vec<Bytes>,
    pub(super) replies: Vec<Subject>,
    pub(super) sequences: Vec<u64>,
}

impl Complete {
    fn bytes(&self) -> usize {
        let payloads = self.payload.iter().map(Bytes::len);
        payloads.sum::<usize>() + self.sequences.len() * MESSAGE_BYTES
    }
}

/// A message of a frame.
struct Arrival {
    sequence: u64,
    reply: Option<Subject>,
    payload: Bytes,
    /// Whether the server sent the message for the first time.
    is_first: bool,
    /// Whether the id of the message is made from its run, so that equal numbers are the same frame.
    has_own_id: bool,
}

impl Receiving {
    pub(super) async fn receive(&mut self, message: Message) {
        self.counters.messages.add(1);
        self.shared.progress();
        let Ok(info) = message.info() else {
            return;
        };
        let (sequence, deliveries) = (info.stream_sequence, info.delivered);
        let empty = HeaderMap::new();
        let headers = message.headers.as_ref().unwrap_or(&empty);
        let get = |name: &str| headers.get(name).map(async_nats::HeaderValue::as_str);
        let decoded = decode(get, message.payload.len(), sequence, &self.options.kept);
        let decoded = decoded
            .map_err(|error| error.to_string())
            .and_then(|(header, chunk)| self.check(header, get("Daq-Layout")).map(|h| (h, chunk)));
        let (mut header, chunk) = match decoded {
            Ok(decoded) => decoded,
            Err(why) if !self.has_started && get("Daq-Layout").is_some() => {
                return self.fail(sequence, why);
            }
            Err(why) => {
                let reply = message.reply.clone();
                self.position.advance(sequence);
                return self.reject(sequence, reply, &why).await;
            }
        };
        self.has_started = true;
        if header.run.is_empty() && chunk == WHOLE {
            // Other programs may use a number several times. The sequence in the stream identifies the frame.
            header.number = sequence;
        }
        let is_new = self.position.advance(sequence);
        let own = format!("{}:", header.run);
        let arrival = Arrival {
            sequence,
            reply: message.reply.clone(),
            payload: message.payload.clone(),
            is_first: is_new && deliveries <= 1,
            has_own_id: get("Nats-Msg-Id").is_some_and(|id| id.starts_with(&own)),
        };
        self.place(header, chunk, arrival).await;
    }

    /// Checks that the frame of a message fits the configuration.
    fn check(&self, header: FrameHeader, layout: Option<&str>) -> Result<FrameHeader, String> {
        let length = header.meta.length;
        let packets = header.meta.packets_per_frame;
        let layouts = self.options.layout.as_deref().zip(layout);
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
            return Err(format!(
                "its frame has {packets} packets; set packets_per_frame = {packets}"
            ));
        }
        Ok(header)
    }

    /// Ends the run: the configuration is wrong, not the message, which the server sends again to the next run.
    fn fail(&self, sequence: u64, why: String) {
        let stream = &self.options.stream;
        let what = format!("message {sequence} of the NATS stream {stream}");
        let _ = self.shared.failure.set(NatsError::configuration(what, why));
        self.shared.data.notify();
    }

    /// Counts a message that is not usable. The server must not send it again.
    async fn reject(&mut self, sequence: u64, reply: Option<Subject>, why: &str) {
        self.counters.invalid.add(1);
        self.lose(|losses| losses.rejected += 1);
        let text = format!("message {sequence} is not usable: {why}");
        self.counters.rejections.count("invalid", 1, &text);
        let name = &self.options.name;
        self.limits[1].run(|suppressed| tracing::error!("{name}: {text}{suppressed}"));
        self.answer_all(reply, AckKind::Term).await;
    }

    /// Counts losses that no frame reports.
    fn lose(&self, count: impl FnOnce(&mut crate::options::Losses)) {
        count(&mut self.losses.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.data.notify();
    }

    /// Returns the name under which a frame is ordered. An earlier process has received the frames before its position and
    /// has finished some of them, so the others are not in an order without gaps.
    fn key(&self, header: &FrameHeader, sequence: u64) -> String {
        let run = &header.run;
        let streams = self.position.streams;
        if run.is_empty() {
            return format!("{run} (stream {streams})");
        }
        let restart = self.restarts.get(run).copied().unwrap_or_default();
        match restart.count - u64::from(restart.count > 0 && sequence < restart.first) {
            0 if self.position.is_earlier(header) => format!("{run} (earlier)"),
            0 => run.clone(),
            count => format!("{run} (restart {count})"),
        }
    }

    /// Returns the name of the epoch of a frame with the key `key`.
    fn epoch(key: &str, run: &str) -> String {
        let name = if key.contains(" (restart ") { key } else { run };
        name.to_owned()
    }

    /// Returns whether a frame that arrived before belongs to a restarted sender, which keeps the name of its run.
    fn is_restart(header: &FrameHeader, state: Inserted, arrival: &Arrival) -> bool {
        !header.run.is_empty()
            && arrival.is_first
            && !arrival.has_own_id
            && matches!(state, Inserted::Delivered | Inserted::Waiting)
    }

    /// Adds a message to its frame.
    async fn place(&mut self, header: FrameHeader, chunk: Chunk, arrival: Arrival) {
        let mut key = self.key(&header, arrival.sequence);
        let number = if header.run.is_empty() {
            arrival.sequence
        } else {
            header.number
        };
        let mut state = self.order.state(&key, number);
        if Self::is_restart(&header, state, &arrival) {
            if self.restarts.len() >= MAX_RESTARTED {
                self.restarts.clear();
            }
            let restart = self.restarts.entry(header.run.clone()).or_default();
            (restart.count, restart.first) = (restart.count + 1, arrival.sequence);
            key = self.key(&header, arrival.sequence);
            state = Inserted::New;
            let (name, run) = (&self.options.name, &header.run);
            self.limits[2].run(|suppressed| {
                tracing::warn!(
                    "{name}: frame {number} of run {run} arrived before, in another message; the sender was restarted, so a new \
                     epoch begins. Set another `Daq-Run` in each run of the sender{suppressed}"
                );
            });
        }
        match state {
            Inserted::New => self.add(&key, header, chunk, arrival).await,
            Inserted::Waiting => self.counters.duplicates.add(1),
            Inserted::Delivered | Inserted::Late => {
                if state == Inserted::Late {
                    self.counters.late.add(1);
                } else {
                    self.counters.duplicates.add(1);
                }
                let sequence = arrival.sequence;
                let has = |frame: &Outstanding| frame.sequences.contains(&sequence);
                if !self.outstanding.iter().any(has) {
                    self.answer_all(arrival.reply, AckKind::Ack).await;
                }
            }
        }
    }

    /// Adds a new message to its frame.
    async fn add(&mut self, key: &str, header: FrameHeader, chunk: Chunk, arrival: Arrival) {
        let (number, window) = (header.number, header.window);
        self.prepare(key, &header, chunk.count);
        let epoch = Self::epoch(key, &header.run);
        let mut partial = Partial::new(header, chunk.count);
        if chunk != WHOLE {
            self.order.saw(key, number, window);
            let id = (key.to_owned(), number);
            if let Some(begun) = self.partial.remove(&id) {
                self.held -= begun.bytes();
                let is_repeated = begun.chunks.contains_key(&chunk.index);
                if begun.count != chunk.count {
                    self.keep(id, begun);
                    let why =
                        "its frame has another number of messages than its first message states";
                    return self.reject(arrival.sequence, arrival.reply, why).await;
                }
                if is_repeated && !(partial.header.run.is_empty() && arrival.is_first) {
                    self.counters.duplicates.add(1);
                    return self.keep(id, begun);
                }
                if is_repeated {
                    // Another program has begun a new frame with the same number.
                    self.drop_partial(key, begun).await;
                } else {
                    partial = begun;
                }
            }
        }
        let sequence = arrival.sequence;
        partial.add(chunk, arrival);
        if !partial.is_complete() {
            return self.keep((key.to_owned(), number), partial);
        }
        if partial.is_joined() {
            return self.complete(key, partial.join(epoch), sequence);
        }
        let why = "the messages of its frame do not join";
        self.reject(sequence, None, why).await;
        self.answer_all(partial.replies, AckKind::Term).await;
    }

    /// Keeps a frame that is not complete.
    fn keep(&mut self, id: (String, u64), partial: Partial) {
        self.held += partial.bytes();
        self.partial.insert(id, partial);
    }

    /// Passes a complete frame, whose last message has the number `sequence` in the stream, to the order.
    fn complete(&mut self, key: &str, complete: Complete, sequence: u64) {
        let (mut number, window) = (complete.header.number, complete.header.window);
        if complete.header.run.is_empty() {
            number = sequence;
            for other in complete
                .sequences
                .iter()
                .filter(|other| **other != sequence)
            {
                self.order.remember(key, *other);
            }
        }
        self.held += complete.bytes();
        self.order.insert(key, number, window, complete);
    }

    /// Declares what is known about the frames before a frame of `chunks` messages.
    fn prepare(&mut self, key: &str, header: &FrameHeader, chunks: u32) {
        let (run, number) = (&header.run, header.number);
        let is_restarted = key.contains(" (restart ");
        if run.is_empty() || (*key != **run && !is_restarted) {
            // The numbers of these frames do not show what is missing.
            return self.order.set_unordered(key);
        }
        if !self.order.knows(key) {
            let first = if is_restarted {
                number
            } else {
                self.position.first_frame(header)
            };
            self.order.begin(key, first);
        }
        if self.position.is_whole {
            let deleted = self.position.deleted_frames(chunks);
            self.order.explain(key, number, deleted);
        }
        if std::mem::take(&mut self.position.is_purged) {
            self.order.trust(key, number);
        }
    }

    /// Passes frames that are in order to the data thread.
    pub(super) fn deliver(&mut self) {
        let now = Instant::now();
        let mut count = 0;
        while !self.queue.is_full() && self.outstanding.len() < self.options.window {
            let Some(ordered) = self.order.pop(now) else {
                break;
            };
            let missing = ordered.missing;
            let Some(complete) = ordered.item else {
                let expired = self.position.expire(missing, 1);
                self.lose(|losses| {
                    losses.missing += missing - expired.min(missing);
                    losses.expired += expired;
                });
                continue;
            };
            self.held = self.held.saturating_sub(complete.bytes());
            let expired = self.position.expire(missing, complete.sequences.len());
            self.begin_epoch(&complete, ordered.is_restart);
            self.outstanding.push_back(Outstanding {
                sequences: complete.sequences,
                replies: complete.replies,
            });
            count += 1;
            let received = Received {
                meta: complete.header.meta,
                present: complete.header.present,
                missing: missing.saturating_sub(expired),
                expired,
                run: self.run.1,
                payload: complete.payload,
            };
            if self.queue.try_push(received).is_err() {
                break;
            }
        }
        if self.partial.is_empty() && self.order.is_idle() {
            self.position.settle();
        }
        if count > 0 {
            self.shared.data.notify();
        }
    }

    /// Begins an epoch if `complete` belongs to another run than the frame before, or if its sender was restarted.
    fn begin_epoch(&mut self, complete: &Complete, is_restart: bool) {
        if self.run.0 != complete.epoch || self.run.1 == 0 || is_restart {
            self.run = (complete.epoch.clone(), self.run.1 + 1);
        }
        if is_restart {
            let (name, number) = (&self.options.name, complete.header.number);
            self.limits[2].run(|suppressed| {
                tracing::warn!(
                    "{name}: frame {number} is far from the frames before it; the sender was restarted, so a new epoch begins{suppressed}"
                );
            });
        }
    }

    /// Drops frames that are incomplete for too long or count as missing. While no messages are received, no time is too long.
    pub(super) async fn check_timeouts(&mut self, is_receiving: bool) {
        for wrong in self.order.take_rejected() {
            self.held = self.held.saturating_sub(wrong.bytes());
            let number = wrong.header.number;
            let why = format!("its frame has the number {number}, which no second frame confirms");
            let sequence = wrong.sequences.first().copied().unwrap_or(0);
            self.reject(sequence, None, &why).await;
            self.answer_all(wrong.replies, AckKind::Term).await;
        }
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
            .extract_if(|(key, number), partial| {
                let is_over = now.duration_since(partial.since) >= GAP_TIMEOUT;
                let is_numbered = !partial.header.run.is_empty();
                is_over || (is_numbered && order.state(key, *number) != Inserted::New)
            })
            .collect();
        for ((key, _), partial) in dropped {
            self.held = self.held.saturating_sub(partial.bytes());
            self.drop_partial(&key, partial).await;
        }
    }

    /// Drops an incomplete frame. It counts as lost, unless it already counts as missing.
    async fn drop_partial(&mut self, key: &str, partial: Partial) {
        self.counters.incomplete.add(1);
        let number = partial.header.number;
        let is_numbered = !partial.header.run.is_empty();
        let is_new = !is_numbered || self.order.state(key, number) == Inserted::New;
        if is_new && !(is_numbered && self.order.lose(key, number)) {
            self.lose(|losses| losses.missing += 1);
        }
        self.answer_all(partial.replies, AckKind::Term).await;
    }

    /// Returns the maximum memory of frames and messages that wait for others, in bytes.
    pub(super) const fn max_held(&self) -> usize {
        self.options.window * (self.options.slot_bytes + FRAME_BYTES)
    }

    /// Limits the memory of frames that are not complete or wait for earlier ones: if a sender's window is larger than that of
    /// this source, the oldest incomplete frame is dropped, or the frames before the oldest waiting one count as missing.
    pub(super) async fn limit_memory(&mut self) {
        let max = self.max_held();
        while self.held > max && self.outstanding.len() < self.options.window {
            let held = self.held;
            let oldest = self.partial.iter().min_by_key(|(_, partial)| partial.since);
            if let Some(id) = oldest.map(|(id, _)| id.clone()) {
                if let Some(partial) = self.partial.remove(&id) {
                    self.held = self.held.saturating_sub(partial.bytes());
                    self.drop_partial(&id.0, partial).await;
                }
            } else if !self.order.force() {
                return;
            }
            let name = &self.options.name;
            self.limits[4].run(|suppressed| {
                tracing::warn!(
                    "{name}: frames that wait for earlier ones need {held} bytes, so the earlier ones count as lost; set `window` \
                     to at least that of the sender{suppressed}"
                );
            });
            self.deliver();
            if self.held == held {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::frame::FrameMeta;

    fn arrival(sequence: u64, payload: &'static [u8]) -> Arrival {
        Arrival {
            sequence,
            reply: None,
            payload: Bytes::from_static(payload),
            is_first: true,
            has_own_id: false,
        }
    }

    #[test]
    fn frames_of_many_announced_messages_need_no_memory_for_them() {
        let header = FrameHeader {
            meta: FrameMeta::whole(0, 1 << 16),
            ..FrameHeader::default()
        };
        let chunk = Chunk {
            index: 65535,
            count: 65536,
            offset: 65535,
        };
        let mut partial = Partial::new(header, chunk.count);
        partial.add(chunk, arrival(1, b"x"));
        assert_eq!((partial.bytes(), partial.is_complete()), (1025, false));
    }

    #[test]
    fn messages_join_in_any_order_without_gaps() {
        for (offset, is_joined) in [(2, true), (3, false)] {
            let header = FrameHeader {
                meta: FrameMeta::whole(0, 4),
                ..FrameHeader::default()
            };
            let mut partial = Partial::new(header, 2);
            for (index, offset, payload) in [(1, offset, b"cd"), (0, 0, b"ab")] {
                let chunk = Chunk {
                    index,
                    count: 2,
                    offset,
                };
                partial.add(chunk, arrival(1, payload));
            }
            assert!(partial.is_complete());
            assert_eq!(partial.is_joined(), is_joined);
            assert_eq!(partial.join(String::new()).payload.concat(), b"abcd");
        }
    }
}
