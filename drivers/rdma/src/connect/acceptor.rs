//! Accepts peers on a TCP port and reads their greetings. A peer is accepted when its whole greeting has arrived, and
//! rejected if the greeting is late or invalid. The number of pending peers is bounded.

use super::access::Allows;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Maximum number of pending peers. A further peer replaces the oldest pending peer.
const MAX_PENDING: usize = 64;
/// Maximum time until a peer's greeting has arrived completely.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before the next `accept` call after the process ran out of file descriptors or memory.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Function that returns the length in bytes of a greeting from its first bytes. If these bytes are too few, the
/// function returns the number of bytes that it needs. Returns `None` if the greeting is invalid.
pub(crate) type GreetingLength = fn(&[u8]) -> Option<usize>;

/// A peer whose whole greeting has arrived.
pub(crate) struct HandshakenPeer {
    pub stream: TcpStream,
    pub peer: SocketAddr,
    pub greeting: Vec<u8>,
}

struct PendingPeer {
    handshaken: HandshakenPeer,
    until: Instant,
}

pub(crate) struct Acceptor {
    listener: TcpListener,
    pending: Vec<PendingPeer>,
    greeting_length: GreetingLength,
    /// Predicate for the addresses that may connect; `None` allows every address.
    allows: Option<Allows>,
    greeting_timeout: Duration,
}

enum Step {
    More,
    Done,
    Rejected,
}

impl Acceptor {
    pub(crate) fn new(listener: TcpListener, greeting_length: GreetingLength) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            pending: Vec::new(),
            greeting_length,
            allows: None,
            greeting_timeout: GREETING_TIMEOUT,
        })
    }

    /// Sets `allows` as the address filter: connections from other addresses are closed before any byte is read.
    pub(crate) fn restrict(&mut self, allows: Allows) {
        self.allows = Some(allows);
    }

    /// Returns the next peer with a complete greeting, or `None` if no peer completed a greeting within `limit`.
    /// Returns an error only if the listening port itself fails.
    pub(crate) fn next(&mut self, limit: Option<Duration>) -> io::Result<Option<HandshakenPeer>> {
        // If the deadline exceeds the range of the clock, the wait has no limit.
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut is_paused = false;
        loop {
            let now = Instant::now();
            self.pending.retain(|peer| peer.until > now);
            let is_last = end.is_some_and(|end| now >= end);
            let mut until = self.pending.iter().map(|peer| peer.until).min();
            until = [until, end, is_paused.then(|| now + RETRY_PAUSE)]
                .into_iter()
                .flatten()
                .min();
            let ready = self.wait(
                until.map(|until| until.saturating_duration_since(now)),
                is_paused,
            )?;
            // Iterates backwards, so that a removal does not change the indices of the remaining peers.
            for at in (0..ready.len().saturating_sub(1)).rev() {
                if !ready[at + 1] {
                    continue;
                }
                match self.read_greeting(at) {
                    Step::More => {}
                    Step::Rejected => drop(self.pending.remove(at)),
                    Step::Done => return Ok(Some(self.pending.remove(at).handshaken)),
                }
            }
            is_paused = ready.first() == Some(&true) && !self.accept_pending()?;
            if is_last {
                return Ok(None);
            }
        }
    }

    /// Waits for events. Returns one flag for the listener, followed by one flag per pending peer; true means readable.
    fn wait(&self, limit: Option<Duration>, is_paused: bool) -> io::Result<Vec<bool>> {
        let none = PollFlags::empty();
        let listen = if is_paused { none } else { PollFlags::IN };
        let mut all = vec![PollFd::new(&self.listener, listen)];
        let streams = self.pending.iter();
        all.extend(streams.map(|peer| PollFd::new(&peer.handshaken.stream, PollFlags::IN)));
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match poll(&mut all, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(all.iter().map(|one| !one.revents().is_empty()).collect())
    }

    /// Accepts all waiting connections. Returns false if the process is out of file descriptors or memory.
    fn accept_pending(&mut self) -> io::Result<bool> {
        for _ in 0..MAX_PENDING {
            let (stream, peer) = match self.listener.accept() {
                Ok(found) => found,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                        return Ok(false);
                    }
                    Some(libc::EINVAL | libc::EBADF | libc::ENOTSOCK) => return Err(error),
                    _ if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                    // The peer disconnected before it was accepted.
                    _ => continue,
                },
            };
            if stream.set_nonblocking(true).is_err()
                || self.allows.as_ref().is_some_and(|allows| !allows(peer))
            {
                continue;
            }
            let handshaken = HandshakenPeer {
                stream,
                peer,
                greeting: Vec::new(),
            };
            if self.pending.len() >= MAX_PENDING {
                self.pending.remove(0);
            }
            self.pending.push(PendingPeer {
                handshaken,
                until: Instant::now() + self.greeting_timeout,
            });
        }
        Ok(true)
    }

    fn read_greeting(&mut self, at: usize) -> Step {
        let HandshakenPeer {
            stream, greeting, ..
        } = &mut self.pending[at].handshaken;
        loop {
            let Some(greeting_length) = (self.greeting_length)(greeting) else {
                return Step::Rejected;
            };
            let have = greeting.len();
            if have >= greeting_length {
                return Step::Done;
            }
            greeting.resize(greeting_length, 0);
            let result = stream.read(&mut greeting[have..]);
            greeting.truncate(have + *result.as_ref().unwrap_or(&0));
            match result {
                Ok(0) => return Step::Rejected,
                Ok(_) => {}
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Step::More,
                    ErrorKind::Interrupted => {}
                    _ => return Step::Rejected,
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const LONG: Duration = Duration::from_mins(1);

    fn acceptor(greeting_timeout: Duration) -> (Acceptor, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut acceptor =
            Acceptor::new(listener, |bytes| (!bytes.starts_with(b"x")).then_some(4)).unwrap();
        acceptor.greeting_timeout = greeting_timeout;
        (acceptor, address)
    }

    #[test]
    fn silent_peers_are_dropped_for_active_ones() {
        // Longer than the run time of this test.
        let (mut acceptor, address) = acceptor(10 * LONG);
        let silent: Vec<_> = (0..2 * MAX_PENDING)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        let mut speaks = TcpStream::connect(address).unwrap();
        speaks.write_all(b"word and more").unwrap();
        let mut handshaken = acceptor.next(Some(LONG)).unwrap().unwrap();
        assert_eq!(handshaken.greeting, b"word");
        assert_eq!(handshaken.peer, speaks.local_addr().unwrap());
        assert!(acceptor.pending.len() <= MAX_PENDING);
        // The acceptor must not read bytes beyond the greeting.
        handshaken.stream.set_nonblocking(false).unwrap();
        let mut rest = [0; 9];
        handshaken.stream.read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b" and more");
        drop(silent);
    }

    #[test]
    fn slow_and_foreign_peers_are_rejected() {
        let is_rejected = |greeting_timeout, bytes: &[u8]| {
            let (mut acceptor, address) = acceptor(greeting_timeout);
            let mut peer = TcpStream::connect(address).unwrap();
            peer.write_all(bytes).unwrap();
            peer.set_read_timeout(Some(LONG)).unwrap();
            let thread = std::thread::spawn(move || match peer.read(&mut [0]) {
                Ok(bytes) => assert_eq!(bytes, 0),
                Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
            });
            while !thread.is_finished() {
                let short = Duration::from_millis(5);
                assert!(acceptor.next(Some(short)).unwrap().is_none());
            }
            thread.join().unwrap();
        };
        is_rejected(Duration::ZERO, b"wor");
        is_rejected(10 * LONG, b"x");
    }
}
