//! Measures the cost of rings and reorder windows: `cargo run --release -p daq-pipelines --example ring_bench`.
//!
//! Prints medians of seven runs as Markdown. Ratios compare results of the same run.

use daq_core::frame::{FrameMeta, Timestamp};
use daq_core::ledger::{ReaderLedger, RingLedger, SourceLedger};
use daq_core::notify::Wait;
use daq_core::region::{HostOptions, Region};
use daq_core::reorder::{Geometry, PacketId, ReorderWindow};
use daq_core::ring::{Producer, Reader, Ring, RingOptions};
use std::hint::black_box;
use std::time::{Duration, Instant};

const RUNS: usize = 7;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn median(mut run: impl FnMut() -> Result<f64>) -> Result<f64> {
    let mut figures = (0..RUNS).map(|_| run()).collect::<Result<Vec<_>>>()?;
    figures.sort_by(f64::total_cmp);
    Ok(figures[RUNS / 2])
}

fn ring(slots: usize, bytes: usize, packets_per_frame: u32) -> Result<(Producer, Reader)> {
    let options = RingOptions {
        packets_per_frame,
        ..RingOptions::new("bench", slots, bytes)
    };
    let host = HostOptions {
        huge: true,
        ..HostOptions::default()
    };
    let region = Region::host(options.region_bytes(), host)?;
    let (ring, producer) = Ring::new(region, options, RingLedger::default())?;
    let reader = ring.attach(true, 1, ReaderLedger::default())?;
    Ok((producer, reader))
}

fn publish(producer: &mut Producer, burst: usize, sequence: u64) -> usize {
    let mut slots = producer.reserve(burst);
    for i in 0..slots.remaining() {
        slots.finish(FrameMeta::whole(sequence + i as u64, 64));
    }
    slots.publish()
}

/// Returns the time per frame in nanoseconds to publish and to lease frames on one thread.
fn hand_over(burst: usize) -> Result<f64> {
    const FRAMES: u64 = 2_000_000;
    let (mut producer, mut reader) = ring(64, 64, 0)?;
    median(|| {
        let start = Instant::now();
        let mut sequence = 0;
        while sequence < FRAMES {
            sequence += publish(&mut producer, burst, sequence) as u64;
            if let Some(lease) = reader.poll(burst) {
                black_box(lease.frame(0).meta().sequence);
            }
        }
        Ok(start.elapsed().as_nanos() as f64 / FRAMES as f64)
    })
}

/// Returns the time in nanoseconds from the publication of a frame until a reader on another core has answered with a
/// frame.
fn round_trip() -> Result<f64> {
    const TRIPS: u64 = 200_000;
    median(|| {
        let (mut there, mut at_there) = ring(8, 64, 0)?;
        let (mut back, mut at_back) = ring(8, 64, 0)?;
        let echo = std::thread::spawn(move || {
            while !at_there.is_finished() {
                if at_there.poll(1).is_some() {
                    publish(&mut back, 1, 0);
                }
            }
        });
        let start = Instant::now();
        for sequence in 0..TRIPS {
            publish(&mut there, 1, sequence);
            while at_back.poll(1).is_none() {
                std::hint::spin_loop();
            }
        }
        let passed = start.elapsed();
        drop(there);
        echo.join().map_err(|_| "the echo thread stopped")?;
        Ok(passed.as_nanos() as f64 / TRIPS as f64)
    })
}

/// Returns the time per frame in nanoseconds if one thread publishes to `rings` rings, one after another, and another
/// thread reads all rings.
fn many(rings: usize) -> Result<f64> {
    const FRAMES: u64 = 1_000_000;
    median(|| {
        let (mut producers, mut readers): (Vec<_>, Vec<_>) = (0..rings)
            .map(|_| ring(64, 64, 0))
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .unzip();
        let consumer = std::thread::spawn(move || {
            let mut seen = 0_u64;
            while seen < FRAMES {
                for reader in &mut readers {
                    seen += reader.poll(64).map_or(0, |lease| lease.len() as u64);
                }
            }
        });
        let start = Instant::now();
        for sequence in 0..FRAMES {
            let producer = &mut producers[usize::try_from(sequence)? % rings];
            while publish(producer, 1, sequence) == 0 {
                producer.wait(Wait::Busy, Duration::from_millis(1));
            }
        }
        consumer.join().map_err(|_| "the reader stopped")?;
        Ok(start.elapsed().as_nanos() as f64 / FRAMES as f64)
    })
}

