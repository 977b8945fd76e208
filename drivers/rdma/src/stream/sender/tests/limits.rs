//! Cards that hold less than they say, receivers that want more than they may, and what is made at the start.

use super::super::SenderError;
use super::super::connection::{Connector, Terms};
use super::*;
use crate::connect::{ConnectError, Dialler, Link, Prepare};
use crate::verbs::{
    Access, Limits, MemoryKey, NicEvent, Port, Queue, QueueOptions, VerbsError, Way,
};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

/// A software card that holds less than it says.
#[derive(Debug)]
struct Small {
    card: Arc<dyn Nic>,
    /// Most work of a queue.
    sends: u32,
    /// Most bytes inline.
    inline: u32,
    /// Most bytes of one registration.
    bytes: usize,
    registered: AtomicUsize,
}

impl Small {
    fn new(sends: u32, inline: u32, bytes: usize) -> Arc<Self> {
        let card = Card::new(Ipv4Addr::LOCALHOST.into(), Faults::none()).unwrap();
        Arc::new(Self {
            card,
            sends,
            inline,
            bytes,
            registered: AtomicUsize::new(0),
        })
    }

    fn refused(&self, call: &str) -> VerbsError {
        VerbsError {
            nic: self.name().to_owned(),
            call: call.to_owned(),
            errno: libc::ENOMEM,
            why: String::new(),
        }
    }
}

impl Nic for Small {
    fn name(&self) -> &'static str {
        "small"
    }

    fn limits(&self) -> Limits {
        self.card.limits()
    }

    fn port(&self) -> Result<Port, VerbsError> {
        self.card.port()
    }

    fn register(
        &self,
        region: &Arc<Region>,
        way: Way,
        access: Access,
    ) -> Result<MemoryKey, VerbsError> {
        if region.bytes() > self.bytes {
            return Err(self.refused("registering"));
        }
        self.registered.fetch_add(1, Ordering::AcqRel);
        self.card.register(region, way, access)
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>, VerbsError> {
        if options.sends > self.sends || options.inline > self.inline {
            return Err(self.refused("making a queue"));
        }
        self.card.queue(options)
    }

    fn event(&self) -> Option<NicEvent> {
        self.card.event()
    }
}

/// A sender by `card` of a ring of `slots` slots of 4 KiB.
fn sender(
    card: Arc<Small>,
    address: SocketAddr,
    slots: usize,
    options: Options,
) -> Result<Sender, SenderError> {
    let ring = RingOptions::new("near", slots, options.slot);
    let region = Region::host(ring.region_bytes(), HostOptions::default()).unwrap();
    let dialler = Box::new(tcp::dialler(address));
    Sender::new(vec![card], dialler, &region, options, Counters::default())
}

#[test]
fn queue_pair_creation_failure_retries_smaller() {
    let far = Bare::start(Shape::default());
    let make = |sends, inline| {
        let card = Small::new(sends, inline, usize::MAX);
        sender(card, far.address, 16, options(&Shape::default()))
    };
    // A frame of 4 KiB is two works, and one place is for what carries no frame.
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
    let far = Bare::start(shape.clone());
    // A ring of 32 MiB is more than the card takes, what frames are copied to is not.
    let card = Small::new(1024, 256, 20 << 20);
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
    let card = Small::new(1024, 256, usize::MAX);
    let read = sender(card, far.address, 16, options(&shape)).unwrap();
    assert_eq!(read.memory.window(), u64::MAX);
    drop(read);
    // A card that takes neither is told at once.
    let card = Small::new(1024, 256, 1);
    assert!(sender(card, far.address, 16, options(&shape)).is_err());
    far.end();
}

#[test]
fn record_buffer_is_allocated_for_messages() {
    for mode in [Mode::Write, Mode::Send] {
        let shape = Shape {
            mode,
            places: 5000,
            ..Shape::default()
        };
        let far = Bare::start(shape.clone());
        let options = Options {
            places: 0,
            ..options(&shape)
        };
        let mut near = Near::new(far.address, 1, options);
        near.run(&lengths(40));
        let connection = near.sender.connection.as_ref().unwrap();
        assert_eq!(connection.records.is_some(), mode == Mode::Send);
        near.sender.finish();
        let got = far.end();
        assert_eq!(got.len(), 40);
        for (n, (got, meta)) in got.iter().zip(&near.metas).enumerate() {
            assert_eq!(got.record, expected(meta, n as u64));
            assert_eq!(got.bytes.len(), meta.length);
        }
    }
}

