//! One connection, and what its client does.

use super::attachment::Attachment;
use super::protocol::{self, Attach, Packet, Progress, Request, refusal};
use super::relay::Relay;
use super::socket::{self, Peer};
use super::taps::{Reply, Taps};
use super::{Offer, OfferedRing};
use daq_core::log_limit::LogLimit;
use daq_core::region::{ShareError, SharedMemory};
use daq_core::ring::SharedRing;
use rustix::io::Errno;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval at which clients with a guarantee, and clients that wait for the copy of a frame, are checked.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum time that a client waits for the copy of a frame.
const TAP_TIMEOUT: Duration = Duration::from_secs(4);

/// Whether the server continues to serve a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A packet was handled; there may be more.
    Continue,
    /// There is no packet.
    Wait,
    /// The client waits for the copy of a frame. Its next packet is handled after the reply.
    Suspend,
    /// The connection must be closed.
    Close,
}

/// A ring that clients have attached to.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) files: SharedRing,
    pub(super) relay: Relay,
}

/// The state that all connections share.
#[derive(Debug)]
pub(super) struct Serving {
    offer: Offer,
    taps: Taps,
    shared: BTreeMap<String, Shared>,
    revocations: LogLimit,
}

impl Serving {
    /// Serves `offer`. Signals the eventfd `tapped` when there are [replies](Self::replies).
    pub(super) fn new(offer: Offer, tapped: Arc<OwnedFd>) -> Self {
        Self {
            offer,
            taps: Taps::new(tapped),
            shared: BTreeMap::new(),
            revocations: LogLimit::new(),
        }
    }

    /// Returns the replies to requests for copies of frames.
    pub(super) fn replies(&mut self) -> Vec<Reply> {
        self.taps.replies()
    }

    fn list(&self) -> Value {
        let rings = self.offer.rings.values();
        json!({
            "ok": true,
            "pipeline": self.offer.pipeline,
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "ready": (self.offer.ready.0)(),
            "http": self.offer.http.map(|address| address.to_string()),
            "rings": rings.map(|ring| self.describe(ring)).collect::<Value>(),
            "sources": self.sources(),
        })
    }

    fn describe(&self, offered: &OfferedRing) -> Value {
        let OfferedRing { ring, planned, .. } = offered;
        json!({
            "name": planned.name,
            "memory": planned.placement.to_string(),
            "slots": planned.slots,
            "slot_bytes": planned.slot_bytes,
            "layout": offered.layout(),
            "published": ring.published(),
            "closed": ring.is_closed(),
            "attachable": offered.obstacle().map_or(Value::Bool(true), Value::String),
            "guarantee": planned.attach.is_some_and(|attach| attach.guarantee),
            "clients": self.offer.clients.count(&planned.name),
        })
    }

    fn sources(&self) -> Value {
        let sources = self.offer.sources.iter();
        let sources = sources.map(|(name, source)| {
            json!({ "name": name, "ring": source.ring, "frame_bytes": source.frame_bytes })
        });
        sources.collect()
    }

    /// Passes the connection `socket` to a source. Returns the reply.
    fn produce(&self, source: &str, socket: OwnedFd, files: Vec<OwnedFd>) -> Result<Value, String> {
        let offered = self.offer.sources.get(source).ok_or_else(|| {
            let names: Vec<_> = self.offer.sources.keys().map(String::as_str).collect();
            format!(
                "no process can produce the frames of source `{}`; sources with the driver `process`: {}",
                protocol::shown(source),
                if names.is_empty() { "none".to_owned() } else { names.join(", ") }
            )
        })?;
        let Ok([inbox]) = <[OwnedFd; 1]>::try_from(files) else {
            return Err("`produce` needs one file descriptor: the inbox".to_owned());
        };
        let slots = offered.inlet.connect(socket, inbox, offered.frame_bytes)?;
        Ok(json!({
            "ok": true,
            "source": { "name": source, "ring": offered.ring, "frame_bytes": offered.frame_bytes, "slots": slots },
        }))
    }

    /// Returns the ring called `name`; the error lists the names of all rings.
    fn ring(&self, name: &str) -> Result<&OfferedRing, String> {
        self.offer.rings.get(name).ok_or_else(|| {
            let names: Vec<_> = self.offer.rings.keys().map(String::as_str).collect();
            format!(
                "pipeline `{}` has no ring `{}`; its rings are {}",
                self.offer.pipeline,
                protocol::shown(name),
                names.join(", ")
            )
        })
    }

