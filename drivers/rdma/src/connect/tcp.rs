//! Hosts that find each other by plain TCP: endpoints and greetings go over one stream, which stays open, so that each
//! side sees the other's end at once.
//!
//! ```text
//!   dialler ── Hello ──▶ listener     its queues exist, receives are posted
//!           ◀── Answer ──             so do the listener's, and they are connected
//!           ── Ready ──▶              all are connected: the listener may send
//! ```

use super::acceptor::{Door, Guest};
use super::access::Allows;
use super::exchange::{self, Frame, HEAD, PARTING, Rails};
use super::{Breaker, ConnectError, Dialler, Gone, Incoming, Link, Listener, Prepare, Watch};
use crate::verbs::{Nic, Queue, QueueOptions};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a peer that has begun may take to go on.
const STEP: Duration = Duration::from_secs(5);
/// No limit is longer, so that each has an end that clocks can name: a year.
const LONGEST: Duration = Duration::from_hours(365 * 24);
/// After so long without a word the kernel asks the peer whether it is there, again each second, three times.
const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// Goes to the listener at an address.
#[derive(Clone, Debug)]
pub struct TcpDialler {
    address: SocketAddr,
    is_over: Option<Arc<AtomicBool>>,
}

/// Waits at an address.
pub struct TcpWaiting {
    door: Door,
    address: SocketAddr,
}

/// One that goes to the listener at `address`.
pub const fn dialler(address: SocketAddr) -> TcpDialler {
    TcpDialler {
        address,
        is_over: None,
    }
}

/// One that waits at `address`; with port 0 at any, which [`TcpWaiting::address`] tells.
pub fn listener(address: SocketAddr) -> Result<TcpWaiting, ConnectError> {
    let refused = |source| ConnectError::Network {
        peer: address.to_string(),
        action: "listening",
        source,
    };
    let listener = TcpListener::bind(address).map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    let door = Door::new(listener, |bytes| exchange::wanted(bytes).ok()).map_err(refused)?;
    Ok(TcpWaiting { door, address })
}

impl TcpWaiting {
    /// Where it waits.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

/// A stream of frames with a peer.
struct Talk {
    stream: TcpStream,
    peer: String,
}

impl Talk {
    fn new(stream: TcpStream, peer: SocketAddr) -> Result<Self, ConnectError> {
        let talk = Self {
            stream,
            peer: peer.to_string(),
        };
        talk.prepare()
            .map_err(|source| talk.broken("setting up the stream", source))?;
        Ok(talk)
    }

    fn prepare(&self) -> io::Result<()> {
        self.stream.set_nonblocking(true)?;
        self.stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&self.stream, true)?;
        sockopt::set_tcp_keepidle(&self.stream, KEEP_ALIVE)?;
        sockopt::set_tcp_keepintvl(&self.stream, Duration::from_secs(1))?;
        sockopt::set_tcp_keepcnt(&self.stream, 3)?;
        Ok(())
    }

    fn broken(&self, action: &'static str, source: io::Error) -> ConnectError {
        ConnectError::Network {
            peer: self.peer.clone(),
            action,
            source,
        }
    }

    fn foreign(&self, why: impl Into<String>) -> ConnectError {
        ConnectError::Foreign {
            peer: self.peer.clone(),
            why: why.into(),
        }
    }

