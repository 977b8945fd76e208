//! Copies of the newest frames, for the request `tap`.
//!
//! A thread of its own copies frames, because a copy from a GPU can hang. All other requests are then still served, and the
//! end of the run does not wait for the thread.

use super::OfferedRing;
use super::protocol::{self, refusal};
use crate::http::{TapBudget, TapCalls, mark_hung};
use daq_core::plan::PlannedRing;
use daq_core::ring::Tap;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::setpriority_process;
use serde_json::{Value, json};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Shortest time between two copies of frames of a ring. Requests in between get the last copy.
const COPY_INTERVAL: Duration = Duration::from_millis(100);
/// Time without requests after which the copy of a ring is freed.
const IDLE_TIME: Duration = Duration::from_secs(5);
/// Maximum number of requests that wait for the thread. A connection has at most one request. Further requests in the queue
/// belong to closed connections.
const MAX_REQUESTS: usize = 1024;
/// Maximum time that the end of the run waits for a copy.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Nice value of the thread, the lowest priority of Linux.
const NICE: i32 = 19;

/// The thread that copies frames, which starts with the first request.
#[derive(Debug)]
pub(super) struct Taps {
    /// Signalled when replies are ready.
    ready: Arc<OwnedFd>,
    thread: Option<TapThread>,
}

/// The reply to a request.
#[derive(Debug)]
pub(super) struct Reply {
    /// Token of the connection.
    pub(super) connection: u64,
    pub(super) packet: Value,
    /// A sealed file with the bytes of the frame.
    pub(super) file: Option<Arc<OwnedFd>>,
}

#[derive(Debug)]
struct TapThread {
    requests: SyncSender<Request>,
    replies: Receiver<Reply>,
    /// The rings of the requests without a reply. The thread copies a frame of the first one.
    rings: VecDeque<PlannedRing>,
    /// The ring of the last reply.
    replied: Option<PlannedRing>,
    calls: TapCalls,
    is_stopping: Arc<AtomicBool>,
    handle: JoinHandle<()>,
}

#[derive(Debug)]
struct Request {
    connection: u64,
    ring: OfferedRing,
    after: Option<u64>,
}

impl Taps {
    /// Returns an object without a thread, which signals replies with the eventfd `ready`.
    pub(super) const fn new(ready: Arc<OwnedFd>) -> Self {
        Self {
            ready,
            thread: None,
        }
    }

    /// Requests a copy of the newest frame of `ring`, at most about [`COPY_INTERVAL`] old. If no frame after the frame
    /// `after` was published, the reply has no frame.
    pub(super) fn request(
        &mut self,
        connection: u64,
        ring: OfferedRing,
        after: Option<u64>,
    ) -> Result<(), String> {
        let thread = match &mut self.thread {
            Some(thread) => thread,
            none => none.insert(TapThread::start(self.ready.clone()).map_err(|error| {
                format!("cannot start a thread: {error}; raise the limit on threads (TasksMax=)")
            })?),
        };
        let planned = ring.planned.clone();
        let request = Request {
            connection,
            ring,
            after,
        };
        thread.requests.try_send(request).map_err(|error| match error {
            TrySendError::Full(_) => format!(
                "{MAX_REQUESTS} requests wait for a copy of a frame; check the GPU with `nvidia-smi`"
            ),
            TrySendError::Disconnected(_) => {
                "the thread that taps rings has panicked; this is a defect in daq".to_owned()
            }
        })?;
        thread.rings.push_back(planned);
        Ok(())
    }

    /// Returns the replies that are ready.
    pub(super) fn replies(&mut self) -> Vec<Reply> {
        // The counter is 0 if the eventfd was not signalled since the last call.
        let _ = rustix::io::read(&self.ready, &mut [0; 8]);
        let Some(thread) = &mut self.thread else {
            return Vec::new();
        };
        let replies: Vec<_> = thread.replies.try_iter().collect();
        if let Some(ring) = thread.rings.drain(..replies.len()).next_back() {
            thread.replied = Some(ring);
        }
        replies
    }

    /// Returns why a request has no reply yet.
    pub(super) fn obstacle(&self) -> String {
        let thread = self.thread.as_ref();
        match thread.and_then(|thread| Some((thread, thread.rings.front()?))) {
            Some((thread, ring)) => {
                let (reason, _) = thread.calls.obstacle(ring.placement);
                format!(
                    "the copy of a frame of ring `{}` has not ended: {reason}",
                    ring.name
                )
            }
            None => "the machine is overloaded".to_owned(),
        }
    }
}

impl Drop for Taps {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.end(END_TIMEOUT);
        }
    }
}

