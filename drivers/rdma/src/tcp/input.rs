//! The receiving side of a queue pair over TCP: reads batches, and the payloads of their messages directly to their
//! places in registered memory.
//!
//! ```text
//!   socket ──recvmsg──▶ rest of payload 3 │ payload 4 │ … │ the start of the next batch
//!                       registered memory                   read-ahead buffer
//! ```
//! Only the bytes of a payload that were read ahead together with its batch's head are copied, at most
//! [`READ_AHEAD`] bytes per batch. After a large batch, only as many bytes are read ahead as that batch's head and messages
//! had, so that usually no byte of a large payload is copied.

use super::registration::Registration;
use super::sys::{self, CALL_BYTES, Vectors};
use super::wire::{HEAD, Head, InvalidBatch, MAX_BLOCK, MAX_MESSAGES, Message};
use crate::verbs::Status;
use daq_core::region::{RegionError, SharedWords};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Size of the read-ahead buffer in bytes.
const READ_AHEAD: usize = 2 * MAX_BLOCK;
/// Number of payload bytes from which a batch is large.
const LARGE: usize = 64 << 10;
/// Size of a word in bytes. Payloads of at most this size are stored as a whole.
const WORD: usize = 8;

/// The place of a payload.
struct Target {
    /// The memory, and the offset in it; `None` for an empty payload, whose address and key need not be valid.
    place: Option<(Arc<Registration>, usize)>,
    bytes: usize,
    /// True if the payload is a word, which is received to the buffer of words first, because a reader of the memory
    /// must never see a part of it.
    is_word: bool,
    immediate: Option<u32>,
    is_urgent: bool,
}

/// The result of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Something was read, and more bytes may be available.
    Progress,
    /// Everything that was available was read.
    Drained,
    /// No bytes are available.
    Blocked,
    /// The other side has closed the stream, or the stream is broken.
    Ended,
    /// The other side violated the protocol.
    Invalid,
    /// A message was rejected with this status. All earlier messages have completed.
    Refused(Status),
}

/// A message that has arrived completely.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub(super) bytes: usize,
    pub(super) immediate: Option<u32>,
    /// True if the message must be acknowledged at once.
    pub(super) is_urgent: bool,
}

/// Checks the messages of a batch.
pub(super) trait Resolve {
    /// Returns the memory that a message writes, and the offset in it; `None` if the peer must not write there.
    fn resolve(&mut self, message: &Message) -> Option<(Arc<Registration>, usize)>;

    /// Returns true if the next message with immediate data has a posted receive. Each call counts one message.
    fn claim_receive(&mut self) -> bool;
}

pub(super) struct Input {
    ahead: Box<[u8; READ_AHEAD]>,
    /// The range of `ahead` that contains bytes.
    from: usize,
    to: usize,
    /// Number of bytes to read ahead.
    expected: usize,
    /// The messages of the current batch; `at` is the index of the first one that has not arrived, and `offset` the
    /// number of its bytes that have arrived.
    targets: Vec<Target>,
    at: usize,
    offset: usize,
    /// Payloads of the size of a word, one place for each message of a batch.
    words: SharedWords,
    /// The rejection of the message after `targets`.
    refusal: Option<Status>,
    vectors: Vectors,
    /// The messages that arrived in the last step, and the acknowledgement that the other side has sent last.
    pub(super) arrived: Vec<Arrived>,
    pub(super) acknowledged: u64,
    /// The status with which the other side rejected the message after the acknowledged ones.
    pub(super) refused: Option<Status>,
}

impl Input {
    pub(super) fn new() -> Result<Self, RegionError> {
        Ok(Self {
            ahead: Box::new([0; READ_AHEAD]),
            from: 0,
            to: 0,
            expected: READ_AHEAD,
            targets: Vec::with_capacity(MAX_MESSAGES),
            at: 0,
            offset: 0,
            words: SharedWords::new(MAX_MESSAGES * WORD)?,
            refusal: None,
            vectors: Vectors::new(MAX_MESSAGES + 1),
            arrived: Vec::with_capacity(MAX_MESSAGES),
            acknowledged: 0,
            refused: None,
        })
    }

