//! Checks that sinks allocate no memory while frames flow.

#![allow(clippy::unwrap_used)]

mod support;

use daq_core::frame::{Flags, FrameMeta};
use daq_core::layout::Scalar;
use daq_testkit::allocations::ObservedAllocator;
use std::sync::atomic::{AtomicU64, Ordering};
use support::{Feed, Sent, context, layout, spec};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: ObservedAllocator = ObservedAllocator::new(|| {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
});

const FRAME: usize = 4000;

/// Returns frames with gaps and missing packets.
fn frames(from: u64) -> Vec<Sent> {
    (from..from + 8)
        .map(|n| {
            let whole = FrameMeta::whole(n * 2, FRAME);
            let flags = Flags::INCOMPLETE;
            let meta = FrameMeta {
                packets_per_frame: 10,
                arrived: 9,
                flags,
                ..whole
            };
            Sent {
                meta,
                bytes: vec![u8::try_from(n % 256).unwrap(); FRAME],
                present: vec![0b11_1101_1111],
            }
        })
        .collect()
}

// This file has only one test, because the allocations of a concurrent test would be counted too.
#[test]
fn frames_are_written_without_allocations() {
    for (driver, keys) in [
        (
            "file",
            "path = \"out\"\nbuffer = \"16 KiB\"\nrotate = \"1 h\"",
        ),
        ("null", "touch = true"),
        ("zarr", "path = \"out\"\nchunk = \"64 MiB\""),
        (
            "udp",
            "to = [\"127.0.0.1:9\", \"127.0.0.2:9\"]\nsplit = \"parts\"\nrate = \"4 Gbit/s\"\n\
             [sink.udp.format]\nkind = \"spead\"\npayload = 100",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let context = context(
            dir.path(),
            driver,
            layout(Scalar::Int16, true, 1, FRAME / 4),
            10,
            400,
        );
        let ledger = context.ledger.clone();
        let mut sink = spec(driver, driver, keys).unwrap().build(context).unwrap();
        let mut feed = Feed::new(8, FRAME, 10);
        let mut give = |from| {
            let frames = frames(from);
            feed.publish(&frames);
            let before = ALLOCATIONS.load(Ordering::SeqCst);
            let (taken, result) = feed.offer(&mut *sink, 3);
            let after = ALLOCATIONS.load(Ordering::SeqCst);
            result.unwrap();
            assert_eq!(taken, 8);
            after - before
        };
        // The first frames open files and start to use the threads' channels, which allocates memory.
        (0..40).for_each(|i| {
            give(i * 8);
        });
        let counted: u64 = (40..240).map(|i| give(i * 8)).sum();
        assert_eq!(counted, 0, "{driver} allocated in 1600 frames");
        sink.finish().unwrap();
        assert_eq!(ledger.frames.get(), 1920);
    }
}
