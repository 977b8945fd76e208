//! How fast the source `hsb` takes frames over the loopback interface: one thread sends, one receives.
//!
//! `cargo run --release -p daq-drivers --example hsb_rate -- [SECONDS [PACKET [FRAME [GBIT]]]]`, with packets of 1408
//! bytes, frames of 2 MiB and as fast as the sender can unless said otherwise. Content is checked for each frame by its
//! first and last words; the ledger says whether anything is missing.

#![allow(clippy::unwrap_used, reason = "an example")]

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/common/hsb_packet.rs"]
mod hsb_packet;

use daq_drivers::hsb::ENTRY;
use daq_drivers::sys::send::Sender;
use hsb_packet::{Packet, metadata};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PAGES: usize = 16;

/// A frame's packets in a row but the last, which is metadata, and that.
struct Page {
    packets: Vec<u8>,
    last: Vec<u8>,
    end: Vec<u8>,
    count: u32,
    bytes: usize,
}

fn page(page: usize, packet: usize, frame: usize) -> Page {
    let stride = frame.next_multiple_of(128) + 128;
    let base = (page * stride) as u64;
    let chunk = |at: usize| {
        let payload = vec![u8::try_from(page).unwrap(); packet.min(frame - at)];
        let address = base + at as u64;
        Packet {
            address,
            payload,
            ..Packet::default()
        }
        .bytes()
    };
    let mut parts: Vec<_> = (0..frame).step_by(packet).map(chunk).collect();
    let count = u32::try_from(parts.len()).unwrap();
    let last = parts.pop().unwrap();
    let end = Packet {
        address: base + frame.next_multiple_of(128) as u64,
        immediate: Some(u32::try_from(page).unwrap()),
        payload: metadata(0, 1, 0, frame as u64).to_vec(),
        ..Packet::default()
    };
    Page {
        bytes: packet + 32,
        packets: parts.concat(),
        last,
        end: end.bytes(),
        count,
    }
}

fn send(to: SocketAddr, packet: usize, frame: usize, gbit: f64, is_on: &AtomicBool) -> u64 {
    let mut pages: Vec<_> = (0..PAGES).map(|i| page(i, packet, frame)).collect();
    let mut sender = Sender::open(to, true, None).unwrap();
    let (mut psn, mut frames) = (0_u32, 0_u64);
    let start = Instant::now();
    while is_on.load(Ordering::Relaxed) {
        let page = &mut pages[usize::try_from(frames % PAGES as u64).unwrap()];
        let number = |bytes: &mut [u8], psn: u32| {
            bytes[8..12].copy_from_slice(&(psn & 0xff_ffff).to_be_bytes());
        };
        for (packet, psn) in page.packets.chunks_mut(page.bytes).zip(psn..) {
            number(packet, psn);
        }
        number(&mut page.last, psn + page.count - 1);
        number(&mut page.end, psn + page.count);
        page.end[32 + 34..][..2].copy_from_slice(&frames.to_be_bytes()[6..]);
        for part in page.packets.chunks(32 * page.bytes) {
            sender.send_packets(part, page.bytes).unwrap();
            if gbit > 0.0 {
                let sent = frames as f64 * frame as f64 * 8.0;
                while sent > gbit * start.elapsed().as_nanos() as f64 {
                    std::thread::yield_now();
                }
            }
        }
        sender.send(&page.last).unwrap();
        sender.send(&page.end).unwrap();
        psn = (psn + page.count + 1) & 0xff_ffff;
        frames += 1;
    }
    frames
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).map(|text| text.parse::<f64>().unwrap());
    let size = |at: usize| arguments.get(at).map(|text| text.parse::<usize>().unwrap());
    let (seconds, gbit) = (number(0).unwrap_or(5.0), number(3).unwrap_or(0.0));
    let (packet, frame) = (size(1).unwrap_or(1408), size(2).unwrap_or(2 << 20));
    let listen = common::free_port();
    let text = format!(
        "[source.camera]\ndriver = \"hsb\"\nring = \"raw\"\nlisten = \"{listen}\"\nframe = {frame}\npacket = {packet}\n\
         pages = {PAGES}\nqueue_pair = 5\nrkey = 9\ncontrol = false\n"
    );
    let spec = common::spec(&ENTRY, &text).unwrap();
    let mut rig = common::rig(&*spec, frame.next_multiple_of(64), 16).unwrap();
    let (is_on, sent) = (AtomicBool::new(true), AtomicU64::new(0));
    let (mut wrong, mut frames) = (0_u64, 0_u64);
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| sent.store(send(listen, packet, frame, gbit, &is_on), Ordering::Release));
        let mut idle = 0;
        while idle < 20 {
            let (filler, window) = (&mut rig.fillers[0], &mut rig.windows[0]);
            let polled = filler.fill(window, Duration::from_millis(20)).unwrap();
            window.tick(Instant::now());
            let is_over = start.elapsed().as_secs_f64() > seconds;
            idle = if is_over && polled == daq_core::source::Polled::Idle {
                idle + 1
            } else {
                0
            };
            is_on.store(!is_over, Ordering::Relaxed);
            while let Some(lease) = rig.reader.poll(1) {
                let (got, meta) = (lease.frame(0).bytes().unwrap(), *lease.frame(0).meta());
                let expected = u8::try_from(meta.sequence % PAGES as u64).unwrap();
                frames += 1;
                wrong += u64::from(
                    got[0] != expected || got[frame - 1] != expected || meta.is_incomplete(),
                );
            }
        }
    });
    rig.windows[0].finish();
    let report = rig.report();
    println!(
        "{frames} of {} frames, {wrong} wrong, {:.1} Gbit/s of payload; expected {} delivered {} lost {:?} rejected {} duplicates {}",
        sent.load(Ordering::Acquire),
        report.bytes as f64 * 8.0 / seconds / 1e9,
        report.expected,
        report.delivered,
        report.lost,
        report.rejected,
        report.duplicates
    );
}
