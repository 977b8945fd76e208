//! A relay between TCP peers, which can split, stall, cut and damage their connections.

use crate::Random;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval at which the threads check whether they must end.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Size of the buffer of each direction in bytes.
const BUFFER: usize = 256 << 10;

/// State that all threads of a relay share.
#[derive(Default)]
struct State {
    is_over: AtomicBool,
    is_stalled: AtomicBool,
    /// Number of cuts. A connection ends if this number changes.
    cuts: AtomicU64,
    /// Total number of bytes passed on.
    passed: AtomicU64,
    /// After this number of bytes, all connections are cut once; 0 for never.
    cut_at: AtomicU64,
    /// Number of bytes passed on to the target.
    to_target: AtomicU64,
    /// The number of this byte to the target of which one bit is inverted, counted from 1; 0 for none.
    flip_at: AtomicU64,
    /// Maximum number of bytes that are passed on at a time.
    piece: AtomicU64,
    connections: AtomicU64,
}

/// A relay that listens on a port of its own and passes each connection on to a target. It ends when it is dropped.
pub struct Relay {
    address: SocketAddr,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Starts a relay to `target`, which need not listen yet.
    pub fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            piece: AtomicU64::new(BUFFER as u64),
            ..State::default()
        });
        let shared = state.clone();
        let thread = std::thread::spawn(move || accept(&listener, target, &shared));
        Self {
            address,
            state,
            thread: Some(thread),
        }
    }

    /// Returns the address of the relay.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Passes bytes on in pieces of random sizes, at most `bytes` at a time.
    pub fn split(&self, bytes: u64) {
        self.state
            .piece
            .store(bytes.clamp(1, BUFFER as u64), Ordering::Release);
    }

    /// Ends all connections, with the bytes that are on their way.
    pub fn cut(&self) {
        self.state.cuts.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends all connections once after `bytes` further bytes.
    pub fn cut_after(&self, bytes: u64) {
        let at = self.passed() + bytes.max(1);
        self.state.cut_at.store(at, Ordering::Release);
    }

    /// Inverts one bit of the byte that follows after `bytes` further bytes to the target.
    pub fn flip_bit_after(&self, bytes: u64) {
        let at = self.state.to_target.load(Ordering::Acquire) + bytes + 1;
        self.state.flip_at.store(at, Ordering::Release);
    }

    /// Stops or continues to pass bytes on. All connections stay open.
    pub fn stall(&self, is_stalled: bool) {
        self.state.is_stalled.store(is_stalled, Ordering::Release);
    }

    /// Returns the number of bytes that were passed on.
    pub fn passed(&self) -> u64 {
        self.state.passed.load(Ordering::Acquire)
    }

    /// Returns the number of connections that were passed on.
    pub fn connections(&self) -> u64 {
        self.state.connections.load(Ordering::Acquire)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, target: SocketAddr, state: &Arc<State>) {
    let mut threads = Vec::new();
    while !state.is_over.load(Ordering::Acquire) {
        let Ok((near, _)) = listener.accept() else {
            std::thread::sleep(POLL_INTERVAL);
            continue;
        };
        // Without a target, the connection ends.
        let Ok(far) = TcpStream::connect(target) else {
            continue;
        };
        near.set_nonblocking(false).unwrap();
        state.connections.fetch_add(1, Ordering::AcqRel);
        let cuts = state.cuts.load(Ordering::Acquire);
        for (from, to, is_to_target) in [(&near, &far, true), (&far, &near, false)] {
            let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            let state = state.clone();
            threads.push(std::thread::spawn(move || {
                pass(from, to, (cuts, is_to_target), &state);
            }));
        }
    }
    for thread in threads {
        let _ = thread.join();
    }
}

/// Counts the bytes, which follow on their way to the target, and inverts one bit of the requested one.
fn flip_bit(bytes: &mut [u8], state: &State) {
    let before = state
        .to_target
        .fetch_add(bytes.len() as u64, Ordering::AcqRel);
    let at = state.flip_at.load(Ordering::Acquire);
    let index = at
        .checked_sub(before + 1)
        .and_then(|index| usize::try_from(index).ok());
    if let Some(byte) = index.and_then(|index| bytes.get_mut(index)) {
        *byte ^= 1;
    }
}

/// Passes bytes on in one direction until a side ends or the connection is cut.
fn pass(mut from: TcpStream, mut to: TcpStream, (cuts, is_to_target): (u64, bool), state: &State) {
    let mut buffer = vec![0; BUFFER];
    let mut random = Random(u64::from(from.local_addr().map_or(1, |it| it.port())));
    from.set_read_timeout(Some(POLL_INTERVAL)).unwrap();
    to.set_write_timeout(Some(POLL_INTERVAL)).unwrap();
    let is_over =
        || state.is_over.load(Ordering::Acquire) || state.cuts.load(Ordering::Acquire) != cuts;
    let is_quiet = |kind| matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut);
    'connection: while !is_over() {
        if state.is_stalled.load(Ordering::Acquire) {
            std::thread::sleep(POLL_INTERVAL);
            continue;
        }
        let max = state.piece.load(Ordering::Acquire);
        let piece = usize::try_from(1 + random.below(max)).unwrap().min(BUFFER);
        let read = match from.read(&mut buffer[..piece]) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if is_quiet(error.kind()) => continue,
            Err(_) => break,
        };
        if is_to_target {
            flip_bit(&mut buffer[..read], state);
        }
        let mut done = 0;
        while done < read {
            if is_over() {
                break 'connection;
            }
            match to.write(&buffer[done..read]) {
                Ok(more) => done += more,
                Err(error) if is_quiet(error.kind()) => {}
                Err(_) => break 'connection,
            }
        }
        let passed = state.passed.fetch_add(read as u64, Ordering::AcqRel) + read as u64;
        let cut_at = state.cut_at.load(Ordering::Acquire);
        if cut_at > 0
            && passed >= cut_at
            && state
                .cut_at
                .compare_exchange(cut_at, 0, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
        {
            state.cuts.fetch_add(1, Ordering::AcqRel);
        }
    }
    let how = if state.cuts.load(Ordering::Acquire) == cuts {
        std::net::Shutdown::Write
    } else {
        std::net::Shutdown::Both
    };
    let _ = to.shutdown(how);
    if how == std::net::Shutdown::Both {
        let _ = from.shutdown(how);
    }
}
