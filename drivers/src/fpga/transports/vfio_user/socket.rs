//! Sends and receives messages with file descriptors over a UNIX socket.

use super::wire::{HEADER, Header, MAX_FILES, MAX_MESSAGE};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Reason why a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionError {
    /// The peer closed the connection.
    #[error("the connection was closed")]
    Closed,
    /// A header states an invalid message length.
    #[error("invalid message length {0}; must be {HEADER} to {MAX_MESSAGE} bytes")]
    Length(u32),
    /// A message has too many descriptors.
    #[error("a message has more than {MAX_FILES} descriptors")]
    Files,
    /// The peer did not send or receive in time.
    #[error("timeout: the peer does not respond")]
    Silent,
    /// Another system error.
    #[error("the connection failed: {0}")]
    System(Errno),
}

impl From<Errno> for ConnectionError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PIPE | Errno::CONNRESET => Self::Closed,
            Errno::AGAIN => Self::Silent,
            errno => Self::System(errno),
        }
    }
}

/// Sends a message. `files` are attached to its first byte.
pub fn send(
    socket: impl AsFd,
    header: Header,
    payload: &[&[u8]],
    files: &[BorrowedFd<'_>],
) -> Result<(), ConnectionError> {
    let head = header.to_bytes();
    let mut parts = [IoSlice::new(&head), IoSlice::new(&[]), IoSlice::new(&[])];
    for (place, part) in parts.iter_mut().skip(1).zip(payload) {
        *place = IoSlice::new(part);
    }
    debug_assert!(payload.len() < parts.len());
    let mut left = &mut parts[..=payload.len()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(ConnectionError::Files);
    }
    loop {
        let sent = match rustix::net::sendmsg(&socket, left, &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => continue,
            sent => sent?,
        };
        // The descriptors were sent with the first bytes.
        control.clear();
        IoSlice::advance_slices(&mut left, sent);
        if left.iter().all(|part| part.is_empty()) {
            return Ok(());
        }
    }
}

/// The result of [`Receiver::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A complete message.
    Message,
    /// No complete message has arrived yet.
    Nothing,
}

/// Receives messages from a socket. It never reads beyond the current message, so that descriptors belong to that message.
#[derive(Debug, Default)]
pub struct Receiver {
    bytes: Vec<u8>,
    filled: usize,
    files: Vec<OwnedFd>,
    is_whole: bool,
}

impl Receiver {
    /// Continues to receive a message or starts the next. Blocks for the timeout of the socket, unless `flags` prevent it.
    pub fn receive(
        &mut self,
        socket: impl AsFd,
        flags: RecvFlags,
    ) -> Result<Received, ConnectionError> {
        if std::mem::take(&mut self.is_whole) {
            self.filled = 0;
            self.files.clear();
        }
        loop {
            let wanted = self.wanted()?;
            if self.filled == wanted {
                self.is_whole = true;
                return Ok(Received::Message);
            }
            if self.bytes.len() < wanted {
                self.bytes.resize(wanted, 0);
            }
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let result = rustix::net::recvmsg(
                &socket,
                &mut [IoSliceMut::new(&mut self.bytes[self.filled..wanted])],
                &mut control,
                flags | RecvFlags::CMSG_CLOEXEC,
            );
            let received = match result {
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) if flags.contains(RecvFlags::DONTWAIT) => {
                    return Ok(Received::Nothing);
                }
                received => received?,
            };
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(files) = message {
                    self.files.extend(files);
                }
            }
            if received.flags.contains(ReturnFlags::CTRUNC) || self.files.len() > MAX_FILES {
                return Err(ConnectionError::Files);
            }
            if received.bytes == 0 {
                return Err(ConnectionError::Closed);
            }
            self.filled += received.bytes;
        }
    }

    /// Returns the header of the complete message.
    pub fn header(&self) -> Header {
        self.bytes
            .first_chunk()
            .map_or_else(Header::default, Header::parse)
    }

    /// Returns the payload of the complete message.
    pub fn payload(&self) -> &[u8] {
        self.bytes.get(HEADER..self.filled).unwrap_or(&[])
    }

    /// Takes the descriptors of the message.
    pub fn take_files(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.files)
    }

    /// Returns the number of bytes to receive: the header first, then the whole message.
    fn wanted(&self) -> Result<usize, ConnectionError> {
        if self.filled < HEADER {
            return Ok(HEADER);
        }
        let length = self.header().bytes;
        usize::try_from(length)
            .ok()
            .filter(|bytes| (HEADER..=MAX_MESSAGE).contains(bytes))
            .ok_or(ConnectionError::Length(length))
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::Command;
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn messages_arrive_complete_with_their_descriptors() {
        let (mut a, b) = UnixStream::pair().unwrap();
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let header = |id| Header::request(id, Command::RegionWrite, 6);
        send(&a, header(1), &[b"abc", b"def"], &[]).unwrap();
        send(&a, header(2), &[b"ghijkl"], &[file.as_fd()]).unwrap();
        send(&a, header(3), &[b"mno", b"pqr"], &[]).unwrap();
        let mut receiver = Receiver::default();
        for (id, payload, files) in [(1, b"abcdef", 0), (2, b"ghijkl", 1), (3, b"mnopqr", 0)] {
            let received = receiver.receive(&b, RecvFlags::empty());
            assert_eq!(received, Ok(Received::Message));
            assert_eq!(receiver.header(), header(id));
            assert_eq!(receiver.payload(), payload);
            assert_eq!(receiver.take_files().len(), files);
        }
        // The message arrives byte by byte.
        let bytes = [&header(4).to_bytes()[..], b"stuvwx"].concat();
        for byte in &bytes {
            assert_eq!(
                receiver.receive(&b, RecvFlags::DONTWAIT),
                Ok(Received::Nothing)
            );
            a.write_all(&[*byte]).unwrap();
        }
        assert_eq!(
            receiver.receive(&b, RecvFlags::DONTWAIT),
            Ok(Received::Message)
        );
        assert_eq!(receiver.payload(), b"stuvwx");
        drop(a);
        assert_eq!(
            receiver.receive(&b, RecvFlags::DONTWAIT),
            Err(ConnectionError::Closed)
        );
    }

    #[test]
    fn impossible_message_length_is_rejected() {
        for bytes in [0, 15, u32::try_from(MAX_MESSAGE + 1).unwrap(), u32::MAX] {
            let (a, b) = UnixStream::pair().unwrap();
            let header = Header {
                bytes,
                ..Header::default()
            };
            send(&a, header, &[], &[]).unwrap();
            let result = Receiver::default().receive(&b, RecvFlags::empty());
            assert_eq!(result, Err(ConnectionError::Length(bytes)));
        }
    }
}
