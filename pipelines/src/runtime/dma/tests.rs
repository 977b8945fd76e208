//! Tests the runner with a scripted engine.

use super::*;
use daq_core::dma::{
    ArmError, Caps, CompletionOrder, DmaDevice, DmaError as MapError, EngineInfo, Origin,
    QuiesceTimeout, Sentinel, SlotLimits, Slots,
};
use daq_core::ledger::{ReaderLedger, RingLedger, SourceReport};
use daq_core::region::{HostOptions, Region};
use daq_core::ring::{Fill, Reader, Ring, RingOptions};
use std::collections::VecDeque;
use std::sync::Mutex;

/// Number of packets per frame, larger than the number of bits of one word. The last packet is shorter than the other
/// packets.
const PACKETS_PER_FRAME: u32 = 70;
const PACKET_BYTES: usize = 16;
const FRAME: usize = PACKETS_PER_FRAME as usize * PACKET_BYTES - 8;
const SLOTS: usize = 4;
const FILL: u8 = 0xa5;
/// The words that the scripted engine writes.
const WRITTEN: Sentinel = Sentinel::new(7);

/// A device that records the memory regions mapped for it.
#[derive(Default)]
struct Given(Mutex<Vec<Arc<Region>>>);

impl DmaDevice for Given {
    fn name(&self) -> &'static str {
        "given"
    }

    fn map(&self, region: &Arc<Region>) -> Result<u64, MapError> {
        self.0.lock().unwrap().push(region.clone());
        Ok(0)
    }

    fn unmap(&self, _: u64, _: usize) -> Result<(), MapError> {
        Ok(())
    }

    fn disable_and_reset(&self) -> Result<(), MapError> {
        Ok(())
    }
}

/// The scripted results of one poll.
#[derive(Default)]
struct Words {
    /// Completions, each with the bitmap of packets that arrived.
    frames: Vec<(Done, Vec<u64>)>,
    overrun: u64,
    discarded: u64,
    missing: u64,
}

/// Scripted behaviour of an engine: the polls in order, and whether the engine can be armed.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<(VecDeque<Words>, bool)>>);

impl Script {
    fn say(&self, words: Words) {
        self.0.lock().unwrap().0.push_back(words);
    }

    /// Makes every later attempt to arm the engine fail.
    fn refuse(&self) {
        self.0.lock().unwrap().1 = true;
    }
}

struct Scripted {
    device: Arc<dyn DmaDevice>,
    given: Arc<Given>,
    script: Script,
    supports_backpressure: bool,
    /// Device addresses of the slots. `next` is the index of the slot for the next frame.
    slots: Vec<u64>,
    next: usize,
}

const SCRIPTED: EngineInfo = EngineInfo {
    name: "scripted",
    summary: "an engine of these tests",
    limits: SlotLimits {
        alignment: 8,
        max_slot: 1 << 20,
        max_slots: 64,
        preferred: 8,
    },
    faults: &[],
    supports_backpressure: true,
    order: CompletionOrder::AfterPayload,
};

// SAFETY: no device writes.
unsafe impl Engine for Scripted {
    fn info(&self) -> &'static EngineInfo {
        &SCRIPTED
    }

    fn device(&self) -> &Arc<dyn DmaDevice> {
        &self.device
    }

    fn caps(&self) -> Caps {
        Caps {
            supports_backpressure: self.supports_backpressure,
            doorbell_bits: 0,
            alignment: 8,
            max_transfer: 1 << 20,
            max_slots: 64,
            writes_past_length: true,
            packet_bytes: PACKET_BYTES,
        }
    }

    unsafe fn arm(&mut self, slots: &Slots) -> Result<(), ArmError> {
        if self.script.0.lock().unwrap().1 {
            return Err(ArmError::Stopped(EngineError::Unfit {
                device: "given".to_owned(),
                why: "the test requests a refusal".to_owned(),
            }));
        }
        (self.slots, self.next) = (slots.addresses.clone(), slots.first);
        Ok(())
    }

    fn poll(&mut self, done: &mut Completions) -> Result<(), EngineError> {
        let Some(words) = self.script.0.lock().unwrap().0.pop_front() else {
            return Ok(());
        };
        done.skip(words.overrun);
        done.discard(words.discarded);
        done.add_missing(words.missing);
        let region = self.given.0.lock().unwrap().last().unwrap().clone();
        for (origin, present) in words.frames {
            let at = usize::try_from(self.slots[self.next]).unwrap();
            assert!(WRITTEN.lay(&region, at, FRAME));
            self.next = (self.next + 1) % self.slots.len();
            assert!(done.push_with(origin, &present));
        }
        Ok(())
    }

    fn credit(&mut self, _: u32) {}

    fn quiesce(&mut self, _: Duration) -> Result<(), QuiesceTimeout> {
        Ok(())
    }
}

struct Bench {
    runner: Runner,
    script: Script,
    reader: Reader,
    ledger: SourceLedger,
    _ring: Ring,
}

