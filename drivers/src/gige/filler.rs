//! The receiving thread of a camera: places the packets of its socket in the window, and requests lost packets.

use super::blocks::{MAX_REQUESTS, RETRY};
use super::gvcp::MAX_RESEND;
use super::placer::Placer;
use super::supervisor::{Link, Supervisor};
use crate::packet::datagram::split_message;
use crate::socket::SourceSocket;
use crate::sys::recv::{MESSAGE_BYTES, RecvBatch};
use daq_core::reorder::ReorderWindow;
use daq_core::source::{Filler, Polled, SourceError};
use rustix::net::{SendFlags, sendto};
use std::io;
use std::net::SocketAddrV4;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of messages per system call if each message is one packet.
const MESSAGES: usize = 64;
/// Maximum number of messages per system call if each message may contain many coalesced packets.
const COALESCED: usize = 8;

/// Size of the receive buffers in bytes.
pub(super) const MEMORY: usize = MESSAGES * MESSAGE_BYTES;

/// Receives from one camera.
pub(super) struct Receiver {
    /// Stops the camera when it is dropped. Must be dropped before the socket that the camera sends to.
    supervisor: Supervisor,
    link: Arc<Link>,
    /// The last set-up that was applied.
    generation: u64,
    camera: Option<SocketAddrV4>,
    socket: SourceSocket,
    placer: Placer,
    batch: RecvBatch,
    /// Maximum number of messages per receive call.
    messages: usize,
    /// Id of the last resend request.
    request: u16,
}

impl Receiver {
    pub(super) fn new(supervisor: Supervisor, socket: SourceSocket, placer: Placer) -> Self {
        Self {
            link: supervisor.link().clone(),
            supervisor,
            generation: 0,
            camera: None,
            socket,
            placer,
            batch: RecvBatch::plain(MESSAGES, MESSAGE_BYTES),
            messages: COALESCED,
            request: 0,
        }
    }

    /// Receives and places the available packets. Returns whether any packet was available.
    fn receive(&mut self, window: &mut ReorderWindow) -> io::Result<bool> {
        let count = self.batch.recv(&self.socket.socket, self.messages)?;
        // This check must follow the receive call, because the camera starts after it is stored.
        if let Some((camera, setup)) = self.link.renewed(&mut self.generation) {
            if self.camera.is_none() {
                self.begin()?;
            }
            self.camera = Some(camera);
            self.placer.begin(window, setup);
        }
        if count == 0 {
            return Ok(false);
        }
        let batch = &self.batch;
        let mut packets = 0;
        let datagrams = (0..count).flat_map(|message| {
            let about = batch.message(message);
            packets += about.packets();
            split_message(batch.bytes(message), about.segment)
        });
        let duplicate = self.placer.place(window, datagrams, Instant::now());
        self.socket.saw(batch, count, duplicate);
        self.messages = if packets > count { COALESCED } else { MESSAGES };
        Ok(true)
    }

    /// Begins to receive, once the socket accepts packets of the camera.
    #[cold]
    fn begin(&mut self) -> io::Result<()> {
        let dropped = self.socket.socket.mem_info()?.drops;
        self.socket.set_dropped_before(dropped);
        self.socket.socket.coalesce()
    }

    /// Sends the requests for lost packets, at most [`MAX_REQUESTS`].
    fn request_lost(&mut self) {
        let Some(camera) = self.camera else {
            return;
        };
        let mut message = [0; MAX_RESEND];
        for resend in self.placer.requests().drain(..).take(MAX_REQUESTS) {
            // Id 0 is not valid.
            self.request = self.request.wrapping_add(1).max(1);
            let bytes = resend.write(self.request, &mut message);
            // A request that is not sent is repeated like one that is lost.
            let _ = sendto(
                &self.socket.socket,
                &message[..bytes],
                SendFlags::DONTWAIT,
                &camera,
            );
        }
    }
}

impl Filler for Receiver {
    fn start(&mut self) -> Result<(), SourceError> {
        self.supervisor.start()
    }

    fn fill(
        &mut self,
        window: &mut ReorderWindow,
        timeout: Duration,
    ) -> Result<Polled, SourceError> {
        let got = self
            .receive(window)
            .map_err(|why| self.socket.error(&why))?;
        if let Some(mismatch) = self.placer.mismatch() {
            let camera = self
                .camera
                .map_or_else(String::new, |camera| camera.to_string());
            return Err(SourceError::new(format!("camera {camera}"), mismatch));
        }
        let has_holes = self.placer.has_holes();
        if has_holes {
            self.placer.sweep(Instant::now());
        }
        if !self.placer.requests().is_empty() {
            self.request_lost();
        }
        if !got || window.wants_drops() {
            self.socket.read_drops(window);
        }
        if got {
            return Ok(Polled::Busy);
        }
        self.socket.wait(if has_holes {
            timeout.min(RETRY)
        } else {
            timeout
        })
    }

    fn finish(&mut self, window: &mut ReorderWindow) {
        self.placer.finish(window);
    }
}
