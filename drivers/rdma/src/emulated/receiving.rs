//! The receiving thread of a queue pair: executes the peer's requests and handles the peer's acknowledgements and
//! rejections.

use super::memory::{MemorySlice, Registration};
use super::message::Header;
use super::pair::{Pair, Receive, State};
use crate::verbs::Status;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Size of the read-ahead buffer in bytes. Payloads up to this size are copied through the buffer; larger payloads are
/// received directly into their destination.
const READ_AHEAD: usize = 8192;

pub(super) fn run(pair: &Arc<Pair>, socket: &TcpStream) {
    let mut input = Input {
        socket,
        ahead: Box::new([0; READ_AHEAD]),
        from: 0,
        to: 0,
    };
    // An error ends the stream too, so the result is not needed.
    let _ = process_input(pair, &mut input);
    pair.end_stream(&mut pair.lock());
}

/// Processes messages until the stream ends.
fn process_input(pair: &Pair, input: &mut Input<'_>) -> io::Result<()> {
    loop {
        let header = Header::decode(input.take()?).ok_or(ErrorKind::InvalidData)?;
        match header {
            Header::Control { .. } | Header::Refusal { .. } if !pair.is_reliable() => {
                return Err(ErrorKind::InvalidData.into());
            }
            Header::Control { done, receives } => answered(pair, done, receives)?,
            Header::Refusal { number, status } => {
                let mut state = pair.lock();
                acknowledge(pair, &mut state, number)?;
                pair.fail(&mut state, Some(number), status);
                return Ok(());
            }
            Header::Write { .. } | Header::Send { .. } => {
                match message(pair, input, header)? {
                    Ok(()) => {
                        let mut state = pair.lock();
                        state.done += 1;
                        pair.changed.notify_all();
                    }
                    Err(status) if pair.is_reliable() => {
                        let mut state = pair.lock();
                        let number = state.done;
                        state.refusal = Some(Header::Refusal { number, status });
                        pair.fail(&mut state, None, Status::Flushed);
                        drop(state);
                        // Linux resets a stream that is closed with unread bytes, and the refusal would be lost. So
                        // read everything first.
                        return input.drain();
                    }
                    // An unreliable message is lost without a report to the sender.
                    Err(_) => {}
                }
                if pair.nic.faults.received() {
                    return Ok(());
                }
            }
        }
    }
}

fn answered(pair: &Pair, done: u64, receives: u64) -> io::Result<()> {
    let mut state = pair.lock();
    acknowledge(pair, &mut state, done)?;
    state.peer_receives = state.peer_receives.max(receives);
    pair.changed.notify_all();
    Ok(())
}

/// Completes all requests with a number below `done`.
fn acknowledge(pair: &Pair, state: &mut State, done: u64) -> io::Result<()> {
    let heard = state.ignore_acks_from.map_or(done, |deaf| done.min(deaf));
    while let Some(posted) = state.unanswered.front().copied()
        && posted.number < heard
    {
        state.unanswered.pop_front();
        pair.succeed(state, posted);
    }
    if done > state.posted {
        return Err(ErrorKind::InvalidData.into());
    }
    Ok(())
}

/// Executes one message. The inner error is the status that is reported to the sender of the message.
fn message(pair: &Pair, input: &mut Input<'_>, header: Header) -> io::Result<Result<(), Status>> {
    let (slices, bytes, receive, immediate) = match header {
        Header::Write {
            address,
            rkey,
            bytes,
            immediate,
        } => {
            let found = pair.nic.remote(rkey, address, bytes);
            // A write of zero bytes accesses no memory, so its key need not be valid.
            let slices = match found {
                Some(slice) => vec![slice],
                None if bytes == 0 => Vec::new(),
                None => return refuse(pair, input, bytes, Status::RemoteAccess),
            };
            (slices, bytes, immediate.is_some(), immediate)
        }
        Header::Send { bytes, immediate } => (Vec::new(), bytes, true, immediate),
        Header::Control { .. } | Header::Refusal { .. } => return Ok(Ok(())),
    };
    let receive = if receive {
        let taken = pair.lock().receives.pop_front();
        match taken {
            Some(receive) => Some(receive),
            None => return refuse(pair, input, bytes, Status::NotReady),
        }
    } else {
        None
    };
    let is_send = matches!(header, Header::Send { .. });
    let into = match &receive {
        Some(receive) if is_send => &receive.slices,
        _ => &slices,
    };
    if bytes > into.iter().map(|slice| slice.bytes as u64).sum() {
        return too_long(pair, input, bytes, receive);
    }
    if let Err(failed) = deposit(input, into, bytes) {
        // The message did not arrive completely, so its receive remains posted.
        if let Some(receive) = receive {
            pair.return_receive(receive);
        }
        return match failed {
            Failed::Network(error) => Err(error),
            Failed::Memory(left) if is_send => refuse(pair, input, left, Status::RemoteOperation),
            Failed::Memory(left) => refuse(pair, input, left, Status::RemoteAccess),
        };
    }
    if let Some(receive) = receive {
        let mut state = pair.lock();
        if state.has_failed {
            drop(state);
            pair.return_receive(receive);
            return Err(ErrorKind::ConnectionAborted.into());
        }
        pair.complete_receive(&mut state, receive.id, bytes, immediate);
    }
    Ok(Ok(()))
}

