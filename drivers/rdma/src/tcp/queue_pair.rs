//! A queue pair over one TCP connection.
//!
//! The queue pair has no thread and no lock: everything happens on the thread that calls it. [`post_send`] only stores the
//! request; [`poll`] sends all stored requests in one call, reads what has arrived, and acknowledges it.
//!
//! An acknowledgement of its own costs both sides a system call and the handling of a packet. So arrived messages are
//! acknowledged together: with the next requests in the other direction, after [`MAX_DELAY`], before the thread sleeps
//! ([`flush`], [`wait`]), or at once if the peer has marked a message as urgent.
//!
//! [`post_send`]: QueuePair::post_send
//! [`poll`]: QueuePair::poll
//! [`flush`]: QueuePair::flush
//! [`wait`]: QueuePair::wait

use super::input::{Input, Resolve, Step};
use super::join::{JoinKey, Mailbox};
use super::output::{NewPayload, Output, Posted};
use super::registration::Registration;
use super::wire::{MAX_PAYLOAD, Message};
use super::{LIMITS, Registrations, socket};
use crate::random::random_word;
use crate::verbs::{
    Endpoint, Payload, QueuePair, QueuePairOptions, Service, Sge, Side, Status, Verb, VerbsError,
    Wakeup, WorkCompletion, WorkRequest,
};
use crate::wait::wait_any;
use rustix::event::{PollFd, PollFlags};
use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum time between the handshake and the arrival of the stream.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time from the end of the stream until the queue pair fails. In this time the peer's close message can arrive on the
/// connection of the handshake, which distinguishes an intended end from a failure.
const END_GRACE: Duration = Duration::from_millis(100);
/// Maximum time from the rejection of a message until the queue pair fails. In this time the peer reads the rejection, and
/// what was sent before it.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of steps of one call of `poll`, each of which reads as much as the socket has.
const MAX_STEPS: usize = 16;
/// Maximum time until a message that has arrived is acknowledged, if its queue pair is polled.
const MAX_DELAY: Duration = Duration::from_micros(100);
/// Number of completions after which a call of `poll` reads nothing more.
const BATCH: usize = 32;

/// The TCP stream of a queue pair.
enum Stream {
    /// The queue pair is not connected.
    None,
    /// The peer opens the stream, at the latest at this time.
    Expected(Instant),
    Open(TcpStream),
    /// The stream has ended at this time.
    Ended(Instant),
    /// The queue pair has failed or was stopped.
    Failed,
}

pub(crate) struct TcpQueuePair {
    nic: String,
    endpoint: Endpoint,
    options: QueuePairOptions,
    stream: Stream,
    mailbox: Arc<Mailbox>,
    registrations: Arc<Registrations>,
    /// Registrations that the peer has used.
    known: Vec<Arc<Registration>>,
    input: Input,
    output: Output,
    /// Ids of the posted receives; the first `claimed` of them belong to messages that are arriving.
    receives: VecDeque<u64>,
    claimed: usize,
    /// Number of received completions that were not collected.
    received: usize,
    /// Completions, with the numbers of their requests.
    completions: VecDeque<(WorkCompletion, u64)>,
    /// Number of the peer's messages that have completed.
    pub(super) done: u64,
    /// Time at which the oldest message was detected that is not acknowledged.
    unacknowledged: Option<Instant>,
    /// True if an arrived message must be acknowledged at once.
    is_urgent: bool,
    /// The rejection of the next message of the peer, and its time. After the peer has read the rejection, the queue pair fails.
    pub(super) refusal: Option<(Status, Instant)>,
}

/// The parts of a queue pair that decide whether a message is accepted.
struct Check<'a> {
    registrations: &'a Registrations,
    known: &'a mut Vec<Arc<Registration>>,
    receives: usize,
    claimed: &'a mut usize,
}

impl Resolve for Check<'_> {
    fn resolve(&mut self, message: &Message) -> Option<(Arc<Registration>, usize)> {
        let is_same = |known: &&Arc<Registration>| known.rkey == message.rkey;
        let registration = if let Some(known) = self.known.iter().find(is_same) {
            known.clone()
        } else {
            let found = self.registrations.find(message.rkey)?;
            self.known.push(found.clone());
            found
        };
        let offset = registration.offset(message.address, message.bytes)?;
        registration
            .access
            .remote_write
            .then_some((registration, offset))
    }

    fn claim_receive(&mut self) -> bool {
        let has_receive = *self.claimed < self.receives;
        *self.claimed += usize::from(has_receive);
        has_receive
    }
}

