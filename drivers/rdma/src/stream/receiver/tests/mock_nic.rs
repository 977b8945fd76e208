//! Tests of the receiver with mock NICs, which return exactly the completions that a test specifies.

use super::super::*;
use super::fixture::{self, PACKETS_PER_FRAME, PRESENT, SLOT, STRIDE};
use crate::connect::exchange::Frame;
use crate::connect::handshake::{Arrival, Transport};
use crate::connect::mock::{MockPort, rail};
use crate::connect::{self, ConnectError, PeerMonitor};
use crate::verbs::{
    Endpoint, Limits, MemoryRegion, NicEvent, Port, QueuePair, QueuePairOptions,
    RegistrationMethod, Sge, Side, Status, VerbsError, WorkCompletion, WorkRequest,
};
use crate::wire::{Hello, KeptNames, Record, SamplePlaces};
use daq_core::region::{Placement, Region};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// The results that the mock NIC returns, and the calls that it has received.
#[derive(Default)]
struct Script {
    done: Mutex<VecDeque<WorkCompletion>>,
    /// Completions that are returned only after the queue pair is stopped.
    late: Mutex<VecDeque<WorkCompletion>>,
    dropped: Mutex<Vec<&'static str>>,
    events: Mutex<VecDeque<NicEvent>>,
    /// The number of frames in the sender's close message.
    final_frames: Mutex<Option<u64>>,
    /// True: a connected sender stays silent until it is disconnected.
    is_silent: AtomicBool,
    is_aborted: AtomicBool,
    posted: Mutex<usize>,
    polled: Mutex<usize>,
}

impl Script {
    fn record_drop(&self, what: &'static str) {
        self.dropped.lock().unwrap().push(what);
    }
}

struct MockNic(Arc<Script>);

impl fmt::Debug for MockNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("scripted")
    }
}