impl TapThread {
    fn start(ready: Arc<OwnedFd>) -> io::Result<Self> {
        let (requests, received) = mpsc::sync_channel(MAX_REQUESTS);
        let (send, replies) = mpsc::channel();
        let is_stopping = Arc::new(AtomicBool::new(false));
        let stopping = is_stopping.clone();
        let calls = TapCalls::default();
        let copies = Copies::new(calls.clone());
        let handle = std::thread::Builder::new()
            .name("daq-attach-tap".to_owned())
            .spawn(move || run(copies, &received, &send, &ready, &stopping))?;
        Ok(Self {
            requests,
            replies,
            rings: VecDeque::new(),
            replied: None,
            calls,
            is_stopping,
            handle,
        })
    }

    /// Ends the thread. If a GPU does not end a copy within `limit`, the thread and its memory are leaked.
    fn end(mut self, limit: Duration) {
        self.is_stopping.store(true, Ordering::Release);
        drop(self.requests);
        let start = Instant::now();
        loop {
            let rest = limit.saturating_sub(start.elapsed());
            match self.replies.recv_timeout(rest) {
                Ok(_) => self.replied = self.rings.pop_front(),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    // Without a request, the thread frees its copies.
                    let ring = self.rings.front().or(self.replied.as_ref());
                    return leak(ring, &self.calls, limit);
                }
            }
        }
        if self.handle.join().is_err() {
            tracing::error!("the thread that taps rings panicked; this is a defect in daq");
        }
    }
}

/// Reports that the thread, which works for `ring`, does not end. The thread keeps all memory that a GPU may use.
fn leak(ring: Option<&PlannedRing>, calls: &TapCalls, limit: Duration) {
    // The thread starts with a request.
    let Some(ring) = ring else { return };
    let (reason, hung) = calls.obstacle(ring.placement);
    hung.into_iter().for_each(mark_hung);
    tracing::error!(
        "attach: the copy of a frame of ring {} from {} has not ended within {limit:?}: {reason}; its memory is leaked until \
         the process exits",
        ring.name,
        ring.placement
    );
}

/// Copies frames until there are no more requests.
fn run(
    mut copies: Copies,
    requests: &Receiver<Request>,
    replies: &Sender<Reply>,
    ready: &OwnedFd,
    is_stopping: &AtomicBool,
) {
    // Without permission to change it, the priority stays that of the server.
    let _ = setpriority_process(None, NICE);
    loop {
        let received = requests.recv_timeout(IDLE_TIME);
        copies.free_idle();
        let request = match received {
            Ok(_) if is_stopping.load(Ordering::Acquire) => return,
            Ok(request) => request,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if replies.send(copies.reply(&request)).is_err() {
            return;
        }
        // The counter has room for more replies than there can be.
        let _ = rustix::io::write(ready, &1_u64.to_ne_bytes());
    }
}

/// The newest copies, by ring.
#[derive(Debug)]
struct Copies {
    rings: BTreeMap<String, Tapped>,
    calls: TapCalls,
}

/// A ring of which clients request frames.
#[derive(Debug)]
struct Tapped {
    tap: Tap,
    newest: Option<Copied>,
    copied: Option<Instant>,
    requested: Instant,
}

/// A copy of a frame.
#[derive(Debug)]
struct Copied {
    index: u64,
    /// The description of the frame.
    frame: Value,
    /// A sealed file with the bytes of the frame.
    file: Arc<OwnedFd>,
}

impl Copies {
    const fn new(calls: TapCalls) -> Self {
        Self {
            rings: BTreeMap::new(),
            calls,
        }
    }

    fn reply(&mut self, request: &Request) -> Reply {
        let ring = &request.ring;
        let layout = ring.layout();
        // If the ring is closed now, the copy is that of its last frame.
        let closed = ring.ring.is_closed();
        let (packet, file) = match self.newest(ring, request.after, closed) {
            Ok(Some(copied)) => (
                json!({ "ok": true, "frame": copied.frame, "layout": layout }),
                Some(copied.file.clone()),
            ),
            Ok(None) => (
                json!({ "ok": true, "frame": null, "layout": layout, "closed": closed }),
                None,
            ),
            Err(error) => (refusal(&error), None),
        };
        Reply {
            connection: request.connection,
            packet,
            file,
        }
    }

    /// Returns a copy of the newest frame of a ring; `None` if no frame after the frame `after` was published. If the ring
    /// `is_closed`, a recent copy may not be that of the newest frame. The error names what failed.
    fn newest(
        &mut self,
        offered: &OfferedRing,
        after: Option<u64>,
        is_closed: bool,
    ) -> Result<Option<&Copied>, String> {
        let name = &offered.planned.name;
        let tapped = match self.rings.entry(name.clone()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let tap = self.calls.run(|| offered.ring.tap());
                entry.insert(Tapped {
                    tap: tap.map_err(|error| format!("cannot tap ring `{name}`: {error}"))?,
                    newest: None,
                    copied: None,
                    requested: Instant::now(),
                })
            }
        };
        tapped.requested = Instant::now();
        tapped
            .copy(&offered.planned, is_closed, &self.calls)
            .map_err(|why| format!("cannot copy a frame of ring `{name}`: {why}"))?;
        let newest = tapped.newest.as_ref();
        Ok(newest.filter(|copied| after.is_none_or(|after| copied.index > after)))
    }

    /// Frees copies that no client requests.
    fn free_idle(&mut self) {
        let rings = &mut self.rings;
        self.calls
            .run(|| rings.retain(|_, tapped| tapped.requested.elapsed() < IDLE_TIME));
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        let rings = std::mem::take(&mut self.rings);
        self.calls.run(|| drop(rings));
    }
}