impl TcpQueuePair {
    pub(super) fn new(
        nic: &str,
        options: &QueuePairOptions,
        registrations: Arc<Registrations>,
    ) -> Result<Self, VerbsError> {
        let refused = |errno, why: String| VerbsError {
            nic: nic.to_owned(),
            call: "create a queue pair".to_owned(),
            errno,
            why,
        };
        if options.service != Service::Rc {
            let why = "TCP supports only reliable connections".to_owned();
            return Err(refused(libc::EOPNOTSUPP, why));
        }
        if options.sends > LIMITS.max_work || options.receives > LIMITS.max_work {
            let why = format!("the maximum is {} requests per direction", LIMITS.max_work);
            return Err(refused(libc::EINVAL, why));
        }
        let (sends, receives) = (options.sends.max(1) as usize, options.receives as usize);
        let inline = options.inline.min(LIMITS.max_inline) as usize;
        Ok(Self {
            nic: nic.to_owned(),
            endpoint: Endpoint {
                number: random_word(32),
                psn: random_word(32),
                qkey: random_word(32),
                ..Endpoint::default()
            },
            options: *options,
            stream: Stream::None,
            mailbox: Arc::default(),
            registrations,
            known: Vec::with_capacity(4),
            input: Input::new().map_err(|error| refused(0, error.to_string()))?,
            output: Output::new(sends, inline),
            receives: VecDeque::with_capacity(receives),
            claimed: 0,
            received: 0,
            completions: VecDeque::with_capacity(sends + receives),
            done: 0,
            unacknowledged: None,
            is_urgent: false,
            refusal: None,
        })
    }

    fn refused(&self, call: &str, errno: i32, why: impl Into<String>) -> VerbsError {
        VerbsError {
            nic: self.nic.clone(),
            call: call.to_owned(),
            errno,
            why: why.into(),
        }
    }

