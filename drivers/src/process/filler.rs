//! Copies the frames of a process into the ring.

use super::inlet::{Connected, Connections, MAX_SLOTS, stride};
use daq_core::frame::{Clock, Flags, Timestamp};
use daq_core::log_limit::LogLimit;
use daq_core::reorder::{Outcome, PacketId, ReorderWindow};
use daq_core::source::{Filler, Polled, SourceError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// Size of a commit in bytes: slot, time, clock and flags.
const COMMIT: usize = 32;
/// The flags that a process can set.
const FLAGS: Flags = Flags::INCOMPLETE
    .with(Flags::TRUNCATED)
    .with(Flags::SUSPECT);
/// Maximum number of commits in a packet.
const MAX_COMMITS: usize = 64;
/// Interval at which a source without a process checks for a connection.
const CONNECT_INTERVAL: Duration = Duration::from_millis(5);

/// A committed frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Commit {
    slot: usize,
    time: Timestamp,
    flags: Flags,
}

impl Commit {
    /// Parses a commit; `None` if the inbox has no such slot or a word is invalid.
    fn parse(bytes: &[u8; COMMIT], slots: usize) -> Option<Self> {
        let word = |i: usize| u64::from_le_bytes(bytes.as_chunks().0[i]);
        let (slot, ns, number) = (word(0), word(1), word(2));
        let flags = Flags(u32::try_from(word(3)).ok()?);
        let clock = Clock::from_u8(u8::try_from(number).ok()?);
        let slot = usize::try_from(slot).ok().filter(|slot| *slot < slots)?;
        let is_valid = u64::from(clock as u8) == number && FLAGS.contains(flags);
        is_valid.then_some(Self {
            slot,
            time: Timestamp { ns, clock },
            flags,
        })
    }
}

/// Receives the packets that a socket still contains. Returns the number of their commits. The process can send no further
/// packet.
fn drain(socket: &OwnedFd, packet: &mut [u8]) -> usize {
    // The packets that were sent before can still be received.
    let _ = rustix::net::shutdown(socket, Shutdown::Read);
    let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
    let lengths =
        (0..MAX_SLOTS).map_while(|_| match rustix::net::recv(socket, &mut *packet, flags) {
            Ok((_, length)) if length > 0 => Some(length.div_ceil(COMMIT)),
            _ => None,
        });
    lengths.sum()
}

/// Returns the commits in a packet, if all of them are valid.
fn commits(packet: &[u8], slots: usize) -> Option<&[[u8; COMMIT]]> {
    let (commits, []) = packet.as_chunks::<COMMIT>() else {
        return None;
    };
    let mut parsed = commits.iter().map(|commit| Commit::parse(commit, slots));
    parsed.all(|commit| commit.is_some()).then_some(commits)
}

/// The thread of the source.
#[derive(Debug)]
pub(super) struct ProcessFiller {
    name: String,
    frame_bytes: usize,
    backpressure: bool,
    connections: Arc<Connections>,
    receiver: Receiver<Connected>,
    process: Option<Connected>,
    /// The last packet of the process.
    packet: [u8; COMMIT * MAX_COMMITS],
    /// Number of commits in `packet`, and how many of them are done.
    commits: usize,
    done: usize,
    /// Number of the next frame.
    sequence: u64,
    /// Number of frames of this process that were copied or refused, and of those that were refused.
    taken: u64,
    refused: u64,
    failures: LogLimit,
}

impl ProcessFiller {
    pub(super) const fn new(
        name: String,
        frame_bytes: usize,
        backpressure: bool,
        connections: Arc<Connections>,
        receiver: Receiver<Connected>,
    ) -> Self {
        Self {
            name,
            frame_bytes,
            backpressure,
            connections,
            receiver,
            process: None,
            packet: [0; COMMIT * MAX_COMMITS],
            commits: 0,
            done: 0,
            sequence: 0,
            taken: 0,
            refused: 0,
            failures: LogLimit::new(),
        }
    }

    /// Starts to serve a process that has connected. Returns false if no process has connected.
    fn connect(&mut self, window: &mut ReorderWindow) -> bool {
        let Ok(process) = self.receiver.try_recv() else {
            return false;
        };
        self.process = Some(process);
        (self.commits, self.done, self.taken, self.refused) = (0, 0, 0, 0);
        if self.sequence > 0 {
            // The frames of this process do not continue those of the last one.
            window.restart();
        }
        true
    }

    /// Disconnects the process.
    fn disconnect(&mut self) {
        let process = self.process.take();
        // The process may connect again as soon as its connection is closed.
        self.connections.release();
        drop(process);
    }

    /// Disconnects a process that broke the rule `why`. Rejects `commits` of its commits, and those of packets that were not
    /// received yet.
    fn revoke(&mut self, window: &ReorderWindow, commits: usize, why: &str) {
        let process = self.process.as_ref();
        let queued = process.map_or(0, |process| drain(&process.socket, &mut self.packet));
        window.reject((commits + queued) as u64);
        let name = &self.name;
        self.failures.run(|suppressed| {
            tracing::warn!("source {name}: disconnected the producing process: {why}{suppressed}");
        });
        if let Some(process) = &self.process {
            let packet = format!("{{\"revoked\":\"{why}\"}}");
            // The process sees that the connection is closed if it does not read the reason.
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = rustix::net::send(&process.socket, packet.as_bytes(), flags);
        }
        self.disconnect();
    }

