//! Tests of NICs with a smaller capacity than they report, of receivers with invalid offers, and of resources created
//! at startup.

use super::super::SenderError;
use super::super::connection::{Reconnector, Terms};
use super::*;
use crate::connect::Connector;
use crate::connect::mock::nics;
use crate::verbs::VerbsError;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc;

/// Returns an emulated NIC with a smaller capacity than it reports: maximum numbers of outstanding send requests per
/// queue pair, of inline bytes, and of bytes of one registration.
fn small_nic(sends: u32, inline: u32, bytes: usize) -> Arc<dyn Nic> {
    let refused = || VerbsError {
        nic: "small".to_owned(),
        call: "allocating".to_owned(),
        errno: libc::ENOMEM,
        why: String::new(),
    };
    Arc::new(HookedNic {
        name: "small",
        on_register: Box::new(move |region| {
            (region.bytes() <= bytes).then_some(()).ok_or_else(refused)
        }),
        on_create: Box::new(move |options, create| {
            if options.sends > sends || options.inline > inline {
                return Err(refused());
            }
            create()
        }),
        ..HookedNic::new()
    })
}

/// Creates a sender on `card` for a ring of `slots` slots of 4 KiB.
fn sender(
    card: Arc<dyn Nic>,
    address: SocketAddr,
    slots: usize,
    options: Options,
) -> Result<Sender, SenderError> {
    let ring = RingOptions::new("near", slots, options.slot);
    let region = Region::host(ring.region_bytes(), HostOptions::default()).unwrap();
    let connector = tcp::connector(address);
    Sender::new(vec![card], connector, &region, options, Counters::default())
}

#[test]
fn queue_pair_creation_failure_retries_smaller() {
    let far = BaselineReceiver::start(Shape::default());
    let make = |sends, inline| {
        let card = small_nic(sends, inline, usize::MAX);
        sender(card, far.address, 16, options(&Shape::default()))
    };
    // A frame of 4 KiB needs two requests, and one entry is reserved for keep-alive requests.
    let fewer = make(65, 256).unwrap();
    assert_eq!((fewer.options.depth, fewer.options.inline), (32, 256));
    assert_eq!(fewer.window, 32);
    let shorter = make(65, 64).unwrap();
    assert_eq!((shorter.options.depth, shorter.options.inline), (32, 64));
    let all = make(257, 256).unwrap();
    assert_eq!((all.options.depth, all.options.inline), (128, 256));
    let refused = make(2, 256).err().unwrap();
    assert!(matches!(refused, SenderError::Verbs(_)), "{refused}");
    far.end();
}

#[test]
fn copy_buffer_is_allocated_at_startup() {
    let shape = Shape::default();
    let far = BaselineReceiver::start(shape.clone());
    // The NIC cannot register a ring of 32 MiB, but it can register the smaller buffer for copies.
    let card = small_nic(1024, 256, 20 << 20);
    let refused = sender(card.clone(), far.address, 8192, options(&shape)).unwrap();
    assert!(refused.path().starts_with("frames are copied"));
    assert!(refused.memory.window() < u64::MAX);
    drop(refused);
    let copied = Options {
        copied: true,
        ..options(&shape)
    };
    let copied = sender(card, far.address, 16, copied).unwrap();
    assert!(copied.memory.window() < u64::MAX);
    drop(copied);
    let card = small_nic(1024, 256, usize::MAX);
    let read = sender(card, far.address, 16, options(&shape)).unwrap();
    assert_eq!(read.memory.window(), u64::MAX);
    drop(read);
    // If the NIC can register neither, creating the sender fails immediately.
    let card = small_nic(1024, 256, 1);
    assert!(sender(card, far.address, 16, options(&shape)).is_err());
    far.end();
}

#[test]
fn record_buffer_is_allocated_for_messages() {
    for mode in [Mode::Write, Mode::Send] {
        let shape = Shape {
            mode,
            packets_per_frame: 5000,
            ..Shape::default()
        };
        let far = BaselineReceiver::start(shape.clone());
        let options = Options {
            packets_per_frame: 0,
            ..options(&shape)
        };
        let mut sender_side = SenderFixture::new(far.address, 1, options);
        sender_side.run(&lengths(40));
        let connection = sender_side.sender.connection.as_ref().unwrap();
        assert_eq!(connection.records.is_some(), mode == Mode::Send);
        sender_side.sender.finish();
        let got = far.end();
        assert_eq!(got.len(), 40);
        for (n, (got, meta)) in got.iter().zip(&sender_side.metas).enumerate() {
            assert_eq!(got.record, expected(meta, n as u64));
            assert_eq!(got.bytes.len(), meta.length);
        }
    }
}

