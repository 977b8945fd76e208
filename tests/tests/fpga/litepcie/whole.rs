//! Tests a whole run of daq with the real gateware. A daemon drives the device over the vfio-user protocol, and every
//! byte in its files is checked.

use crate::litepcie::gateware::{Gateware, built};
use crate::litepcie::served::Served;
use daq_testkit::{Daq, files, skip, wait_for};
use std::sync::atomic::Ordering;

/// Bytes per frame.
const SLOT: u64 = 4096;
/// Number of ring slots.
const SLOTS: u64 = 16;
/// Number of frames that arrive directly before the stop. It is so small that none of them is overwritten.
const UNSEEN: u64 = SLOTS / 2;

/// Returns a source with the device at `card.sock`. Its frames are written to files, unchanged and as float32.
fn config(completion: &str) -> String {
    let csr = built().unwrap().join("csr.csv");
    let csr = csr.display();
    format!(
        "[source.card]\ndriver = \"fpga\"\nring = \"raw\"\ndevice = \"vfio-user:card.sock\"\nengine = \"litepcie\"\n\
         csr = \"{csr}\"\ncompletion = {completion:?}\n\
         samples = {{ type = \"int32\", channels = 2, rate = \"1 MHz\" }}\n\
         [ring.raw]\nslot = {SLOT}\nslots = {SLOTS}\n\
         [kernel.numbers]\nuse = \"convert\"\ninput = \"raw\"\noutput = \"floats\"\n\
         [ring.floats]\nslots = {SLOTS}\n\
         [sink.disk]\ndriver = \"file\"\ninput = \"raw\"\npath = \"raw\"\n\
         [sink.converted]\ndriver = \"file\"\ninput = \"floats\"\npath = \"floats\"\n\
         [http]\nlisten = \"127.0.0.1:0\"\n"
    )
}

/// Returns all data in the files of a directory.
fn data(daq: &Daq, directory: &str) -> Vec<u8> {
    files(&daq.path(directory), ".sigmf-data")
        .iter()
        .flat_map(|path| std::fs::read(path).unwrap())
        .collect()
}

/// Returns the kernel's output for the words of the counter. Each half of a word is one int32 number.
fn floats(words: std::ops::Range<u64>) -> Vec<u8> {
    let halves = words.flat_map(|word| {
        let [low, high] = [word & 0xffff_ffff, word >> 32];
        [low, high].map(|half| i32::try_from(half).unwrap() as f32)
    });
    halves.flat_map(f32::to_le_bytes).collect()
}

/// The sensor waits for the reader. Several loops of the ring must arrive without a missing byte, and also in the next
/// run, from the first word on.
#[test]
fn gateware_to_file_delivers_every_byte() {
    for completion in ["poll", "interrupt"] {
        let card = match Gateware::new() {
            Ok(card) => card,
            Err(why) => skip!("{why}"),
        };
        let daq = Daq::new(&config(completion));
        card.feed().store(0, Ordering::Relaxed);
        let served = Served::new(card, &daq.path("card.sock"));
        for run in 0..2 {
            let mut live = daq.spawn(&[]);
            live.wait_ready();
            let mut fed = 0;
            while fed < 5 * SLOTS {
                // A frame is reported when the next one is done, so one more is needed.
                let more = SLOTS / 2 + u64::from(fed == 0);
                served.feed(more * SLOT / 8);
                fed += more;
                live.wait_count("sources.card.delivered", fed - 1);
                // A slow reader would let the ring become full, and the device does not support backpressure. So wait
                // for the reader.
                live.wait_count("readers.disk.read", fed - 1);
                live.wait_count("readers.numbers.read", fed - 1);
            }
            // The stop must report the frames that no poll has reported.
            served.feed(UNSEEN * SLOT / 8);
            fed += UNSEEN;
            wait_for("the card to accept all data", || {
                (served.left() == 0).then_some(())
            });
            let outcome = live.stop().ok();
            let delivered = outcome.count("sources.card.delivered");
            assert_eq!(delivered, fed, "{:#}", outcome.report);
            assert_eq!(outcome.count("sources.card.lost.overrun"), 0);
            assert_eq!(
                outcome.report["sources"]["card"]["expected"].as_u64(),
                Some(delivered)
            );
            let words = 0..delivered * SLOT / 8;
            let expected: Vec<u8> = words.clone().flat_map(u64::to_le_bytes).collect();
            assert!(
                data(&daq, "raw") == expected,
                "{completion}, run {run}: the files in raw have wrong data"
            );
            assert!(
                data(&daq, "floats") == floats(words),
                "{completion}, run {run}: the files in floats have wrong data"
            );
            for directory in ["raw", "floats"] {
                std::fs::remove_dir_all(daq.path(directory)).unwrap();
            }
        }
    }
}

/// The sensor does not wait for the reader. Overwritten frames must be counted, and the file must have complete frames
/// in order. Their number must equal the ledger.
#[test]
fn gateware_overrun_leaves_frames_intact() {
    let card = match Gateware::new() {
        Ok(card) => card,
        Err(why) => skip!("{why}"),
    };
    let daq = Daq::new(&config("poll"));
    let served = Served::new(card, &daq.path("card.sock"));
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    live.wait_count("sources.card.delivered", 200);
    // The daemon's process is stopped while the device continues for more than one loop.
    live.signal(rustix::process::Signal::STOP);
    let before = served.left();
    let rounds = 3 * SLOTS * SLOT / 8;
    wait_for("the card to overwrite unread loops", || {
        (before - served.left() > rounds).then_some(())
    });
    live.signal(rustix::process::Signal::CONT);
    live.wait_count("sources.card.delivered", 400);
    let outcome = live.stop().ok();
    let frames = data(&daq, "raw");
    let delivered = outcome.count("sources.card.delivered");
    assert_eq!(frames.len() as u64, delivered * SLOT);
    assert!(
        outcome.count("sources.card.lost.overrun") > 0,
        "{:#}",
        outcome.report
    );
    let mut next = 0;
    let mut gaps = 0;
    for frame in frames.chunks(usize::try_from(SLOT).unwrap()) {
        let first = u64::from_le_bytes(frame[..8].try_into().unwrap());
        assert!(
            first.is_multiple_of(SLOT / 8) && first >= next,
            "{first} after {next}"
        );
        gaps += (first - next) / (SLOT / 8);
        next = first + SLOT / 8;
        let expected: Vec<u8> = (first..next).flat_map(u64::to_le_bytes).collect();
        assert!(
            frame == expected,
            "the frame that starts with word {first} has wrong data"
        );
    }
    // A slow reader may also have caused losses.
    let causes = outcome.report["sources"]["card"]["lost"]
        .as_object()
        .unwrap();
    let lost: u64 = causes.values().filter_map(serde_json::Value::as_u64).sum();
    assert_eq!(
        outcome.report["sources"]["card"]["expected"].as_u64(),
        Some(delivered + lost),
        "{:#}",
        outcome.report
    );
    assert!(
        gaps <= lost,
        "{gaps} frames are missing, but only {lost} were counted as lost: {:#}",
        outcome.report
    );
}