    fn await_ready(&self, flags: PollFlags, end: Instant) -> io::Result<()> {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|_| ErrorKind::InvalidInput)?;
        match poll(&mut [PollFd::new(&self.stream, flags)], Some(&left)) {
            Ok(0) => Err(ErrorKind::TimedOut.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn say(&mut self, frame: &Frame, end: Instant) -> Result<(), ConnectError> {
        let bytes = frame.encode();
        let mut done = 0;
        while done < bytes.len() {
            let result = match self.stream.write(&bytes[done..]) {
                Ok(more) => {
                    done += more;
                    Ok(())
                }
                Err(error) => self.again(error, PollFlags::OUT, end),
            };
            result.map_err(|source| self.broken("sending a greeting", source))?;
        }
        Ok(())
    }

    fn again(&self, error: io::Error, flags: PollFlags, end: Instant) -> io::Result<()> {
        match error.kind() {
            ErrorKind::WouldBlock => self.await_ready(flags, end),
            ErrorKind::Interrupted => Ok(()),
            _ => Err(error),
        }
    }

    /// The next frame, and no byte more.
    fn hear(&mut self, end: Instant) -> Result<Frame, ConnectError> {
        let mut bytes = Vec::with_capacity(HEAD);
        loop {
            let wanted = exchange::wanted(&bytes).map_err(|why| self.foreign(why))?;
            let have = bytes.len();
            if have >= wanted {
                return Frame::decode(&bytes).map_err(|why| self.foreign(why));
            }
            bytes.resize(wanted, 0);
            let result = self.stream.read(&mut bytes[have..]);
            bytes.truncate(have + *result.as_ref().unwrap_or(&0));
            match result {
                Ok(0) => {
                    let error = ErrorKind::UnexpectedEof.into();
                    return Err(self.broken("waiting for an answer", error));
                }
                Ok(_) => {}
                Err(error) => self
                    .again(error, PollFlags::IN, end)
                    .map_err(|source| self.broken("waiting for an answer", source))?,
            }
        }
    }
}

/// A queue for each card, prepared.
fn queues(
    nics: &[Arc<dyn Nic>],
    options: &QueueOptions,
    prepare: Prepare<'_>,
) -> Result<Vec<Box<dyn Queue>>, ConnectError> {
    let mut queues = Vec::with_capacity(nics.len());
    for (rail, nic) in nics.iter().enumerate() {
        let mut queue = nic.queue(options)?;
        prepare(rail, &mut *queue)?;
        queues.push(queue);
    }
    Ok(queues)
}

fn rails(queues: &[Box<dyn Queue>], options: &QueueOptions, greetings: &[Vec<u8>]) -> Rails {
    Rails {
        service: options.service,
        endpoints: queues.iter().map(|queue| queue.endpoint()).collect(),
        greetings: greetings.to_vec(),
    }
}

fn connect(queues: &mut [Box<dyn Queue>], peer: &Rails) -> Result<(), ConnectError> {
    for (queue, endpoint) in queues.iter_mut().zip(&peer.endpoints) {
        queue.connect(endpoint)?;
    }
    Ok(())
}

impl Dialler for TcpDialler {
    fn cancel_with(&mut self, is_over: Arc<AtomicBool>) {
        self.is_over = Some(is_over);
    }

    fn dial(
        &mut self,
        nics: &[Arc<dyn Nic>],
        options: &QueueOptions,
        greetings: &[Vec<u8>],
        prepare: Prepare<'_>,
        limit: Duration,
    ) -> Result<Link, ConnectError> {
        // A limit of nothing is none that a connection accepts.
        let limit = limit.clamp(Duration::from_millis(1), LONGEST);
        let end = Instant::now() + limit;
        let stream = TcpStream::connect_timeout(&self.address, limit).map_err(|source| {
            ConnectError::Network {
                peer: self.address.to_string(),
                action: "connecting",
                source,
            }
        })?;
        let mut talk = Talk::new(stream, self.address)?;
        let mut queues = queues(nics, options, prepare)?;
        talk.say(&Frame::Hello(rails(&queues, options, greetings)), end)?;
        let answer = match talk.hear(end)? {
            Frame::Answer(rails) => rails,
            Frame::Refusal(why) => {
                return Err(ConnectError::Refused {
                    peer: talk.peer,
                    why,
                });
            }
            other => return Err(talk.foreign(format!("{} for an answer", other.kind()))),
        };
        if answer.endpoints.len() != queues.len() || answer.service != options.service {
            let why = format!(
                "it answers with {} rails of {}",
                answer.endpoints.len(),
                answer.service.name()
            );
            return Err(talk.foreign(why));
        }
        connect(&mut queues, &answer)?;
        let is_over = self.is_over.as_ref();
        if is_over.is_some_and(|is_over| is_over.load(Ordering::Acquire)) {
            return Err(ConnectError::Over { peer: talk.peer });
        }
        talk.say(&Frame::Ready, end)?;
        Ok(Link {
            rails: queues,
            greetings: answer.greetings,
            watch: Box::new(TcpWatch::new(talk)),
        })
    }
}

impl Listener for TcpWaiting {
    fn restrict(&mut self, allows: Allows) {
        self.door.restrict(allows);
    }

    fn accept(
        &mut self,
        nics: &[Arc<dyn Nic>],
        limit: Duration,
    ) -> Result<Option<Box<dyn Incoming>>, ConnectError> {
        let end = Instant::now() + limit.min(LONGEST);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let guest = self
                .door
                .next(Some(left))
                .map_err(|source| ConnectError::Network {
                    peer: self.address.to_string(),
                    action: "listening",
                    source,
                })?;
            let Some(Guest {
                stream,
                peer,
                greeting,
            }) = guest
            else {
                return Ok(None);
            };
            let Ok(mut talk) = Talk::new(stream, peer) else {
                continue;
            };
            match Frame::decode(&greeting) {
                Ok(Frame::Hello(hello)) if hello.endpoints.len() == nics.len() => {
                    return Ok(Some(Box::new(TcpIncoming {
                        talk,
                        hello,
                        nics: nics.to_vec(),
                    })));
                }
                Ok(Frame::Hello(hello)) => {
                    let (theirs, ours) = (hello.endpoints.len(), nics.len());
                    let why = format!(
                        "the receiver has {ours} rails, this sink has {theirs}: set as many cards in `nics` on both hosts"
                    );
                    refuse(&mut talk, &why);
                }
                // A peer with another protocol is not answered.
                Ok(_) | Err(_) => {}
            }
            // The caller must return to its other work however many peers are refused.
            if Instant::now() >= end {
                return Ok(None);
            }
        }
    }
}

fn refuse(talk: &mut Talk, why: &str) {
    // The few bytes fit into what the kernel holds of a new stream; whoever does not wait for them goes without.
    let _ = talk.say(&Frame::Refusal(why.to_owned()), Instant::now());
    let _ = talk.stream.shutdown(Shutdown::Write);
}

struct TcpIncoming {
    talk: Talk,
    hello: Rails,
    nics: Vec<Arc<dyn Nic>>,
}

impl Incoming for TcpIncoming {
    fn peer(&self) -> String {
        self.talk.peer.clone()
    }