/// Rejects a message. An unreliable queue pair skips the payload. A reliable queue pair fails and drains its stream, so
/// the payload need not be skipped.
fn refuse(
    pair: &Pair,
    input: &mut Input<'_>,
    bytes: u64,
    status: Status,
) -> io::Result<Result<(), Status>> {
    if !pair.is_reliable() {
        input.skip(bytes)?;
    }
    Ok(Err(status))
}

/// Rejects a message that is larger than its posted receive.
fn too_long(
    pair: &Pair,
    input: &mut Input<'_>,
    bytes: u64,
    receive: Option<Receive>,
) -> io::Result<Result<(), Status>> {
    if let Some(receive) = receive {
        let mut state = pair.lock();
        if pair.is_reliable() {
            pair.fail_receive(&mut state, receive.id);
        } else {
            state.receives.push_front(receive);
        }
    }
    refuse(pair, input, bytes, Status::RemoteOperation)
}

enum Failed {
    Network(io::Error),
    /// The registration has ended; the value is the number of bytes not yet read.
    Memory(u64),
}

/// Reads `bytes` bytes into `slices`.
fn deposit(input: &mut Input<'_>, slices: &[MemorySlice], bytes: u64) -> Result<(), Failed> {
    let mut left = bytes;
    for slice in slices {
        let here = usize::try_from(left).map_or(slice.bytes, |left| left.min(slice.bytes));
        let mut offset = slice.offset;
        let end = offset + here;
        while offset < end {
            let rest = end - offset;
            let done =
                input
                    .some(&slice.registration, offset, rest)
                    .map_err(|failed| match failed {
                        Failed::Memory(_) => Failed::Memory(left),
                        network @ Failed::Network(_) => network,
                    })?;
            offset += done;
            left -= done as u64;
        }
    }
    Ok(())
}

/// A stream with a read-ahead buffer.
struct Input<'a> {
    socket: &'a TcpStream,
    ahead: Box<[u8; READ_AHEAD]>,
    from: usize,
    to: usize,
}

impl Input<'_> {
    /// Reads until the buffer holds at least `bytes` bytes.
    fn fill(&mut self, bytes: usize) -> io::Result<()> {
        if self.to - self.from >= bytes {
            return Ok(());
        }
        self.ahead.copy_within(self.from..self.to, 0);
        self.to -= self.from;
        self.from = 0;
        while self.to < bytes {
            let result = rustix::io::read(self.socket, &mut self.ahead[self.to..]);
            match result.map_err(io::Error::from) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(more) => self.to += more,
                Err(error) => self.wait(error)?,
            }
        }
        Ok(())
    }

    /// Waits until the stream is readable if `error` is `WouldBlock`; returns other errors.
    fn wait(&self, error: io::Error) -> io::Result<()> {
        match error.kind() {
            ErrorKind::WouldBlock => {
                let _ = poll(&mut [PollFd::new(self.socket, PollFlags::IN)], None);
                Ok(())
            }
            ErrorKind::Interrupted => Ok(()),
            _ => Err(error),
        }
    }

    fn take(&mut self) -> io::Result<&[u8; Header::BYTES]> {
        self.fill(Header::BYTES)?;
        let taken = self.ahead[self.from..].first_chunk();
        self.from += Header::BYTES;
        taken.ok_or_else(|| ErrorKind::UnexpectedEof.into())
    }

    /// Moves 1 to `bytes` bytes to `offset` of the memory. Ranges up to the buffer size are moved in one step, so that
    /// words are stored atomically.
    fn some(
        &mut self,
        registration: &Registration,
        offset: usize,
        bytes: usize,
    ) -> Result<usize, Failed> {
        if bytes <= READ_AHEAD {
            self.fill(bytes).map_err(Failed::Network)?;
        }
        let ahead = (self.to - self.from).min(bytes);
        if ahead > 0 {
            let bytes = &self.ahead[self.from..self.from + ahead];
            registration
                .store(offset, bytes)
                .map_err(|_| Failed::Memory(0))?;
            self.from += ahead;
            return Ok(ahead);
        }
        loop {
            match registration.receive(self.socket.as_fd(), offset, bytes) {
                Ok(0) => return Err(Failed::Network(ErrorKind::UnexpectedEof.into())),
                Ok(done) => return Ok(done),
                Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                    return Err(Failed::Memory(0));
                }
                Err(error) => self.wait(error).map_err(Failed::Network)?,
            }
        }
    }

    fn skip(&mut self, mut bytes: u64) -> io::Result<()> {
        while bytes > 0 {
            self.fill(1)?;
            let here = usize::try_from(bytes).unwrap_or(READ_AHEAD);
            let here = here.min(self.to - self.from);
            self.from += here;
            bytes -= here as u64;
        }
        Ok(())
    }

    /// Reads and discards everything up to the end of the stream.
    fn drain(&mut self) -> io::Result<()> {
        self.skip(u64::MAX)
    }
}