    /// Reads once from the socket, and handles everything that has arrived. The caller must process and clear `arrived`
    /// after each step.
    pub(super) fn step(&mut self, socket: BorrowedFd<'_>, resolve: &mut dyn Resolve) -> Step {
        let result = if self.at < self.targets.len() {
            self.read_payloads(socket)
        } else {
            self.read_ahead(socket)
        };
        let step = match result {
            Ok((0, _)) => return Step::Ended,
            Ok((read, offered)) if read < offered => Step::Drained,
            Ok(_) => Step::Progress,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return Step::Blocked,
                io::ErrorKind::Interrupted => return Step::Progress,
                // The memory of a payload was deregistered.
                _ if error.raw_os_error() == Some(libc::EFAULT) => {
                    return Step::Refused(Status::RemoteAccess);
                }
                _ => return Step::Ended,
            },
        };
        self.process(resolve).unwrap_or(step)
    }

    /// Handles the bytes of the read-ahead buffer. Returns the result if the connection must end.
    fn process(&mut self, resolve: &mut dyn Resolve) -> Option<Step> {
        loop {
            if self.store_ahead().is_err() {
                return Some(Step::Refused(Status::RemoteAccess));
            }
            if self.at < self.targets.len() {
                return None;
            }
            if let Some(status) = self.refusal {
                return Some(Step::Refused(status));
            }
            if self.arrived.len() + MAX_MESSAGES > self.arrived.capacity()
                && !self.arrived.is_empty()
            {
                // The next batch may not fit into the list, which is emptied before the next step.
                return None;
            }
            match self.parse(resolve) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(InvalidBatch) => return Some(Step::Invalid),
            }
        }
    }

    /// Returns true if the read-ahead buffer contains a whole block, so that a step is useful without new bytes.
    pub(super) fn has_block(&self) -> bool {
        let ahead = &self.ahead[self.from..self.to];
        self.at >= self.targets.len()
            && ahead.len() >= HEAD
            && Head::block_bytes(ahead).is_ok_and(|bytes| bytes <= ahead.len())
    }

    /// Continues with the bytes of the read-ahead buffer, see [`has_block`](Self::has_block).
    pub(super) fn resume(&mut self, resolve: &mut dyn Resolve) -> Step {
        self.process(resolve).unwrap_or(Step::Progress)
    }

    /// Parses the block of the next batch. Returns false if it has not arrived completely.
    fn parse(&mut self, resolve: &mut dyn Resolve) -> Result<bool, InvalidBatch> {
        let ahead = &self.ahead[self.from..self.to];
        if ahead.len() < HEAD {
            return Ok(false);
        }
        let bytes = Head::block_bytes(ahead)?;
        let Some(block) = ahead.get(..bytes) else {
            return Ok(false);
        };
        let head = Head::decode(block)?;
        (self.acknowledged, self.refused) = (head.done, head.refusal);
        self.targets.clear();
        (self.at, self.offset) = (0, 0);
        let mut total = 0_usize;
        for i in 0..head.count {
            let message = Message::decode(block, i)?;
            let bytes = usize::try_from(message.bytes).map_err(|_| InvalidBatch)?;
            total = total.saturating_add(bytes);
            let place = resolve.resolve(&message);
            if place.is_none() && bytes > 0 {
                self.refusal = Some(Status::RemoteAccess);
                break;
            }
            if message.immediate.is_some() && !resolve.claim_receive() {
                self.refusal = Some(Status::NotReady);
                break;
            }
            self.targets.push(Target {
                place: place.filter(|_| bytes > 0),
                bytes,
                is_word: bytes <= WORD,
                immediate: message.immediate,
                is_urgent: message.is_urgent,
            });
        }
        self.expected = if total < LARGE { READ_AHEAD } else { bytes };
        self.from += bytes;
        Ok(true)
    }

    /// Reads to the read-ahead buffer. Returns the number of bytes that were read, and that had room.
    fn read_ahead(&mut self, socket: BorrowedFd<'_>) -> io::Result<(usize, usize)> {
        self.ahead.copy_within(self.from..self.to, 0);
        self.to -= self.from;
        self.from = 0;
        let known = &self.ahead[..self.to];
        let block = if known.len() < HEAD {
            HEAD
        } else {
            Head::block_bytes(known).unwrap_or(READ_AHEAD)
        };
        let end = self.expected.max(block);
        let none = std::iter::empty();
        let read = self
            .vectors
            .receive(socket, none, &mut self.ahead[self.to..end])?;
        let offered = end - self.to;
        self.to += read;
        Ok((read, offered))
    }

    /// Reads to the places of the current batch, and further bytes to the read-ahead buffer, which must be empty. Returns the
    /// number of bytes that were read, and that had room.
    fn read_payloads(&mut self, socket: BorrowedFd<'_>) -> io::Result<(usize, usize)> {
        debug_assert_eq!(self.from, self.to, "bytes that were read ahead come first");
        (self.from, self.to) = (0, 0);
        let Self {
            targets,
            at,
            offset,
            words,
            vectors,
            ahead,
            expected,
            ..
        } = self;
        let fault = || io::Error::from_raw_os_error(libc::EFAULT);
        let (mut end, mut offered) = (*at + 1, targets[*at].bytes - *offset);
        while end < targets.len() && offered < CALL_BYTES {
            offered += targets[end].bytes;
            end += 1;
        }
        // Bytes after the batch can only be received if its last payload is offered too.
        let rest = if end < targets.len() { 0 } else { *expected };
        offered += rest;
        let using = Uses::begin(&targets[*at..end]).ok_or_else(fault)?;
        let parts = targets[..end]
            .iter()
            .enumerate()
            .skip(*at)
            .filter_map(|(i, target)| {
                let (registration, to) = target.place.as_ref()?;
                let skip = if i == *at { *offset } else { 0 };
                Some(if target.is_word {
                    (&**words.region(), i * WORD + skip, target.bytes - skip)
                } else {
                    (registration.region(), to + skip, target.bytes - skip)
                })
            });
        let read = vectors.receive(socket, parts, &mut ahead[..rest]);
        drop(using);
        let read = read?;
        let mut left = read;
        while self.at < self.targets.len() {
            let missing = self.targets[self.at].bytes - self.offset;
            if left < missing {
                self.offset += left;
                left = 0;
                break;
            }
            left -= missing;
            self.finish()?;
        }
        self.to = left;
        Ok((read, offered))
    }

    /// Moves bytes of the read-ahead buffer to their places.
    fn store_ahead(&mut self) -> io::Result<()> {
        while self.at < self.targets.len() {
            let target = &self.targets[self.at];
            let here = (target.bytes - self.offset).min(self.to - self.from);
            if here > 0 {
                let bytes = &self.ahead[self.from..self.from + here];
                if target.is_word {
                    sys::store(self.words.region(), self.at * WORD + self.offset, bytes)?;
                } else {
                    target.access(|region, to| sys::store(region, to + self.offset, bytes))?;
                }
                self.from += here;
                self.offset += here;
            }
            if self.offset < target.bytes {
                return Ok(());
            }
            self.finish()?;
        }
        Ok(())
    }

    /// Completes the current message, all bytes of which have arrived.
    fn finish(&mut self) -> io::Result<()> {
        let target = &self.targets[self.at];
        if target.is_word && target.bytes > 0 {
            let word = self.words.load64(self.at * WORD).to_le_bytes();
            target.access(|region, to| sys::store(region, to, &word[..target.bytes]))?;
        }
        self.arrived.push(Arrived {
            bytes: target.bytes,
            immediate: target.immediate,
            is_urgent: target.is_urgent,
        });
        self.at += 1;
        self.offset = 0;
        Ok(())
    }
}

/// Accesses in progress to the memory of all targets.
struct Uses<'a>(&'a [Target]);

impl<'a> Uses<'a> {
    /// Starts the accesses; `None` if a registration has ended.
    fn begin(targets: &'a [Target]) -> Option<Self> {
        for (i, target) in targets.iter().enumerate() {
            if let Some((registration, _)) = &target.place
                && !registration.begin()
            {
                drop(Self(&targets[..i]));
                return None;
            }
        }
        Some(Self(targets))
    }
}

impl Drop for Uses<'_> {
    fn drop(&mut self) {
        for (registration, _) in self.0.iter().filter_map(|target| target.place.as_ref()) {
            registration.finish();
        }
    }
}

impl Target {
    /// Accesses the memory of the payload. Fails with `EFAULT` if its registration has ended.
    fn access(
        &self,
        access: impl FnOnce(&daq_core::region::Region, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        let fault = || io::Error::from_raw_os_error(libc::EFAULT);
        let _using = Uses::begin(std::slice::from_ref(self)).ok_or_else(fault)?;
        let (registration, to) = self.place.as_ref().ok_or_else(fault)?;
        access(registration.region(), *to)
    }
}