/// Records the drop of a value.
struct DropRecorder(Arc<Script>, &'static str);

impl Drop for DropRecorder {
    fn drop(&mut self) {
        self.0.record_drop(self.1);
    }
}

impl Nic for MockNic {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn limits(&self) -> Limits {
        Limits {
            max_work: 64,
            max_completions: 64,
            max_sges: 2,
            max_message: 1 << 20,
            max_inline: 8,
        }
    }

    fn port(&self) -> Result<Port, VerbsError> {
        Ok(Port {
            number: 1,
            is_active: true,
            is_ethernet: true,
            mtu: 4096,
            lid: 0,
            gid_index: 0,
            gid: [0; 16],
        })
    }

    fn register(
        &self,
        region: &Arc<Region>,
        method: RegistrationMethod,
        _: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        let recorder = Box::new(DropRecorder(self.0.clone(), "key"));
        Ok(MemoryRegion::new(
            recorder,
            region.clone(),
            method,
            (1, 2),
            4096,
        ))
    }

    fn create_queue_pair(&self, _: &QueuePairOptions) -> Result<Box<dyn QueuePair>, VerbsError> {
        Ok(Box::new(MockQueuePair(DropRecorder(
            self.0.clone(),
            "queue",
        ))))
    }

    fn event(&self) -> Option<NicEvent> {
        self.0.events.lock().unwrap().pop_front()
    }
}

struct MockQueuePair(DropRecorder);

impl QueuePair for MockQueuePair {
    fn endpoint(&self) -> Endpoint {
        Endpoint::default()
    }

    fn connect(&mut self, _: &Endpoint) -> Result<(), VerbsError> {
        Ok(())
    }

    fn post_send(&mut self, _: &WorkRequest<'_>) -> Result<(), VerbsError> {
        Ok(())
    }

    fn post_receive(&mut self, _: u64, _: &[Sge<'_>]) -> Result<(), VerbsError> {
        *self.0.0.posted.lock().unwrap() += 1;
        Ok(())
    }

    fn poll(&mut self, done: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        let mut script = self.0.0.done.lock().unwrap();
        let count = script.len().min(done.len());
        for (to, from) in done.iter_mut().zip(script.drain(..count)) {
            *to = from;
        }
        *self.0.0.polled.lock().unwrap() += count;
        Ok(count)
    }

    fn stop(&mut self) -> Result<(), VerbsError> {
        let mut script = self.0.0.done.lock().unwrap();
        let (posted, polled) = (
            *self.0.0.posted.lock().unwrap(),
            *self.0.0.polled.lock().unwrap(),
        );
        script.extend(self.0.0.late.lock().unwrap().drain(..));
        let open = posted.saturating_sub(polled + script.len());
        script.extend(std::iter::repeat_n(
            WorkCompletion {
                side: Side::Received,
                status: Status::Flushed,
                ..WorkCompletion::default()
            },
            open,
        ));
        Ok(())
    }

    fn wait(&mut self, _: Duration) -> Result<bool, VerbsError> {
        Ok(false)
    }
}

/// Reports the sender as connected until the sender has sent its close message.
struct MockMonitor(Arc<Script>);

impl PeerMonitor for MockMonitor {
    fn poll_disconnect(&mut self) -> Option<connect::Disconnect> {
        self.0
            .final_frames
            .lock()
            .unwrap()
            .map(|frames| connect::Disconnect {
                final_frames: Some(frames),
                why: "the peer has ended".to_owned(),
            })
    }

    fn close(&mut self, _: u64) {}
}

struct MockTransport(Arc<Script>);

impl Transport for MockTransport {
    fn peer(&self) -> String {
        "peer".to_owned()
    }

    fn send(&mut self, message: &Frame, _: Instant) -> Result<(), ConnectError> {
        match message {
            Frame::Refusal(why) => panic!("refused: {why}"),
            _ => Ok(()),
        }
    }

    fn receive(&mut self, _: Instant) -> Result<Frame, ConnectError> {
        let is_silent = || self.0.is_silent.load(Ordering::Acquire);
        while is_silent() && !self.0.is_aborted.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        if is_silent() {
            return Err(ConnectError::Cancelled);
        }
        Ok(Frame::Ready)
    }

    fn abort_handle(&self) -> connect::AbortHandle {
        let script = self.0.clone();
        Box::new(move || script.is_aborted.store(true, Ordering::Release))
    }

    fn monitor(self: Box<Self>) -> Box<dyn PeerMonitor> {
        Box::new(MockMonitor(self.0))
    }
}

struct MockFixture {
    engine: Receiver,
    script: Arc<Script>,
    memory: DmaBuffer,
    completions: Completions,
}

const SLOTS: usize = 4;

impl MockFixture {
    fn new(mode: Mode, service: Service) -> Self {
        let mut stage = Self::with(Arc::default(), mode, service);
        while stage.engine.link.is_none() {
            stage.poll();
        }
        stage
    }

    fn with(script: Arc<Script>, mode: Mode, service: Service) -> Self {
        let hello = Hello {
            mode,
            rails: 1,
            packets_per_frame: PACKETS_PER_FRAME,
            stream: 1,
            slot: SLOT as u64,
            ..Hello::default()
        };
        let options = Options {
            name: "test".to_owned(),
            mode,
            service,
            packets_per_frame: PACKETS_PER_FRAME,
            kept: KeptNames::default(),
            places: SamplePlaces::default(),
            relaxed: false,
            counters: Counters::default(),
        };
        let nic: Arc<dyn Nic> = Arc::new(MockNic(script.clone()));
        let transport = Box::new(MockTransport(script.clone()));
        let arrival = Arrival::Connector(transport, rail(hello.encode(), service));
        let listener = MockPort([arrival].into()).listener();
        let mut engine = Receiver::new(&options, vec![nic], listener).unwrap();
        let memory = DmaBuffer::new(engine.device().clone(), SLOTS * STRIDE).unwrap();
        let addresses = (0..SLOTS).map(|slot| memory.address() + (slot * STRIDE) as u64);
        let slots = Slots {
            addresses: addresses.collect(),
            bytes: SLOT,
            first: 0,
            doorbell: None,
            placement: Placement::Host,
        };
        // SAFETY: the mock NIC writes only to memory that outlives the engine.
        unsafe { engine.arm(&slots) }.unwrap();
        engine.credit(u32::try_from(SLOTS).unwrap());
        Self {
            engine,
            script,
            memory,
            completions: Completions::with_packets_per_frame(
                SLOTS,
                FAULTS.len(),
                PACKETS_PER_FRAME,
            ),
        }
    }

    /// Polls once; returns the number, the missing frames and the skipped slots of each reported frame.
    fn poll(&mut self) -> Vec<(u64, u64, u64)> {
        self.completions.clear(usize::MAX);
        self.engine.poll(&mut self.completions).unwrap();
        let completed = self.completions.as_slice().iter();
        completed
            .map(|done| {
                (
                    done.origin.unwrap().sequence - 1000,
                    done.missing,
                    done.passed,
                )
            })
            .collect()
    }

    fn fault(&self, name: &str) -> u64 {
        self.completions.faults()[FAULTS.iter().position(|fault| *fault == name).unwrap()]
    }

    /// Stores a record for the frame in `slot`.
    fn lay(&self, slot: usize, record: &Record) {
        let mut bytes = vec![0; Record::bytes(PACKETS_PER_FRAME, 0)];
        record.encode(PRESENT.into_iter(), &mut bytes);
        let records = self.engine.records.as_ref().unwrap();
        for (i, word) in bytes.chunks_exact(8).enumerate() {
            let at = slot * bytes.len() + 8 * i;
            records.write64(at, u64::from_le_bytes(word.try_into().unwrap()));
        }
    }

    fn finish(&self, bytes: usize, immediate: Option<u32>) {
        self.script.done.lock().unwrap().push_back(WorkCompletion {
            side: Side::Received,
            bytes: u32::try_from(bytes).unwrap(),
            immediate,
            ..WorkCompletion::default()
        });
    }

    /// Simulates that frame `n` arrives completely in its slot over an unreliable connection.
    fn frame(&self, n: u64) {
        self.lay(usize::try_from(n).unwrap() % SLOTS, &fixture::record(n));
        self.finish(fixture::length(n), Some(fixture::low(n)));
    }
}

#[test]
fn lost_unreliable_frames_are_skipped() {
    let mut stage = MockFixture::new(Mode::Write, Service::Uc);
    assert!(!stage.engine.caps().supports_backpressure);
    stage.frame(0);
    stage.frame(2);
    assert_eq!(stage.poll(), [(0, 0, 0), (2, 1, 1)]);
    assert_eq!(
        stage.engine.overwritten().unwrap(),
        0,
        "frames that are being copied cannot be overwritten"
    );
    // This poll credits the slots of frames that were copied.
    assert_eq!(stage.poll(), []);
    // The record of frame 3 is lost, so its slot still contains the record of an earlier frame. The payload of frame 4
    // is lost.
    stage.finish(fixture::length(3), Some(3));
    stage.frame(5);
    assert_eq!(stage.poll(), [(5, 2, 2)]);
    assert_eq!(stage.engine.overwritten().unwrap(), 3);
    assert_eq!(stage.poll(), []);
    assert_eq!(stage.engine.overwritten().unwrap(), 6);
}

#[test]
fn unreliable_payload_of_wrong_length_is_not_delivered() {
    let mut stage = MockFixture::new(Mode::Write, Service::Uc);
    stage.lay(0, &fixture::record(0));
    stage.finish(Record::bytes(PACKETS_PER_FRAME, 0), Some(0));
    assert_eq!(stage.poll(), []);
    assert_eq!(stage.fault("bad-record"), 1);
    let mut stage = MockFixture::new(Mode::Write, Service::Uc);
    // Frame 4 exceeds the credits.
    stage.frame(4);
    assert_eq!((stage.poll(), stage.fault("bad-record")), (vec![], 1));
}

#[test]
fn loss_at_end_is_known_from_sender_detach() {
    for (mode, service) in [(Mode::Write, Service::Uc), (Mode::Send, Service::Ud)] {
        let mut stage = MockFixture::new(mode, service);
        let frame = |stage: &MockFixture, n: u64| match mode {
            Mode::Write => stage.frame(n),
            Mode::Send => {
                stage.lay(usize::try_from(n).unwrap(), &fixture::record(n));
                stage.finish(
                    Record::bytes(PACKETS_PER_FRAME, 0) + fixture::length(n),
                    None,
                );
            }
        };
        frame(&stage, 0);
        assert_eq!(stage.poll(), [(0, 0, 0)]);
        *stage.script.final_frames.lock().unwrap() = Some(7);
        std::thread::sleep(Duration::from_millis(50));
        // A frame that was still in flight when the close message arrived is delivered.
        assert_eq!((stage.poll(), stage.completions.missing()), (vec![], 0));
        frame(&stage, 1);
        let mut completed = Vec::new();
        while stage.engine.link.is_some() {
            completed.extend(stage.poll());
        }
        assert_eq!(
            (completed, stage.completions.missing()),
            (vec![(1, 0, 0)], 5)
        );
        assert_eq!(stage.completions.faults().iter().sum::<u64>(), 0);
        assert_eq!((stage.poll(), stage.completions.missing()), (vec![], 0));
    }
    // An invalid number of frames in a close message is ignored.
    let mut stage = MockFixture::new(Mode::Write, Service::Uc);
    *stage.script.final_frames.lock().unwrap() = Some(u64::MAX);
    let mut missing = 0;
    while stage.engine.link.is_some() {
        stage.poll();
        missing += stage.completions.missing();
    }
    assert_eq!(missing, 0);
}

#[test]
fn lost_datagrams_are_missing_and_skip_no_slot() {
    let mut stage = MockFixture::new(Mode::Send, Service::Ud);
    for (slot, n) in [(0, 0), (1, 7), (2, 8)] {
        stage.lay(slot, &fixture::record(n));
        stage.finish(
            Record::bytes(PACKETS_PER_FRAME, 0) + fixture::length(n),
            None,
        );
    }
    assert_eq!(stage.poll(), [(0, 0, 0), (7, 6, 0), (8, 0, 0)]);
    // The number of a frame that was already delivered.
    stage.lay(3, &fixture::record(7));
    stage.finish(
        Record::bytes(PACKETS_PER_FRAME, 0) + fixture::length(7),
        None,
    );
    assert_eq!((stage.poll(), stage.fault("bad-record")), (vec![], 1));
}

#[test]
fn receives_are_posted_before_credits_are_sent() {
    let mut stage = MockFixture::new(Mode::Write, Service::Rc);
    let posted = || *stage.script.posted.lock().unwrap();
    assert_eq!(posted(), SLOTS + 1);
    stage.lay(0, &fixture::record(0));
    stage.finish(Record::bytes(PACKETS_PER_FRAME, 0), Some(0));
    assert_eq!(stage.poll(), [(0, 0, 0)]);
    assert_eq!(*stage.script.posted.lock().unwrap(), SLOTS + 2);
    let mut stage = MockFixture::new(Mode::Send, Service::Rc);
    assert_eq!(*stage.script.posted.lock().unwrap(), SLOTS);
    stage.engine.credit(2);
    stage.poll();
    assert_eq!(*stage.script.posted.lock().unwrap(), SLOTS + 2);
}

#[test]
fn queue_pairs_are_destroyed_before_memory_regions() {
    for ends_by_fault in [false, true] {
        let mut stage = MockFixture::new(Mode::Write, Service::Rc);
        stage.script.dropped.lock().unwrap().clear();
        if ends_by_fault {
            stage.finish(0, None);
            stage.poll();
        } else {
            stage.engine.quiesce(Duration::from_mins(1)).unwrap();
        }
        assert_eq!(
            *stage.script.dropped.lock().unwrap(),
            ["queue", "key", "key"]
        );
        let MockFixture { engine, memory, .. } = stage;
        drop((memory, engine));
    }
}

#[test]
fn completions_during_stop_count_on_reliable_connections() {
    let late = |stage: &MockFixture, n: u64| {
        stage.lay(usize::try_from(n).unwrap() % SLOTS, &fixture::record(n));
        stage.script.late.lock().unwrap().push_back(WorkCompletion {
            id: n,
            side: Side::Received,
            bytes: u32::try_from(Record::bytes(PACKETS_PER_FRAME, 0) + fixture::length(n)).unwrap(),
            immediate: Some(fixture::low(n)),
            ..WorkCompletion::default()
        });
    };
    for mode in [Mode::Write, Mode::Send] {
        let mut stage = MockFixture::new(mode, Service::Rc);
        late(&stage, 0);
        late(&stage, 1);
        assert_eq!(stage.poll(), []);
        stage.engine.quiesce(Duration::from_mins(1)).unwrap();
        assert_eq!(stage.poll(), [(0, 0, 0), (1, 0, 0)]);
        assert_eq!(stage.completions.faults().iter().sum::<u64>(), 0);
    }
    // An unreliable connection gives no guarantee, so the queue pair is not stopped.
    let mut stage = MockFixture::new(Mode::Write, Service::Uc);
    late(&stage, 0);
    stage.engine.quiesce(Duration::from_mins(1)).unwrap();
    assert_eq!(stage.poll(), []);
}

#[test]
fn stop_during_accept_disconnects_sender() {
    for is_cut_off in [false, true] {
        let script = Arc::<Script>::default();
        script.is_silent.store(true, Ordering::Release);
        let mut stage = MockFixture::with(script, Mode::Write, Service::Rc);
        while !matches!(stage.engine.shared.lock().phase, Phase::Connecting) {
            stage.poll();
        }
        if is_cut_off {
            stage.engine.device().disable_and_reset().unwrap();
        } else {
            stage.engine.quiesce(Duration::from_mins(1)).unwrap();
        }
        assert!(stage.script.is_aborted.load(Ordering::Acquire));
        assert!(matches!(stage.engine.shared.lock().phase, Phase::Closed));
    }
}

#[test]
fn completion_status_is_counted_by_name() {
    let statuses = [
        (Status::Unanswered, "unanswered"),
        (Status::RemoteAccess, "remote-access"),
        (Status::RemoteOperation, "remote-operation"),
        (Status::NotReady, "receiver-not-ready"),
        (Status::Local, "local"),
        (Status::Flushed, "flushed"),
        (Status::Other(9), "other"),
    ];
    for (status, name) in statuses {
        let mut stage = MockFixture::new(Mode::Write, Service::Rc);
        let failed = |status| WorkCompletion {
            status,
            ..WorkCompletion::default()
        };
        stage.frame_of_writes(0);
        let mut done = stage.script.done.lock().unwrap();
        done.push_back(failed(status));
        done.push_back(failed(Status::Flushed));
        drop(done);
        assert_eq!(
            stage.poll(),
            [(0, 0, 0)],
            "frames that arrived before are delivered"
        );
        assert_eq!(stage.fault(name), 1);
        assert_eq!(stage.completions.faults().iter().sum::<u64>(), 1);
    }
}

#[test]
fn nic_events_are_counted() {
    let mut stage = MockFixture::new(Mode::Write, Service::Rc);
    let mut events = stage.script.events.lock().unwrap();
    events.extend([NicEvent::PortDown, NicEvent::CompletionOverrun]);
    drop(events);
    let mut counted = [0, 0];
    while counted != [1, 1] {
        stage.poll();
        counted[0] += stage.fault("port-down");
        counted[1] += stage.fault("completion-overrun");
    }
    stage
        .script
        .events
        .lock()
        .unwrap()
        .push_back(NicEvent::Fatal);
    let disconnect = loop {
        stage.completions.clear(1);
        if let Err(error) = stage.engine.poll(&mut stage.completions) {
            break error;
        }
    };
    assert!(matches!(disconnect, EngineError::Gone { device } if device == "scripted"));
}

impl MockFixture {
    /// Simulates that frame `n` arrives completely over a reliable connection.
    fn frame_of_writes(&self, n: u64) {
        self.lay(usize::try_from(n).unwrap() % SLOTS, &fixture::record(n));
        self.finish(Record::bytes(PACKETS_PER_FRAME, 0), Some(fixture::low(n)));
    }
}
