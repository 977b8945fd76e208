//! The sending thread of a queue pair: sends acknowledgements first, then requests in the order in which they were
//! posted.

use super::memory::{self, MemorySlice, SendError};
use super::message::Header;
use super::pair::{Outgoing, Pair, State};
use crate::verbs::Status;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::ErrorKind;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

pub(super) fn run(pair: &Arc<Pair>) {
    // Time at which the first request started to wait for the peer.
    let mut waits = None;
    let mut state = pair.lock();
    while !state.is_ending {
        if let Some(socket) = state.socket.clone().filter(|_| !state.is_cut) {
            if let Some(header) = push_event(pair, &mut state) {
                let is_last = matches!(header, Header::Refusal { .. });
                drop(state);
                let sent = transmit(&socket, &header.encode(), &[]);
                state = pair.lock();
                if sent.is_err() {
                    pair.end_stream(&mut state);
                } else if is_last {
                    // The peer first reads the refusal and then the end of the stream.
                    let _ = socket.shutdown(Shutdown::Write);
                }
                continue;
            }
            if let Some(work) = next(pair, &mut state) {
                waits = None;
                state = send(pair, state, &socket, &work);
                continue;
            }
        }
        state = wait(pair, state, &mut waits);
    }
}

/// Returns the control message that must be sent now, if any.
fn push_event(pair: &Pair, state: &mut State) -> Option<Header> {
    if let Some(refusal) = state.refusal.take() {
        return Some(refusal);
    }
    if state.has_failed || !pair.is_reliable() {
        return None;
    }
    let done = if pair.nic.faults.holds() {
        state.last_reported.0
    } else {
        state.done
    };
    let now = (done, state.receives_posted);
    (now != state.last_reported).then(|| {
        state.last_reported = now;
        Header::Control {
            done: now.0,
            receives: now.1,
        }
    })
}

/// Removes and returns the next request, if the peer can accept it.
fn next(pair: &Pair, state: &mut State) -> Option<Outgoing> {
    let needs_receive = state.outgoing.front()?.needs_receive() && pair.is_reliable();
    if needs_receive && state.peer_receives <= state.peer_used {
        return None;
    }
    let work = state.outgoing.pop_front()?;
    if needs_receive {
        state.peer_used += 1;
    }
    // The request is added before it is sent because the answer may arrive immediately.
    state.unanswered.push_back(work.posted);
    Some(work)
}

fn send<'a>(
    pair: &'a Pair,
    mut state: MutexGuard<'a, State>,
    socket: &TcpStream,
    work: &Outgoing,
) -> MutexGuard<'a, State> {
    let fault = pair.nic.faults.sending();
    let until = Instant::now() + fault.delay;
    while !state.is_ending && !state.is_cut && Instant::now() < until {
        let left = until.saturating_duration_since(Instant::now());
        state = pair
            .changed
            .wait_timeout(state, left)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
    let is_lost = fault.is_lost && !pair.is_reliable();
    if fault.cuts {
        // The message is sent, but its acknowledgement must never be processed, even if it arrives before the cut.
        state.ignore_acks_from = Some(work.posted.number);
    }
    let mut sent = Ok(());
    if !(is_lost || state.is_ending || state.is_cut) {
        drop(state);
        let head = [&work.header.encode()[..], &work.inline].concat();
        sent = transmit(socket, &head, &work.slices);
        state = pair.lock();
    }
    if let Err(SendError::Memory) = sent {
        pair.fail(&mut state, Some(work.posted.number), Status::Local);
    } else if !pair.is_reliable() && state.unanswered.pop_front().is_some() {
        // The sender of an unreliable message gets no information about its arrival.
        pair.succeed(&mut state, work.posted);
    }
    if sent.is_err() {
        pair.end_stream(&mut state);
    }
    if fault.kills {
        pair.fail(&mut state, None, Status::Other(0));
    }
    if fault.cuts || fault.kills {
        pair.end_stream(&mut state);
    }
    state
}

/// Waits for a request, or until the peer times out.
fn wait<'a>(
    pair: &'a Pair,
    mut state: MutexGuard<'a, State>,
    waits: &mut Option<Instant>,
) -> MutexGuard<'a, State> {
    let Some(first) = state.outgoing.front().map(|work| work.posted) else {
        *waits = None;
        return pair.wait(state);
    };
    let is_connected = state.socket.is_some() && !state.is_cut;
    if !pair.is_reliable() && state.is_cut {
        // The link is cut: an unreliable request succeeds without an effect.
        state.outgoing.pop_front();
        pair.succeed(&mut state, first);
        return state;
    }
    let peer_timeout = pair.nic.faults.peer_timeout();
    let left = peer_timeout.saturating_sub(waits.get_or_insert_with(Instant::now).elapsed());
    if left.is_zero() {
        *waits = None;
        let status = if is_connected {
            Status::NotReady
        } else {
            Status::Unanswered
        };
        if pair.is_reliable() {
            pair.fail(&mut state, Some(first.number), status);
            pair.end_stream(&mut state);
        } else {
            state.outgoing.pop_front();
            pair.succeed(&mut state, first);
        }
        return state;
    }
    pair.changed
        .wait_timeout(state, left)
        .unwrap_or_else(PoisonError::into_inner)
        .0
}

/// Sends all bytes. Fails only if the stream ends or the memory registration has ended.
fn transmit(socket: &TcpStream, head: &[u8], slices: &[MemorySlice]) -> Result<(), SendError> {
    let bytes = head.len() + slices.iter().map(|slice| slice.bytes).sum::<usize>();
    let mut done = 0;
    while done < bytes {
        match memory::send(socket.as_fd(), head, slices, done) {
            Ok(more) => done += more,
            Err(SendError::Network(error)) if error.kind() == ErrorKind::WouldBlock => {
                let _ = poll(&mut [PollFd::new(socket, PollFlags::OUT)], None);
            }
            Err(SendError::Network(error)) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
