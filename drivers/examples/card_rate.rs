//! How fast a card of software fills a ring of 1 MiB slots, every byte of the first round checked.
//!
//! `cargo run --release -p daq-drivers --example card_rate -- inproc 5` for one in this process, for 5 seconds;
//! `… card_rate -- card.sock 5` for one that `daq sim-card xdma --socket card.sock` serves.

#![allow(clippy::unwrap_used, reason = "an example: a failure is to be seen")]

#[expect(dead_code, reason = "others use the rest")]
#[path = "../tests/common/bench.rs"]
mod bench;

use bench::Bench;
use daq_drivers::cards::build;
use daq_drivers::cards::options::CardOptions;
use daq_drivers::cards::pattern::{Pattern, verify};
use daq_drivers::fpga::{inproc, vfio_user};
use std::path::Path;
use std::time::{Duration, Instant};

const SLOT: usize = 1 << 20;
const SLOTS: u32 = 16;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let place = arguments.next().unwrap_or_else(|| "inproc".to_owned());
    let seconds = arguments.next().map_or(3, |text| text.parse().unwrap());
    let device = if place == "inproc" {
        inproc::open(build("xdma", &CardOptions::default()).unwrap()).unwrap()
    } else {
        vfio_user::open(Path::new(&place)).unwrap()
    };
    let bench = Bench::new(device, SLOTS as usize, SLOT);
    bench.start();
    bench.credit(SLOTS);
    bench.wait_count(SLOTS);
    for slot in 0..SLOTS as usize {
        let at = (slot * SLOT) as u64;
        assert_eq!(bench.length(slot), SLOT);
        assert_eq!(
            verify(Pattern::Counter, 4096, at, &bench.payload(slot)),
            None
        );
    }
    let (start, limit) = (Instant::now(), Duration::from_secs(seconds));
    let (first, mut given, mut done) = (SLOTS, 2 * SLOTS, SLOTS);
    bench.credit(SLOTS);
    while start.elapsed() < limit {
        // Well inside of the 24 bits that the count has.
        let now = bench.count();
        if now == done {
            std::thread::yield_now();
            continue;
        }
        bench.credit(now - done);
        given += now - done;
        done = now;
    }
    let elapsed = start.elapsed().as_secs_f64();
    bench.wait_count(given);
    bench.stop();
    let bytes = f64::from(done - first) * SLOT as f64;
    println!(
        "{place}: {:.2} GB/s, {} slots of 1 MiB in {elapsed:.2} s",
        bytes / elapsed / 1e9,
        done - first
    );
}