#[test]
fn buffer_allocation_failure_is_reported_and_nothing_sent() {
    let shape = Shape {
        mode: Mode::Send,
        places: 100_000,
        ..Shape::default()
    };
    let far = Bare::start(shape.clone());
    let options = Options {
        places: 0,
        ..options(&shape)
    };
    // The ring and 128 records of 64 bytes fit, 128 of 12.5 KiB do not.
    let card = Small::new(1024, 256, 1 << 20);
    let mut sender = sender(card, far.address, 16, options).unwrap();
    let begun = Instant::now();
    while !sender.why.contains("small cannot reach") {
        sender.tick();
        assert!(begun.elapsed() < HANG, "{}", sender.why);
    }
    assert!(!sender.is_connected());
    drop(sender);
    assert!(far.end().is_empty());
}

#[test]
fn unacknowledged_work_ends_connection() {
    let shape = Shape::default();
    let far = Bare::start(shape.clone());
    let mut near = Near::new(far.address, 1, options(&shape));
    near.run(&[10]);
    near.publish(&[10]);
    let lease = near.reader.poll(1).unwrap();
    // As if a frame had been posted long ago.
    near.sender.posted = near.sender.done + 1;
    near.sender.head = near.sender.posted;
    let long_ago = Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
    near.sender.still = long_ago;
    near.sender.recognise(&lease, 0);
    assert_eq!(near.sender.still, long_ago, "the time goes on");
    let why = near.sender.idle().unwrap_err().to_string();
    assert!(
        why.starts_with("it has acknowledged nothing for 1"),
        "{why}"
    );
    // Nothing under way is no reason to be impatient.
    near.sender.posted = near.sender.done;
    near.sender.recognise(&lease, 0);
    near.sender.idle().unwrap();
    drop(lease);
    near.sender.connection = None;
    far.end();
}

/// A dialler whose way is long: it waits until it is told that nobody wants it any more.
struct Slow {
    inner: tcp::TcpDialler,
    is_over: Arc<AtomicBool>,
    begun: Arc<AtomicBool>,
}

impl Dialler for Slow {
    fn cancel_with(&mut self, is_over: Arc<AtomicBool>) {
        self.is_over = is_over.clone();
        self.inner.cancel_with(is_over);
    }

    fn dial(
        &mut self,
        nics: &[Arc<dyn Nic>],
        options: &QueueOptions,
        greetings: &[Vec<u8>],
        prepare: Prepare<'_>,
        limit: Duration,
    ) -> Result<Link, ConnectError> {
        self.begun.store(true, Ordering::Release);
        while !self.is_over.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        self.inner.dial(nics, options, greetings, prepare, limit)
    }
}

#[test]
fn connect_attempt_after_stop_is_cancelled() {
    let shape = Shape::default();
    let far = Bare::start(shape.clone());
    let begun = Arc::new(AtomicBool::new(false));
    let dialler = Box::new(Slow {
        inner: tcp::dialler(far.address),
        is_over: Arc::default(),
        begun: begun.clone(),
    });
    let mut options = options(&shape);
    options.message = 1 << 20;
    let mut connector = Connector::new(Terms {
        dialler,
        nics: vec![Card::new(Ipv4Addr::LOCALHOST.into(), Faults::none()).unwrap()],
        options,
        window: 16,
        first: Arc::new(AtomicU64::new(0)),
        stream: 7,
    })
    .unwrap();
    connector.go();
    while !begun.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    connector.end(0);
    let answer = connector.wait(HANG).unwrap();
    let why = answer.err().unwrap();
    assert!(why.contains("this side has ended"), "{why}");
    assert_eq!(far.orders.connections.load(Ordering::Acquire), 0);
    far.end();
}
