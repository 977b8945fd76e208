//! The public side of an emulated NIC's queue pair.

use super::LIMITS;
use super::memory::MemorySlice;
use super::message::{Header, Preamble};
use super::pair::{self, Outgoing, Pair, Posted, Receive, sent};
use crate::verbs::{
    Endpoint, Payload, QueuePair, Service, Sge, Status, Verb, VerbsError, WorkCompletion,
    WorkRequest,
};
use std::io::Write;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Maximum time for a peer's NIC to accept a TCP connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct EmulatedQueuePair {
    pair: Arc<Pair>,
}

impl EmulatedQueuePair {
    pub(super) fn new(pair: Arc<Pair>) -> Self {
        Self { pair }
    }

    fn refused(&self, call: &str, errno: i32, why: impl Into<String>) -> VerbsError {
        self.pair.nic.refused(call, errno, why)
    }

    fn slices(&self, call: &str, sges: &[Sge<'_>]) -> Result<Vec<MemorySlice>, VerbsError> {
        let slices = sges.iter().map(|sge| {
            let registration = self.pair.nic.local(sge.memory().lkey());
            registration.map(|registration| MemorySlice {
                registration,
                offset: sge.offset(),
                bytes: sge.bytes(),
            })
        });
        slices.collect::<Option<_>>().ok_or_else(|| {
            self.refused(
                call,
                libc::EINVAL,
                "the memory is registered with another NIC",
            )
        })
    }

    fn open_stream(&self, peer: &Endpoint) -> Result<TcpStream, VerbsError> {
        let ip = Ipv6Addr::from(peer.gid);
        let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
        let to = SocketAddr::new(ip, peer.lid);
        let preamble = Preamble {
            to: (peer.number, peer.psn),
            from: (self.pair.number, self.pair.psn),
            service: self.pair.options.service,
            qkey: peer.qkey,
        };
        let opened = TcpStream::connect_timeout(&to, CONNECT_TIMEOUT).and_then(|mut stream| {
            stream.write_all(&preamble.encode())?;
            Ok(stream)
        });
        opened.map_err(|error| {
            self.refused(
                &format!("connecting to {to}"),
                error.raw_os_error().unwrap_or(libc::ETIMEDOUT),
                "both hosts must use emulated NICs, and each NIC's address must be reachable from the other host",
            )
        })
    }
}

impl QueuePair for EmulatedQueuePair {
    fn endpoint(&self) -> Endpoint {
        self.pair.nic.endpoint(&self.pair)
    }

    fn connect(&mut self, peer: &Endpoint) -> Result<(), VerbsError> {
        if self.pair.lock().peer.is_some() {
            return Err(self.refused("connecting", libc::EISCONN, "create a new queue pair"));
        }
        if self.pair.nic.faults.is_down() {
            return Err(self.refused("connecting", libc::ENETDOWN, "the port is down"));
        }
        let order = |endpoint: &Endpoint| (endpoint.gid, endpoint.lid, endpoint.number);
        // Both sides derive from the endpoints which of them opens the stream, without exchanging a message.
        let opens_stream = match self.pair.options.service {
            Service::Uc if peer.number == pair::ANY_PEER => false,
            Service::Uc if peer.psn == pair::UNKNOWN_PSN => true,
            _ => order(&self.endpoint()) < order(peer),
        };
        let stream = opens_stream.then(|| self.open_stream(peer)).transpose()?;
        self.pair.start_with(*peer, stream);
        Ok(())
    }