#[test]
fn buffer_allocation_failure_is_reported_and_nothing_sent() {
    let shape = Shape {
        mode: Mode::Send,
        packets_per_frame: 100_000,
        ..Shape::default()
    };
    let far = BaselineReceiver::start(shape.clone());
    let options = Options {
        packets_per_frame: 0,
        ..options(&shape)
    };
    // The ring and 128 records of 64 bytes can be registered, but not 128 records of 12.5 KiB.
    let card = small_nic(1024, 256, 1 << 20);
    let mut sender = sender(card, far.address, 16, options).unwrap();
    let begun = Instant::now();
    while !sender.why.contains("small cannot access") {
        sender.tick();
        assert!(begun.elapsed() < HANG, "{}", sender.why);
    }
    assert!(sender.connection.is_none());
    drop(sender);
    assert!(far.end().is_empty());
}

#[test]
fn unacknowledged_work_ends_connection() {
    let shape = Shape::default();
    let far = BaselineReceiver::start(shape.clone());
    let mut sender_side = SenderFixture::new(far.address, 1, options(&shape));
    sender_side.run(&[10]);
    sender_side.publish(&[10]);
    let lease = sender_side.reader.poll(1).unwrap();
    // Simulates a frame that was posted long ago.
    sender_side.sender.posted = sender_side.sender.done + 1;
    sender_side.sender.next_unposted = sender_side.sender.posted;
    let long_ago = Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
    sender_side.sender.last_progress = long_ago;
    sender_side.sender.match_uncertain(&lease, 0);
    assert_eq!(
        sender_side.sender.last_progress, long_ago,
        "the time without progress continues to count"
    );
    let why = sender_side.sender.idle().unwrap_err().to_string();
    assert!(
        why.starts_with("the receiver has acknowledged nothing for 1"),
        "{why}"
    );
    // Without frames in flight, the time without progress must be reset.
    sender_side.sender.posted = sender_side.sender.done;
    sender_side.sender.match_uncertain(&lease, 0);
    sender_side.sender.idle().unwrap();
    drop(lease);
    sender_side.sender.connection = None;
    far.end();
}

/// Acknowledgements must count as progress also if `send` returns before it waits.
#[test]
fn acknowledgement_is_progress() {
    let shape = Shape::default();
    let far = BaselineReceiver::start(shape.clone());
    let mut sender_side = SenderFixture::new(far.address, 1, options(&shape));
    sender_side.run(&[10]);
    sender_side.publish(&[10]);
    let lease = sender_side.reader.poll(1).unwrap();
    let sender = &mut sender_side.sender;
    let (done, begun) = (sender.done, Instant::now());
    sender.last_progress = begun.checked_sub(Duration::from_secs(10)).unwrap();
    assert!(sender.post(&lease, done + 1, |_| 0).unwrap());
    while sender.done == done {
        sender.collect().unwrap();
        assert!(begun.elapsed() < HANG);
    }
    assert!(sender.last_progress >= begun);
    lease.retire(daq_core::ring::Completion::Immediate);
    sender_side.sender.finish();
    sender_side.compare(&far.end());
}

#[test]
fn connect_attempt_after_stop_is_cancelled() {
    let shape = Shape::default();
    let far = BaselineReceiver::start(shape.clone());
    let (begun, wait_begun) = mpsc::channel();
    let (go, wait_go) = mpsc::channel::<()>();
    let address = far.address;
    // A slow connection: it is established only after the attempt was cancelled.
    let connector = Connector::new(move |_, end| {
        begun.send(()).unwrap();
        wait_go.recv().unwrap();
        tcp::open(address, end)
    });
    let mut options = options(&shape);
    options.message = 1 << 20;
    let mut connector = Reconnector::new(Terms {
        connector,
        nics: nics(1),
        options,
        window: 16,
        first: Arc::new(AtomicU64::new(0)),
        stream: 7,
    })
    .unwrap();
    connector.go();
    wait_begun.recv().unwrap();
    connector.end(0);
    go.send(()).unwrap();
    let answer = connector.wait(HANG).unwrap();
    let why = answer.err().unwrap();
    assert!(why.contains("this side has stopped"), "{why}");
    assert_eq!(far.orders.connections.load(Ordering::Acquire), 0);
    far.end();
}