    fn greetings(&self) -> &[Vec<u8>] {
        &self.hello.greetings
    }

    fn breaker(&self) -> Breaker {
        let stream = self.talk.stream.try_clone();
        Box::new(move || {
            if let Ok(stream) = &stream {
                // It may be shut down already.
                let _ = stream.shutdown(Shutdown::Both);
            }
        })
    }

    fn accept(
        self: Box<Self>,
        options: &QueueOptions,
        greetings: &[Vec<u8>],
        prepare: Prepare<'_>,
    ) -> Result<Link, ConnectError> {
        let Self {
            mut talk,
            hello,
            nics,
        } = *self;
        let end = Instant::now() + STEP;
        if hello.service != options.service {
            let (theirs, ours) = (hello.service.name(), options.service.name());
            let why = format!(
                "the receiver has service = \"{ours}\", this sink \"{theirs}\": set the same on both hosts"
            );
            refuse(&mut talk, &why);
            return Err(ConnectError::Mismatch {
                peer: talk.peer,
                why: format!(
                    "its sink has service = \"{theirs}\", this source \"{ours}\": set the same on both hosts"
                ),
            });
        }
        let made = queues(&nics, options, prepare).and_then(|mut queues| {
            connect(&mut queues, &hello)?;
            Ok(queues)
        });
        let queues = match made {
            Ok(queues) => queues,
            Err(error) => {
                refuse(&mut talk, &error.to_string());
                return Err(error);
            }
        };
        talk.say(&Frame::Answer(rails(&queues, options, greetings)), end)?;
        match talk.hear(end)? {
            Frame::Ready => {}
            other => {
                return Err(talk.foreign(format!("{} in place of its readiness", other.kind())));
            }
        }
        Ok(Link {
            rails: queues,
            greetings: hello.greetings,
            watch: Box::new(TcpWatch::new(talk)),
        })
    }

    fn refuse(mut self: Box<Self>, why: &str) {
        refuse(&mut self.talk, why);
    }
}

/// The stream, after the queues are connected.
struct TcpWatch {
    talk: Talk,
    heard: Vec<u8>,
    gone: Option<Gone>,
}

impl TcpWatch {
    const fn new(talk: Talk) -> Self {
        Self {
            talk,
            heard: Vec::new(),
            gone: None,
        }
    }

    /// What the peer's end, or a word of it, means.
    fn look(&mut self) -> Option<Gone> {
        let ended = |why: String| Gone { parting: None, why };
        let peer = &self.talk.peer;
        let foreign = || ended(format!("{peer} speaks something else than daq"));
        let mut bytes = [0; PARTING];
        let wanted = PARTING - self.heard.len();
        let read = match self.talk.stream.read(&mut bytes[..wanted]) {
            Ok(0) => {
                return Some(ended(format!(
                    "{peer} has closed the connection without a word: it ended, or was killed"
                )));
            }
            Ok(read) => read,
            Err(error) => {
                let is_quiet =
                    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
                return (!is_quiet)
                    .then(|| ended(format!("the connection to {peer} is broken: {error}")));
            }
        };
        self.heard.extend(&bytes[..read]);
        let is_ours = self.heard.len() < HEAD || exchange::wanted(&self.heard) == Ok(PARTING);
        if is_ours && self.heard.len() < PARTING {
            return None;
        }
        Some(match Frame::decode(&self.heard) {
            Ok(Frame::Parting(frames)) => Gone {
                parting: Some(frames),
                why: format!("{peer} has ended"),
            },
            Ok(_) | Err(_) => foreign(),
        })
    }
}

impl Watch for TcpWatch {
    fn gone(&mut self) -> Option<Gone> {
        if self.gone.is_none() {
            self.gone = self.look();
        }
        self.gone.clone()
    }

    fn part(&mut self, frames: u64) {
        // Where the peer takes no more bytes it sees the end without a word.
        let _ = self.talk.say(&Frame::Parting(frames), Instant::now());
        let _ = self.talk.stream.shutdown(Shutdown::Write);
    }
}