    fn post_send(&mut self, work: &WorkRequest<'_>) -> Result<(), VerbsError> {
        let call = "posting work";
        let bytes = work.payload.bytes() as u64;
        let max_bytes = match self.pair.options.service {
            Service::Ud => u64::from(super::MTU),
            Service::Rc | Service::Uc => LIMITS.max_message,
        };
        if bytes > max_bytes {
            let why = format!("a message of {bytes} bytes exceeds the maximum of {max_bytes}");
            return Err(self.refused(call, libc::EINVAL, why));
        }
        let (inline, slices) = match work.payload {
            Payload::Inline(bytes) => {
                let max_bytes = self.pair.options.inline.min(LIMITS.max_inline) as usize;
                if bytes.len() > max_bytes {
                    let why = format!(
                        "{} inline bytes exceed the maximum of {max_bytes}",
                        bytes.len()
                    );
                    return Err(self.refused(call, libc::EINVAL, why));
                }
                (bytes.to_vec(), Vec::new())
            }
            Payload::Memory(sges) => {
                if sges.len() > LIMITS.max_sges as usize {
                    let why = format!(
                        "{} scatter/gather elements exceed the maximum of {}",
                        sges.len(),
                        LIMITS.max_sges
                    );
                    return Err(self.refused(call, libc::EINVAL, why));
                }
                (Vec::new(), self.slices(call, sges)?)
            }
        };
        let header = match work.verb {
            Verb::Write { .. } if self.pair.options.service == Service::Ud => {
                return Err(self.refused(
                    call,
                    libc::EOPNOTSUPP,
                    "a datagram queue pair (ud) does not support RDMA writes",
                ));
            }
            Verb::Write {
                address,
                rkey,
                immediate,
            } => Header::Write {
                address,
                rkey,
                bytes,
                immediate,
            },
            Verb::Send { immediate } => Header::Send { bytes, immediate },
        };
        let mut state = self.pair.lock();
        if state.peer.is_none() {
            return Err(self.refused(call, libc::EINVAL, "the queue pair is not connected"));
        }
        if state.posted - state.reclaimed >= u64::from(self.pair.options.sends) {
            let why = "the send queue is full; collect completions of signaled requests";
            return Err(self.refused(call, libc::ENOMEM, why));
        }
        let posted = Posted {
            number: state.posted,
            id: work.id,
            is_signaled: work.signaled,
        };
        state.posted += 1;
        if state.has_failed {
            let done = sent(work.id, Status::Flushed);
            self.pair.complete(&mut state, done, posted.number);
            return Ok(());
        }
        state.outgoing.push_back(Outgoing {
            posted,
            header,
            inline,
            slices,
        });
        if state.is_cut {
            self.pair.end_stream(&mut state);
        }
        self.pair.changed.notify_all();
        Ok(())
    }

    fn post_receive(&mut self, id: u64, into: &[Sge<'_>]) -> Result<(), VerbsError> {
        let call = "posting a receive";
        if into.len() > self.pair.options.sges as usize {
            let why = format!(
                "{} scatter/gather elements exceed the maximum of {}",
                into.len(),
                self.pair.options.sges
            );
            return Err(self.refused(call, libc::EINVAL, why));
        }
        let slices = self.slices(call, into)?;
        if !slices
            .iter()
            .all(|slice| slice.registration.access.local_write)
        {
            let why = "the memory was registered without write access";
            return Err(self.refused(call, libc::EACCES, why));
        }
        let mut state = self.pair.lock();
        if !self.pair.has_room(&state) {
            let why = "the receive queue is full; collect completions";
            return Err(self.refused(call, libc::ENOMEM, why));
        }
        state.receives.push_back(Receive { id, slices });
        if state.has_failed {
            self.pair.flush_receives(&mut state);
        } else {
            state.receives_posted += 1;
            self.pair.changed.notify_all();
        }
        Ok(())
    }

    fn poll(&mut self, done: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        let mut state = self.pair.lock();
        if state.is_overrun {
            let why = "the completion queue was overrun: collect completions more often, or create a new queue pair";
            return Err(self.refused("collecting completions", libc::EOVERFLOW, why));
        }
        Ok(Pair::poll(&mut state, done))
    }

    fn stop(&mut self) -> Result<(), VerbsError> {
        self.pair.stop(Status::Flushed);
        Ok(())
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, VerbsError> {
        if !self.pair.options.events {
            return Ok(false);
        }
        let end = Instant::now().checked_add(limit);
        let mut state = self.pair.lock();
        while Pair::is_quiet(&state) {
            let left = end.map_or(CONNECT_TIMEOUT, |end| {
                end.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                break;
            }
            state = self
                .pair
                .completed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        Ok(true)
    }
}

impl Drop for EmulatedQueuePair {
    fn drop(&mut self) {
        self.pair.end();
    }
}