    /// Connects the queue pair over a stream that this side has opened.
    pub(crate) fn join(&mut self, stream: TcpStream) -> Result<(), VerbsError> {
        self.open(stream).map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(0);
            self.refused("setting up a TCP connection", errno, "")
        })
    }

    fn open(&mut self, stream: TcpStream) -> io::Result<()> {
        socket::prepare(&stream)?;
        self.stream = Stream::Open(stream);
        Ok(())
    }

    /// Connects the queue pair over a stream that the peer opens. The result is the key of the stream, and the place
    /// where the stream must be put.
    pub(crate) fn expect(&mut self) -> (JoinKey, &Arc<Mailbox>) {
        self.stream = Stream::Expected(Instant::now() + JOIN_TIMEOUT);
        (JoinKey::of(&self.endpoint), &self.mailbox)
    }

    /// Fails permanently. The first pending request completes with `status`, or the first receive if no request is
    /// pending; all others are flushed.
    fn fail(&mut self, status: Status) {
        if matches!(self.stream, Stream::Failed) {
            return;
        }
        if let Stream::Open(stream) = &self.stream {
            // An error is expected if the peer has closed the stream.
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.stream = Stream::Failed;
        let mut status = status;
        let completions = &mut self.completions;
        self.output.abort(|number, posted| {
            let status = std::mem::replace(&mut status, Status::Flushed);
            completions.push_back((sent(posted, status), number));
        });
        self.claimed = 0;
        self.flush_receives(status);
    }

    fn flush_receives(&mut self, status: Status) {
        let mut status = status;
        while let Some(id) = self.receives.pop_front() {
            let status = std::mem::replace(&mut status, Status::Flushed);
            self.push_received(WorkCompletion {
                id,
                side: Side::Received,
                status,
                ..WorkCompletion::default()
            });
        }
    }

    fn push_received(&mut self, completion: WorkCompletion) {
        self.received += 1;
        self.completions.push_back((completion, 0));
    }

    /// Sends, receives and acknowledges what is possible without waiting.
    fn pump(&mut self) {
        match &self.stream {
            Stream::Expected(until) => {
                let is_late = Instant::now() >= *until;
                match self.mailbox.take() {
                    Some(stream) => {
                        if self.open(stream).is_err() {
                            return self.fail(Status::Unanswered);
                        }
                    }
                    None if is_late => return self.fail(Status::Unanswered),
                    None => return,
                }
            }
            Stream::Ended(at) if at.elapsed() >= END_GRACE => {
                return self.fail(Status::Unanswered);
            }
            Stream::None | Stream::Ended(_) | Stream::Failed => return,
            Stream::Open(_) => {}
        }
        if self.output.is_pending() {
            self.send_pending();
        }
        for _ in 0..MAX_STEPS {
            if self.completions.len() >= BATCH || !self.step() {
                break;
            }
        }
        if let Some((_, since)) = self.refusal {
            self.send_pending();
            if self.is_rejection_read() || since.elapsed() >= REJECTION_TIMEOUT {
                self.fail(Status::Flushed);
            }
        } else if self.must_acknowledge() {
            self.send_pending();
        }
    }

    /// Returns true if the rejection was sent and the peer has then closed the stream.
    fn is_rejection_read(&self) -> bool {
        match &self.stream {
            Stream::Open(stream) => self.output.is_refusal_sent() && socket::close(stream),
            _ => true,
        }
    }

    /// Returns true if arrived messages must be acknowledged now.
    fn must_acknowledge(&mut self) -> bool {
        if self.done == self.output.reported() {
            (self.unacknowledged, self.is_urgent) = (None, false);
            return false;
        }
        let since = *self.unacknowledged.get_or_insert_with(Instant::now);
        self.is_urgent || since.elapsed() >= MAX_DELAY
    }

    /// Sends posted requests and acknowledgements.
    fn send_pending(&mut self) {
        let Stream::Open(stream) = &self.stream else {
            return;
        };
        // After an error, the next read reports the end of the stream, or a rejection that the peer has sent before.
        let refusal = self.refusal.map(|(status, _)| status);
        let _ = self.output.flush(stream.as_fd(), self.done, refusal);
        if self.done == self.output.reported() {
            (self.unacknowledged, self.is_urgent) = (None, false);
        }
    }

    /// Handles the end of the stream. The queue pair fails later.
    fn end(&mut self) {
        self.stream = Stream::Ended(Instant::now());
    }

    /// Reads once. Returns true if another step may be useful.
    fn step(&mut self) -> bool {
        let (Stream::Open(stream), None) = (&self.stream, self.refusal) else {
            return false;
        };
        let mut check = Check {
            registrations: &self.registrations,
            known: &mut self.known,
            receives: self.receives.len(),
            claimed: &mut self.claimed,
        };
        let step = if self.input.has_block() {
            self.input.resume(&mut check)
        } else {
            self.input.step(stream.as_fd(), &mut check)
        };
        self.take_arrived();
        let (output, completions) = (&mut self.output, &mut self.completions);
        let is_possible = output.acknowledge(self.input.acknowledged, |number, posted| {
            if posted.is_signaled {
                completions.push_back((sent(posted, Status::Success), number));
            }
        });
        if let Some(status) = self.input.refused {
            self.fail(status);
            return false;
        }
        match step {
            _ if !is_possible => self.fail(Status::Other(0)),
            Step::Progress => return true,
            Step::Drained => return self.input.has_block(),
            Step::Blocked => {}
            Step::Ended => self.end(),
            Step::Invalid => self.fail(Status::Other(0)),
            Step::Refused(status) => self.refusal = Some((status, Instant::now())),
        }
        false
    }

    /// Completes the messages that have arrived.
    fn take_arrived(&mut self) {
        for i in 0..self.input.arrived.len() {
            let arrived = self.input.arrived[i];
            self.done += 1;
            self.is_urgent |= arrived.is_urgent;
            if arrived.immediate.is_none() {
                continue;
            }
            // A receive was claimed when the head of the message arrived.
            if let Some(id) = self.receives.pop_front() {
                self.claimed = self.claimed.saturating_sub(1);
                self.push_received(WorkCompletion {
                    id,
                    side: Side::Received,
                    status: Status::Success,
                    bytes: u32::try_from(arrived.bytes).unwrap_or(u32::MAX),
                    immediate: arrived.immediate,
                });
            }
        }
        self.input.arrived.clear();
    }
}

const fn sent(posted: &Posted, status: Status) -> WorkCompletion {
    WorkCompletion {
        id: posted.id,
        side: Side::Sent,
        status,
        bytes: 0,
        immediate: None,
    }
}

impl QueuePair for TcpQueuePair {
    fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// Fails: a queue pair over TCP gets a stream from the handshake, which knows the peer's address.
    fn connect(&mut self, _: &Endpoint) -> Result<(), VerbsError> {
        let why = "a queue pair over TCP must be connected by the exchange over TCP";
        Err(self.refused("connecting", libc::EOPNOTSUPP, why))
    }