impl Bench {
    fn new(supports_backpressure: bool) -> Self {
        let options = RingOptions {
            packets_per_frame: PACKETS_PER_FRAME,
            fill: Fill::byte(FILL),
            ..RingOptions::new("raw", SLOTS, FRAME)
        };
        let region = Region::host(options.region_bytes(), HostOptions::default()).unwrap();
        let (ring, producer) = Ring::new(region, options, RingLedger::default()).unwrap();
        let reader = ring.attach(true, 1, ReaderLedger::default()).unwrap();
        let (given, script, ledger) = (
            Arc::new(Given::default()),
            Script::default(),
            SourceLedger::default(),
        );
        let mut runner = Runner::new(Parts {
            name: "camera".to_owned(),
            engine: Box::new(Scripted {
                device: given.clone(),
                given,
                script: script.clone(),
                supports_backpressure,
                slots: Vec::new(),
                next: 0,
            }),
            producer,
            numbers: None,
            ledger: ledger.clone(),
            counters: EngineCounters::default(),
            wait: Wait::Busy,
            started: Arc::default(),
            control: Arc::new(Control::new(Duration::ZERO)),
            bell: None,
            backends: Vec::new(),
            writer: Writer::Nic,
        })
        .unwrap();
        runner.arm().unwrap();
        Self {
            runner,
            script,
            reader,
            ledger,
            _ring: ring,
        }
    }

    /// Runs one step of the runner. During this step the engine completes `frames`.
    fn step(&mut self, frames: Vec<(Done, Vec<u64>)>) {
        self.script.say(Words {
            frames,
            ..Words::default()
        });
        assert!(self.runner.step().unwrap());
    }

    fn report(&self) -> SourceReport {
        SourceReport::of(&self.ledger)
    }
}

/// Returns the completion of frame `sequence` without the packets `missing`.
fn frame(sequence: u64, missing: &[u32]) -> (Done, Vec<u64>) {
    let mut present = vec![u64::MAX, (1 << (PACKETS_PER_FRAME - 64)) - 1];
    for place in missing {
        present[*place as usize / 64] &= !(1 << (place % 64));
    }
    let origin = Origin {
        sequence,
        epoch: 1,
        packets_per_frame: PACKETS_PER_FRAME,
        arrived: PACKETS_PER_FRAME - u32::try_from(missing.len()).unwrap(),
        ..Origin::default()
    };
    let done = Done {
        length: FRAME,
        origin: Some(origin),
        ..Done::default()
    };
    (done, present)
}

#[test]
fn missing_packet_slots_are_filled_across_word_boundary() {
    for supports_backpressure in [false, true] {
        let mut bench = Bench::new(supports_backpressure);
        let stride = bench.runner.producer.options().stride();
        let all: Vec<u32> = (0..PACKETS_PER_FRAME).collect();
        let missing: [&[u32]; 5] = [&[], &[0, 5, 63], &[63, 64], &[64, 66, 69], &all];
        for (sequence, missing) in (0..).zip(missing) {
            bench.step(vec![frame(sequence, missing)]);
            let lease = bench.reader.poll(1).unwrap();
            let seen = lease.frame(0);
            assert_eq!(seen.meta().sequence, sequence);
            if missing.len() == all.len() {
                // No packet arrived, so the frame has no content.
                assert_eq!(seen.meta().arrived, 0);
                continue;
            }
            let at = usize::try_from(sequence).unwrap() % SLOTS * stride;
            let bytes = seen.bytes().unwrap();
            assert_eq!(bytes.len(), FRAME);
            for (place, bytes) in (0..).zip(bytes.chunks(PACKET_BYTES)) {
                let is_missing = missing.contains(&place);
                let from = (at + place as usize * PACKET_BYTES) as u64 / 8;
                let words = (from..).flat_map(|word| WRITTEN.word(word).to_le_bytes());
                let is_right = if is_missing {
                    bytes.iter().all(|byte| *byte == FILL)
                } else {
                    bytes.iter().copied().eq(words.take(bytes.len()))
                };
                assert!(is_right, "{supports_backpressure} {sequence} {place}");
            }
        }
        let report = bench.report();
        let lost = report.lost.get("bad_packet").copied();
        assert_eq!((report.expected, report.delivered), (5, 4));
        // The number of incomplete frames counts only delivered frames.
        assert_eq!((report.incomplete, lost), (3, Some(1)));
    }
}

#[test]
fn completions_after_rejected_arming_are_lost() {
    let mut bench = Bench::new(false);
    bench.step(vec![frame(0, &[])]);
    bench.script.refuse();
    let fault = EngineError::Faulted {
        device: "given".to_owned(),
        engine: "scripted",
        faults: Vec::new(),
    };
    assert!(bench.runner.restart(fault).is_err());
    let (mut first, present) = frame(9, &[3]);
    first.missing = 2;
    bench.script.say(Words {
        frames: vec![(first, present)],
        overrun: 3,
        discarded: 4,
        missing: 5,
    });
    bench.script.say(Words {
        frames: vec![frame(10, &[])],
        ..Words::default()
    });
    bench.runner.stop().unwrap();
    let report = bench.report();
    assert_eq!(report.lost, [("overrun", 9), ("wire_gap", 7)].into());
    assert_eq!((report.expected, report.delivered), (17, 1));
    assert_eq!(report.incomplete, 0);
    assert_eq!(bench.reader.pending(), 1);
}

#[test]
fn completions_after_path_fallback_are_lost() {
    let mut bench = Bench::new(false);
    bench.step(vec![frame(0, &[])]);
    bench.runner.path = Path::Abandoned;
    bench.script.say(Words {
        frames: vec![frame(1, &[]), frame(2, &[])],
        discarded: 1,
        ..Words::default()
    });
    bench.runner.stop().unwrap();
    let report = bench.report();
    assert_eq!(report.lost, [("bad_packet", 2), ("overrun", 1)].into());
    assert_eq!((report.expected, report.delivered), (4, 1));
    assert_eq!(bench.reader.pending(), 1);
}