const SLOT: usize = 1 << 20;
const SLOTS: usize = 64;
const PACKET: usize = 8192;
const BYTES: usize = 4 << 30;

/// Returns the rate in GB/s at which packets are copied, one after another, into a buffer of the size of the ring.
fn baseline_copy() -> Result<f64> {
    let packet = vec![7_u8; PACKET];
    let region = Region::host(
        SLOT * SLOTS,
        HostOptions {
            huge: true,
            ..HostOptions::default()
        },
    )?;
    let (mut producer, _reader) = {
        let options = RingOptions::new("baseline", 2, SLOT * SLOTS / 2);
        let (ring, producer) = Ring::new(region, options, RingLedger::default())?;
        let reader = ring.attach(true, 1, ReaderLedger::default())?;
        (producer, reader)
    };
    let mut slots = producer.reserve(1);
    let bytes = slots.bytes_mut().ok_or("the ring is not in host memory")?;
    median(|| {
        let start = Instant::now();
        for _ in 0..BYTES / bytes.len() {
            for place in bytes.chunks_exact_mut(PACKET) {
                place.copy_from_slice(black_box(&packet));
            }
        }
        Ok(BYTES as f64 / start.elapsed().as_secs_f64() / 1e9)
    })
}

/// Returns the rate in GB/s at which the same packets are copied through a reorder window into a ring that another
/// thread reads.
fn window_copy() -> Result<f64> {
    let packet = vec![7_u8; PACKET];
    median(|| {
        let packets_per_frame = u32::try_from(SLOT / PACKET)?;
        let (producer, mut reader) = ring(SLOTS, SLOT, packets_per_frame)?;
        let geometry = Geometry::new(packets_per_frame, PACKET);
        let mut window =
            ReorderWindow::new(producer, geometry, 1, &SourceLedger::default()).remove(0);
        let consumer = std::thread::spawn(move || {
            while !reader.is_finished() {
                if reader.poll(16).is_none() {
                    reader.wait(Wait::Adaptive, Duration::from_millis(10));
                }
            }
        });
        let start = Instant::now();
        let mut sequence = 0;
        while sequence < (BYTES / PACKET) as u64 {
            let mut batch = window.batch();
            if !batch.has_room(PacketId::of(sequence + 31), None) {
                batch.commit();
                window.wait(Wait::Busy, Duration::from_millis(1));
                continue;
            }
            for _ in 0..32 {
                batch.place(
                    PacketId::of(sequence),
                    black_box(&packet),
                    Timestamp::default(),
                );
                sequence += 1;
            }
            batch.commit();
        }
        let passed = start.elapsed().as_secs_f64();
        drop(window);
        consumer.join().map_err(|_| "the reader stopped")?;
        Ok(BYTES as f64 / passed / 1e9)
    })
}

fn main() -> Result<()> {
    println!("| work | figure |\n|---|---|");
    println!(
        "| publish + lease, one thread, a frame at a time | {:.1} ns a frame |",
        hand_over(1)?
    );
    println!(
        "| publish + lease, one thread, bursts of 16 | {:.1} ns a frame |",
        hand_over(16)?
    );
    println!(
        "| round trip between two cores, two rings | {:.0} ns |",
        round_trip()?
    );
    let one = many(1)?;
    println!("| one thread to another, 1 ring | {one:.0} ns a frame |");
    for rings in [4, 16, 64] {
        let cost = many(rings)?;
        println!(
            "| one thread to another, {rings} rings in turn | {cost:.0} ns a frame, {:.2} × 1 ring |",
            cost / one
        );
    }
    let (baseline, window) = (baseline_copy()?, window_copy()?);
    println!("| 8 KiB packets copied to 64 MiB in turn, nothing else | {baseline:.2} GB/s |");
    println!(
        "| the same through window, ring and a reader | {window:.2} GB/s, {:.2} × baseline |",
        window / baseline
    );
    Ok(())
}
