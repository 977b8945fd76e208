//! The two threads of a queue pair's stream.

use super::{Pair, State};
use crate::emulated::{receiving, sending};
use crate::verbs::{Endpoint, Status};
use std::net::TcpStream;
use std::sync::Arc;

impl Pair {
    /// Connects to `peer`: over `stream` if this side has opened one, otherwise over a stream that the peer opens.
    pub(in crate::emulated) fn start_with(
        self: &Arc<Self>,
        peer: Endpoint,
        stream: Option<TcpStream>,
    ) {
        let mut state = self.lock();
        state.peer = Some(peer);
        let waiting = std::mem::take(&mut state.waiting);
        let theirs = || {
            let mut ours = waiting.into_iter();
            ours.find(|(_, preamble)| self.is_of(&state, preamble))
        };
        if let Some(stream) = stream.or_else(|| theirs().map(|(stream, _)| stream)) {
            self.start(&mut state, stream);
        }
        let pair = Arc::clone(self);
        self.spawn(&mut state, "send", move || sending::run(&pair));
    }

    pub(super) fn start(self: &Arc<Self>, state: &mut State, stream: TcpStream) {
        if state.socket.is_some() || state.is_ending || state.has_failed {
            return;
        }
        let prepared = stream
            .set_nonblocking(true)
            .and_then(|()| stream.set_nodelay(true));
        if prepared.is_err() {
            return;
        }
        let stream = Arc::new(stream);
        state.socket = Some(Arc::clone(&stream));
        let pair = Arc::clone(self);
        self.spawn(state, "receive", move || receiving::run(&pair, &stream));
        self.changed.notify_all();
    }

    /// Starts a thread of this queue pair. The queue pair fails if no thread can be started.
    fn spawn(&self, state: &mut State, what: &str, run: impl FnOnce() + Send + 'static) {
        let name = format!("{}-{what}", self.nic.name);
        match std::thread::Builder::new().name(name).spawn(run) {
            Ok(thread) => state.threads.push(thread),
            Err(error) => {
                tracing::warn!(target: "rdma", "cannot start a thread for a queue pair of an emulated NIC: {error}");
                self.fail(state, None, Status::Unanswered);
            }
        }
    }
}
