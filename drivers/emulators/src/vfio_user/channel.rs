//! The connection of an emulated device to its client, with requests in both directions.
//!
//! The client sends register accesses. The device sends accesses to memory that the client mapped without a file
//! descriptor. Requests of the client that arrive while the device waits for a reply are stored and handled afterwards
//! in order.

use crate::sys::memory::Remote;
use daq_drivers::fpga::transports::vfio_user::socket::{ConnectionError, Received, Receiver, send};
use daq_drivers::fpga::transports::vfio_user::wire::{Command, Fields, Header, MAX_DATA};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum time for a client to reply to an access to its memory.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of messages that are stored while the device waits for a reply.
const MAX_PENDING: usize = 256;

/// A complete message.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) header: Header,
    pub(super) payload: Vec<u8>,
    pub(super) files: Vec<OwnedFd>,
}

/// A connection to a client.
#[derive(Debug)]
pub(super) struct Channel {
    stream: UnixStream,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    receiver: Receiver,
    pending: VecDeque<Message>,
    id: u16,
    /// Maximum number of bytes of one access to the client's memory.
    max_data: usize,
    broken: Option<ConnectionError>,
}

impl Channel {
    pub(super) fn new(stream: &UnixStream) -> Result<Self, ConnectionError> {
        let stream = stream.try_clone().map_err(|error| {
            ConnectionError::System(Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
        })?;
        Ok(Self {
            stream,
            state: Mutex::new(State {
                receiver: Receiver::default(),
                pending: VecDeque::new(),
                id: 0,
                max_data: MAX_DATA,
                broken: None,
            }),
        })
    }

    /// Sets the maximum number of bytes per access to the client's memory, as requested by the client.
    pub(super) fn set_max_data(&self, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap_or(MAX_DATA);
        self.lock().max_data = bytes.clamp(1, MAX_DATA);
    }

    /// Returns true if a stored message is pending.
    pub(super) fn has_pending(&self) -> bool {
        let state = self.lock();
        !state.pending.is_empty() || state.broken.is_some()
    }

    /// Returns the next message, if one is available.
    pub(super) fn next(&self) -> Result<Option<Message>, ConnectionError> {
        let mut state = self.lock();
        if let Some(message) = state.pending.pop_front() {
            return Ok(Some(message));
        }
        if let Some(broken) = state.broken {
            return Err(broken);
        }
        state.receive(&self.stream)
    }

    /// Sends a request to the client and decodes the reply with `read`. Returns false if the client rejects the
    /// request, does not reply, or sends an invalid reply.
    fn ask(
        &self,
        command: Command,
        payload: &[&[u8]],
        read: impl FnOnce(&mut Fields<'_>) -> Option<()>,
    ) -> bool {
        let mut state = self.lock();
        if state.broken.is_some() {
            return false;
        }
        match state.answer(&self.stream, command, payload) {
            Ok(answer) if answer.header.refused().is_none() => {
                read(&mut Fields(&answer.payload)).is_some()
            }
            Ok(_) => false,
            Err(broken) => {
                state.broken = Some(broken);
                false
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn receive(&mut self, stream: &UnixStream) -> Result<Option<Message>, ConnectionError> {
        Ok(match self.receiver.receive(stream, RecvFlags::DONTWAIT)? {
            Received::Nothing => None,
            Received::Message => Some(Message {
                header: self.receiver.header(),
                payload: self.receiver.payload().to_vec(),
                files: self.receiver.take_files(),
            }),
        })
    }

    /// Sends a request and waits for its reply.
    fn answer(
        &mut self,
        stream: &UnixStream,
        command: Command,
        payload: &[&[u8]],
    ) -> Result<Message, ConnectionError> {
        self.id = self.id.wrapping_add(1);
        let bytes = payload.iter().map(|part| part.len()).sum();
        let header = Header::request(self.id, command, bytes);
        send(stream, header, payload, &[])?;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let Some(message) = self.receive(stream)? else {
                wait(stream, deadline)?;
                continue;
            };
            if message.header.is_reply() && message.header.id == header.id {
                return Ok(message);
            }
            if self.pending.len() >= MAX_PENDING {
                return Err(ConnectionError::Silent);
            }
            self.pending.push_back(message);
        }
    }
}

/// Waits until the stream is readable, but at most until `deadline`.
fn wait(stream: &UnixStream, deadline: Instant) -> Result<(), ConnectionError> {
    let left = deadline.saturating_duration_since(Instant::now());
    let left = Timespec::try_from(left).ok();
    match poll(&mut [PollFd::new(stream, PollFlags::IN)], left.as_ref()) {
        Ok(0) => Err(ConnectionError::Silent),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns the header of an access request: the address and the number of bytes.
fn head(address: u64, bytes: usize) -> [u8; 16] {
    let mut head = [0; 16];
    head[..8].copy_from_slice(&address.to_le_bytes());
    head[8..].copy_from_slice(&(bytes as u64).to_le_bytes());
    head
}

impl Remote for Channel {
    fn write(&self, mut address: u64, bytes: &[u8]) -> bool {
        let max = self.lock().max_data;
        bytes.chunks(max).all(|part| {
            let head = head(address, part.len());
            address = address.wrapping_add(part.len() as u64);
            self.ask(Command::DmaWrite, &[&head, part], |_| Some(()))
        })
    }

    fn read(&self, mut address: u64, bytes: &mut [u8]) -> bool {
        let max = self.lock().max_data;
        bytes.chunks_mut(max).all(|part| {
            let head = head(address, part.len());
            address = address.wrapping_add(part.len() as u64);
            self.ask(Command::DmaRead, &[&head], |fields| {
                fields.skip(head.len())?;
                part.copy_from_slice(fields.0.get(..part.len())?);
                Some(())
            })
        })
    }
}