impl Tapped {
    /// Copies the newest frame, unless the last copy is recent and the ring is open.
    fn copy(
        &mut self,
        planned: &PlannedRing,
        is_closed: bool,
        calls: &TapCalls,
    ) -> Result<(), String> {
        // Large frames are copied less often, so that copies use little of the memory's bandwidth.
        let interval = COPY_INTERVAL.max(TapBudget::of(planned.slot_bytes).period());
        let is_recent = self
            .copied
            .is_some_and(|copied| copied.elapsed() < interval);
        if is_recent && !is_closed {
            return Ok(());
        }
        let newest = calls
            .run(|| self.tap.newest())
            .map_err(|error| error.to_string())?;
        if let Some(frame) = newest {
            let file = sealed(frame.bytes())
                .map_err(|error| format!("{error}; raise the limits on memory and open files"))?;
            self.newest = Some(Copied {
                index: frame.index(),
                frame: protocol::frame(frame.index(), frame.meta(), frame.present(), &planned.kept),
                file: Arc::new(file),
            });
            self.copied = Some(Instant::now());
        }
        Ok(())
    }
}

/// Returns a file in memory with the given content, which no process can change.
fn sealed(bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(rustix::fs::memfd_create("daq-frame", flags)?);
    file.write_all(bytes)?;
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::frame::{FrameMeta, PacketSizes};
    use daq_core::layout::Samples;
    use daq_core::ledger::RingLedger;
    use daq_core::region::Placement;
    use daq_core::ring::Fill;
    use daq_testkit::ring::RingFixture;
    use std::os::unix::fs::FileExt;

    /// Returns the offer of the ring of `fixture` with slots of 8 bytes.
    fn offered(fixture: &RingFixture) -> OfferedRing {
        let planned = PlannedRing {
            share: None,
            name: "raw".to_owned(),
            placement: Placement::Host,
            reason: String::new(),
            writer: None,
            mapping: None,
            mapping_reason: String::new(),
            inserted: None,
            slots: 4,
            slot_bytes: 8,
            packets_per_frame: 0,
            packet_sizes: PacketSizes::default(),
            kept: Vec::new(),
            supports_backpressure: false,
            fill: Fill::default(),
            node: None,
            lock: false,
            huge: false,
            attach: None,
            layout: Samples::default().layout(8).unwrap(),
            is_layout_maximum: false,
            producer: "adc".to_owned(),
            readers: Vec::new(),
            region_bytes: 32,
            metadata_bytes: 0,
        };
        OfferedRing {
            ring: fixture.ring.clone(),
            planned,
            ledger: RingLedger::default(),
        }
    }

    #[test]
    fn last_frame_of_a_closed_ring_is_copied_immediately() {
        let mut fixture = RingFixture::host("raw", 4, 8);
        let ring = offered(&fixture);
        let mut copies = Copies::new(TapCalls::default());
        let mut reply = |after| {
            let request = Request {
                connection: 0,
                ring: ring.clone(),
                after,
            };
            copies.reply(&request).packet
        };
        fixture.write(&[(FrameMeta::whole(0, 8), vec![1; 8])]);
        assert_eq!(reply(None)["frame"]["index"], 0);
        fixture.write(&[(FrameMeta::whole(1, 8), vec![2; 8])]);
        drop(fixture.producer);
        assert_eq!(reply(Some(0))["frame"]["index"], 1);
        let last = reply(Some(1));
        assert_eq!(
            (&last["frame"], &last["closed"]),
            (&Value::Null, &true.into())
        );
    }

    #[test]
    fn only_a_gpu_that_is_called_is_named() {
        let calls = TapCalls::default();
        let gpu = Placement::Cuda(1);
        assert_eq!(calls.obstacle(gpu).1, None);
        assert_eq!(calls.run(|| calls.obstacle(Placement::Host)).1, None);
        let (reason, hung) = calls.run(|| calls.obstacle(gpu));
        assert_eq!(hung, Some(1));
        assert!(reason.starts_with("cuda:1 does not respond"), "{reason}");
    }

    #[test]
    fn sealed_file_cannot_be_changed() {
        let file = File::from(sealed(b"frame").unwrap());
        let mut bytes = [0; 5];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"frame");
        let error = file.write_at(b"x", 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(file.set_len(4).is_err());
    }
}