    /// Receives the next packet of the process. Returns false after `timeout` without a packet, or if the process was
    /// disconnected.
    fn receive(&mut self, window: &ReorderWindow, timeout: Duration) -> bool {
        let Some(process) = &self.process else {
            return false;
        };
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        match rustix::net::recv(&process.socket, &mut self.packet, flags) {
            Ok((0, _)) => self.disconnect(),
            Ok((received, length)) => {
                let packet = &self.packet[..received];
                let commits = commits(packet, process.slots).filter(|_| received == length);
                if let Some(commits) = commits {
                    (self.commits, self.done) = (commits.len(), 0);
                    return true;
                }
                let why = "a commit is invalid, or names a slot that the inbox does not have";
                self.revoke(window, length.div_ceil(COMMIT), why);
            }
            Err(Errno::AGAIN | Errno::INTR) => {
                let mut descriptors = [PollFd::new(&process.socket, PollFlags::IN)];
                let timeout = Timespec::try_from(timeout).unwrap_or_default();
                // After an error, the next call receives again.
                let _ = poll(&mut descriptors, Some(&timeout));
            }
            // The process has ended without reading all acknowledgements. Linux reports this once; the commits before follow.
            Err(Errno::CONNRESET) => {}
            Err(_) => self.disconnect(),
        }
        false
    }

    /// Copies committed frames while there are free slots.
    fn place(&mut self, window: &mut ReorderWindow) -> Polled {
        let Some(process) = &self.process else {
            return Polled::Busy;
        };
        let (frame_bytes, stride) = (self.frame_bytes, stride(self.frame_bytes));
        let before = self.taken;
        let polled = window.with_batch(|batch| {
            while let Some(commit) = self.packet.as_chunks().0[..self.commits].get(self.done) {
                let id = PacketId::of(self.sequence);
                if self.backpressure && !batch.has_room(id, Some(frame_bytes.into())) {
                    return Polled::Full;
                }
                // The commits of a packet were checked when it arrived.
                let Some(Commit { slot, time, flags }) = Commit::parse(commit, process.slots)
                else {
                    return Polled::Busy;
                };
                let outcome = process
                    .inbox
                    .put(batch, id, slot * stride, frame_bytes, time);
                batch.flag(outcome, flags);
                self.refused += u64::from(outcome != Outcome::Placed);
                self.taken += 1;
                self.sequence += 1;
                self.done += 1;
            }
            Polled::Busy
        });
        if self.taken > before {
            self.acknowledge(window);
        }
        polled
    }

    /// Sends the number of frames that were copied or refused, so that the process can use their slots again.
    fn acknowledge(&mut self, window: &ReorderWindow) {
        let Some(process) = &self.process else {
            return;
        };
        let [taken, refused] = [self.taken, self.refused].map(u64::to_le_bytes);
        let mut packet = [0; 16];
        packet[..8].copy_from_slice(&taken);
        packet[8..].copy_from_slice(&refused);
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::send(&process.socket, &packet, flags) {
            // If the process has ended, its remaining commits are still received.
            Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => {}
            Err(_) => {
                let why = "it does not read the acknowledgements";
                self.revoke(window, self.commits - self.done, why);
            }
        }
    }
}

impl Filler for ProcessFiller {
    fn fill(
        &mut self,
        window: &mut ReorderWindow,
        timeout: Duration,
    ) -> Result<Polled, SourceError> {
        if self.process.is_none() && !self.connect(window) {
            return Ok(Polled::Until(CONNECT_INTERVAL));
        }
        if self.done == self.commits && !self.receive(window, timeout) {
            return Ok(Polled::Idle);
        }
        Ok(self.place(window))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(words: [u64; 4]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn invalid_commits_are_rejected() {
        for flags in [0, 0b1101] {
            let valid = packet([3, 5, 1, flags]);
            assert_eq!(commits(&valid, 4).map(<[_]>::len), Some(1), "{flags}");
        }
        for wrong in [
            packet([4, 5, 1, 0]),
            packet([u64::MAX, 5, 1, 0]),
            packet([3, 5, 9, 0]),
            packet([3, 5, 256, 0]),
            // A process cannot begin an epoch.
            packet([3, 5, 1, 2]),
            packet([3, 5, 1, 1 << 32]),
            vec![0; 31],
        ] {
            assert_eq!(commits(&wrong, 4), None, "{wrong:?}");
        }
    }

    #[test]
    fn commits_of_queued_packets_are_counted() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (source, process) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        let send = |packet: &[u8]| rustix::net::send(&process, packet, SendFlags::NOSIGNAL);
        for commits in [1, 2, MAX_COMMITS + 3] {
            send(&packet([3, 5, 1, 0]).repeat(commits)).unwrap();
        }
        send(&[0; 33]).unwrap();
        let mut buffer = [0; COMMIT * MAX_COMMITS];
        assert_eq!(drain(&source, &mut buffer), 1 + 2 + MAX_COMMITS + 3 + 2);
        assert_eq!(drain(&source, &mut buffer), 0);
        assert_eq!(send(&packet([3, 5, 1, 0])), Err(Errno::PIPE));
    }

    proptest! {
        #[test]
        fn commits_stay_inside_the_inbox(bytes in prop::collection::vec(any::<u8>(), 0..200), slots in 1..9_usize) {
            for commit in commits(&bytes, slots).unwrap_or_default() {
                prop_assert!(Commit::parse(commit, slots).unwrap().slot < slots);
            }
        }
    }
}