    /// Attaches the process `peer` to a ring. Returns the attachment and the reply.
    fn attach(&mut self, peer: &Peer, request: &Attach) -> Result<(Attachment, Value), String> {
        let offered = self.ring(&request.ring)?.clone();
        if let Some(obstacle) = offered.obstacle() {
            return Err(format!(
                "cannot attach to ring `{}`: {obstacle}",
                request.ring
            ));
        }
        if !self.shared.contains_key(&request.ring) {
            let shared = Shared::new(&offered)
                .map_err(|why| format!("cannot attach to ring `{}`: {why}", request.ring))?;
            self.shared.insert(request.ring.clone(), shared);
        }
        let shared = &self.shared[&request.ring];
        let attachment = Attachment::new(
            &offered,
            &self.offer.clients,
            peer,
            request,
            shared.relay.serve(),
        )?;
        let mut ring = shared.describe(&offered);
        ring["first"] = attachment.first().into();
        if let Some(hold) = attachment.hold() {
            ring["hold"] = hold.as_secs_f64().into();
        }
        tracing::debug!(
            "attach: {} ({}) reads ring {}",
            attachment.name(),
            protocol::shown(&request.client),
            request.ring
        );
        Ok((attachment, json!({ "ok": true, "ring": ring })))
    }
}

impl OfferedRing {
    pub(super) fn layout(&self) -> Value {
        protocol::layout(&self.planned.layout, self.planned.is_layout_maximum)
    }

    /// Returns the reason why no process can attach, as far as it is known without sharing the memory.
    fn obstacle(&self) -> Option<String> {
        if self.planned.attach.is_none() {
            return Some(ShareError::Private.to_string());
        }
        let mapping = self.ring.region().mapping()?;
        Some(ShareError::Mapped(mapping.backend()).to_string())
    }
}

impl Shared {
    fn new(offered: &OfferedRing) -> Result<Self, String> {
        let files = offered.ring.share().map_err(|error| error.to_string())?;
        let relay = Relay::start(offered.ring.clone()).map_err(|error| {
            format!("cannot start a thread: {error}; raise the limit on threads (TasksMax=)")
        })?;
        Ok(Self { files, relay })
    }

    /// Returns the descriptors that an attached client receives.
    fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        let memory = match &self.files.memory {
            SharedMemory::Host(file) | SharedMemory::Cuda { file, .. } => file,
        };
        [self.files.state.as_fd(), memory.as_fd()]
    }

    fn describe(&self, offered: &OfferedRing) -> Value {
        let (files, options) = (&self.files, offered.ring.options());
        json!({
            "name": options.name,
            "memory": match &files.memory {
                SharedMemory::Host(_) => json!({ "kind": "host" }),
                SharedMemory::Cuda { ordinal, uuid, bytes, .. } => {
                    json!({ "kind": "cuda", "ordinal": ordinal, "uuid": uuid, "bytes": bytes })
                }
            },
            "slots": options.slots,
            "slot_bytes": options.slot_bytes,
            "stride": options.stride(),
            "records": files.records,
            "record_stride": files.record_stride,
            "bitmap_words": files.bitmap_words,
            "packets_per_frame": options.packets_per_frame,
            "kept": options.kept,
            "fill": options.fill.pattern(),
            "layout": offered.layout(),
        })
    }
}

/// A connection to a client.
#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    /// Identifies this connection.
    token: u64,
    peer: Peer,
    attachment: Option<Attachment>,
    /// Time of the request for a copy of a frame, until the reply is sent.
    tapped: Option<Instant>,
}

impl Connection {
    pub(super) const fn new(socket: OwnedFd, token: u64, peer: Peer) -> Self {
        Self {
            socket,
            token,
            peer,
            attachment: None,
            tapped: None,
        }
    }

    /// Returns the socket.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether the client has not attached.
    pub(super) const fn is_idle(&self) -> bool {
        self.attachment.is_none()
    }

    /// Returns the interval at which [`check`](Self::check) must be called; `None` if nothing depends on time.
    pub(super) fn interval(&self) -> Option<Duration> {
        let is_guaranteed = self
            .attachment
            .as_ref()
            .and_then(Attachment::hold)
            .is_some();
        (is_guaranteed || self.tapped.is_some()).then_some(CHECK_INTERVAL)
    }

    /// Handles the next packet of the client. Returns [`Outcome::Wait`] if the client has sent no packet. Never waits.
    pub(super) fn turn(&mut self, serving: &mut Serving, buffer: &mut [u8]) -> Outcome {
        if self.tapped.is_some() {
            // The only events of a suspended connection are its end and its failure.
            return Outcome::Close;
        }
        let received = match socket::receive(&self.socket, buffer) {
            Ok(received) => received,
            Err(Errno::AGAIN) => return Outcome::Wait,
            // The client has closed its end with unread packets. Linux reports this once; its own packets follow.
            Err(Errno::CONNRESET) => return Outcome::Continue,
            Err(_) => return Outcome::Close,
        };
        if received.length == 0 {
            return Outcome::Close;
        }
        let packet = if received.is_truncated {
            Err(format!("a packet can have at most {} bytes", buffer.len()))
        } else {
            Packet::parse(&buffer[..received.length])
        };
        if self.attachment.is_some() {
            let result = match packet {
                Ok(Packet::Progress(progress)) => self.progress(&progress),
                Ok(Packet::Request(_)) => Err(
                    "it sent another request after it had attached; open another connection"
                        .to_owned(),
                ),
                Err(error) => Err(error),
            };
            return match result {
                Ok(()) => Outcome::Continue,
                Err(why) => self.revoke(serving, &why),
            };
        }
        match packet {
            Ok(Packet::Request(Request::Produce { source })) => {
                self.produce(serving, &source, received.files)
            }
            Ok(Packet::Request(request)) => self.serve(serving, &request),
            Ok(Packet::Progress(_)) => {
                self.reply(
                    &refusal("progress before `attach`; attach to a ring first"),
                    &[],
                );
                Outcome::Close
            }
            Err(error) => {
                self.reply(&refusal(&error), &[]);
                Outcome::Close
            }
        }
    }