    fn post_send(&mut self, work: &WorkRequest<'_>) -> Result<(), VerbsError> {
        let call = "posting work";
        let Verb::Write {
            address,
            rkey,
            immediate,
        } = work.verb
        else {
            let why = "a queue pair over TCP supports only writes";
            return Err(self.refused(call, libc::EOPNOTSUPP, why));
        };
        let payload = match work.payload {
            Payload::Inline(bytes) if bytes.len() <= self.output.inline_bytes() => {
                NewPayload::Inline(bytes)
            }
            Payload::Memory([sge]) => NewPayload::Memory(sge.memory().region(), sge.offset()),
            Payload::Memory([]) => NewPayload::Inline(&[]),
            Payload::Inline(_) | Payload::Memory(_) => {
                let why = format!(
                    "a request has at most {} inline bytes or one scatter/gather element",
                    self.output.inline_bytes()
                );
                return Err(self.refused(call, libc::EINVAL, why));
            }
        };
        let bytes = work.payload.bytes() as u64;
        if bytes > MAX_PAYLOAD {
            let why = format!("a message of {bytes} bytes exceeds the maximum of {MAX_PAYLOAD}");
            return Err(self.refused(call, libc::EINVAL, why));
        }
        if matches!(self.stream, Stream::None) {
            return Err(self.refused(call, libc::EINVAL, "the queue pair is not connected"));
        }
        if !self.output.has_room() {
            let why = "the send queue is full; collect completions of signaled requests";
            return Err(self.refused(call, libc::ENOMEM, why));
        }
        let message = Message {
            address,
            bytes,
            rkey,
            immediate,
            is_urgent: false,
        };
        self.output
            .post((work.id, work.signaled), message, &payload);
        if matches!(self.stream, Stream::Failed) {
            let completions = &mut self.completions;
            self.output.abort(|number, posted| {
                completions.push_back((sent(posted, Status::Flushed), number));
            });
        }
        Ok(())
    }

    fn post_receive(&mut self, id: u64, into: &[Sge<'_>]) -> Result<(), VerbsError> {
        let call = "posting a receive";
        if !into.is_empty() {
            let why = "a queue pair over TCP receives only writes, whose receives have no memory";
            return Err(self.refused(call, libc::EOPNOTSUPP, why));
        }
        if self.receives.len() + self.received >= self.options.receives as usize {
            let why = "the receive queue is full; collect completions";
            return Err(self.refused(call, libc::ENOMEM, why));
        }
        self.receives.push_back(id);
        if matches!(self.stream, Stream::Failed) {
            self.flush_receives(Status::Flushed);
        }
        Ok(())
    }

    fn poll(&mut self, done: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        self.pump();
        let count = done.len().min(self.completions.len());
        for (to, (completion, number)) in done.iter_mut().zip(self.completions.drain(..count)) {
            *to = completion;
            match completion.side {
                Side::Sent => self.output.reclaim(number),
                Side::Received => self.received -= 1,
            }
        }
        Ok(count)
    }

    fn stop(&mut self) -> Result<(), VerbsError> {
        // The peer need not send again what has arrived.
        self.send_pending();
        self.fail(Status::Flushed);
        Ok(())
    }

    fn is_blocked(&self) -> bool {
        self.output.is_blocked()
    }

    fn flush(&mut self) {
        if self.output.is_pending() || self.done != self.output.reported() {
            self.send_pending();
        }
    }

    fn set_acknowledgement_interval(&mut self, requests: u64) {
        self.output.set_urgent_every(requests);
    }

    fn wakeup(&mut self) -> Option<Wakeup<'_>> {
        self.flush();
        if !self.completions.is_empty() {
            return Some(Wakeup::Now);
        }
        Some(match &self.stream {
            Stream::Open(_) if self.input.has_block() => Wakeup::Now,
            Stream::Open(stream) => {
                let mut events = PollFlags::IN;
                events.set(PollFlags::OUT, self.output.is_pending());
                Wakeup::Events(PollFd::new(stream, events))
            }
            _ => Wakeup::Time,
        })
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, VerbsError> {
        wait_any(std::iter::once(self as &mut dyn QueuePair), limit)
    }
}

impl Drop for TcpQueuePair {
    fn drop(&mut self) {
        if let Stream::Open(stream) = &self.stream {
            let _ = socket::close(stream);
        }
    }
}