    fn serve(&mut self, serving: &mut Serving, request: &Request) -> Outcome {
        match request {
            Request::List {} => self.reply(&serving.list(), &[]),
            Request::Tap { ring, after } => self.tap(serving, ring, *after),
            // The caller has handled this request.
            Request::Produce { .. } => Outcome::Close,
            Request::Attach(request) => match serving.attach(&self.peer, request) {
                Ok((attachment, reply)) => {
                    self.attachment = Some(attachment);
                    self.reply(&reply, &serving.shared[&request.ring].descriptors())
                }
                Err(error) => self.reply(&refusal(&error), &[]),
            },
        }
    }

    /// Passes the connection to a source, whose thread serves it from then on.
    fn produce(&self, serving: &Serving, source: &str, files: Vec<OwnedFd>) -> Outcome {
        let passed = rustix::io::fcntl_dupfd_cloexec(&self.socket, 0)
            .map_err(|error| format!("cannot pass the connection: {error}"))
            .and_then(|socket| serving.produce(source, socket, files));
        match passed {
            Ok(reply) => {
                tracing::debug!(
                    "attach: {} produces frames of source {source}",
                    self.peer.program
                );
                self.reply(&reply, &[]);
                Outcome::Close
            }
            Err(error) => self.reply(&refusal(&error), &[]),
        }
    }

    fn tap(&mut self, serving: &mut Serving, ring: &str, after: Option<u64>) -> Outcome {
        let offered = serving.ring(ring).cloned();
        match offered.and_then(|offered| serving.taps.request(self.token, offered, after)) {
            Ok(()) => {
                self.tapped = Some(Instant::now());
                Outcome::Suspend
            }
            Err(error) => self.reply(&refusal(&error), &[]),
        }
    }

    /// Sends the reply for which the client waits.
    pub(super) fn finish_tap(&mut self, reply: &Reply) -> Outcome {
        self.tapped = None;
        let file = reply.file.iter().map(|file| file.as_fd());
        self.reply(&reply.packet, &file.collect::<Vec<_>>())
    }

    fn progress(&mut self, progress: &Progress) -> Result<(), String> {
        match &mut self.attachment {
            Some(attachment) => attachment.progress(progress),
            None => Ok(()),
        }
    }

    /// Disconnects a client that broke a rule.
    fn revoke(&self, serving: &Serving, why: &str) -> Outcome {
        if let Some(attachment) = &self.attachment {
            attachment.count_revoked();
            serving.revocations.run(|suppressed| {
                tracing::warn!(
                    "attach: revoked {} from ring {}: {why}{suppressed}",
                    attachment.name(),
                    attachment.ring()
                );
            });
        }
        self.reply(&json!({ "revoked": why }), &[]);
        Outcome::Close
    }

    /// Sends a packet. A client whose socket is full does not read its replies, so its connection is closed.
    fn reply(&self, packet: &Value, files: &[BorrowedFd<'_>]) -> Outcome {
        let packet = packet.to_string();
        let packet = if packet.len() <= socket::MAX_PACKET {
            packet
        } else {
            let error = "the reply does not fit into a packet; use `/status` of the HTTP server";
            refusal(error).to_string()
        };
        match socket::send(&self.socket, packet.as_bytes(), files, false) {
            Ok(()) => Outcome::Continue,
            Err(_) => Outcome::Close,
        }
    }

    /// Checks what depends on time.
    pub(super) fn check(&mut self, serving: &Serving) -> Outcome {
        if self
            .tapped
            .is_some_and(|since| since.elapsed() > TAP_TIMEOUT)
        {
            let error = format!(
                "no copy of a frame for {} s: {}",
                TAP_TIMEOUT.as_secs(),
                serving.taps.obstacle()
            );
            self.reply(&refusal(&error), &[]);
            return Outcome::Close;
        }
        match self.attachment.as_mut().map(Attachment::check) {
            Some(Err(why)) => self.revoke(serving, &why),
            _ => Outcome::Wait,
        }
    }

    /// Informs the client that the run has ended.
    pub(super) fn end(&self) {
        if !self.is_idle() {
            self.reply(&json!({ "ended": true }), &[]);
        }
    }
}
