//! The runner with a kernel whose work a device finishes later.

use super::*;
use daq_core::frame::FrameMeta;
use daq_core::ledger::{KernelReport, ReaderLedger, RingLedger};
use daq_core::region::{HostOptions, Region};
use daq_core::ring::{Event, Lease, Ring, RingOptions, SlotsMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

fn ring(name: &str, slots: usize) -> (Ring, Producer, Reader) {
    let options = RingOptions::new(name, slots, 8);
    let region = Region::host(options.region_bytes(), HostOptions::default()).unwrap();
    let (ring, producer) = Ring::new(region, options, RingLedger::default()).unwrap();
    let reader = ring.attach(true, 1, ReaderLedger::default()).unwrap();
    (ring, producer, reader)
}

#[derive(Default)]
struct Told(AtomicBool);

impl Event for Told {
    fn is_done(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// One call's work, and the outputs that were submitted before it.
struct Job {
    told: Arc<Told>,
    before: u64,
}

/// Doubles numbers; a thread says when a call's work is done.
struct Doubler {
    device: mpsc::Sender<Job>,
    made: u64,
    fails_at: u64,
}

impl Kernel for Doubler {
    fn outputs(&self, frames: usize) -> usize {
        frames
    }

    fn run(
        &mut self,
        burst: &Lease<'_>,
        out: &mut SlotsMut<'_>,
        _: Stream,
    ) -> Result<Submitted, KernelError> {
        if self.made >= self.fails_at {
            return Err(KernelError("the device fell off the bus".to_owned()));
        }
        let before = self.made;
        for frame in burst.iter() {
            let number = u64::from_le_bytes(frame.bytes().unwrap().try_into().unwrap());
            out.bytes_mut()
                .unwrap()
                .copy_from_slice(&(number * 2).to_le_bytes());
            out.finish(FrameMeta::whole(frame.meta().sequence, 8));
            self.made += 1;
        }
        let told = Arc::new(Told::default());
        let job = Job {
            told: told.clone(),
            before,
        };
        self.device.send(job).unwrap();
        Ok(Submitted {
            completion: Completion::Event(told),
            ..Submitted::done(burst.len() as u64)
        })
    }
}

/// Runs `frames` numbers through a [`Doubler`] that fails after `fails_at`; what came out, and the kernel's ledger.
fn run(frames: u64, fails_at: u64) -> (Vec<u64>, KernelReport) {
    let (_input, mut producer, reader) = ring("input", 4);
    let (output, outputs, mut results) = ring("output", 2);
    let (device, jobs) = mpsc::channel::<Job>();
    let ledger = KernelLedger::default();
    let runner = Runner {
        name: "doubler".to_owned(),
        kernel: Box::new(Doubler {
            device,
            made: 0,
            fails_at,
        }),
        reader,
        producer: outputs,
        ledger: ledger.clone(),
        burst: 3,
        wait: Wait::Event,
        control: Arc::new(Control::new(Duration::from_mins(1))),
    };
    let seen =
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..frames {
                    while producer.claim(1) == 0 {
                        producer.wait(Wait::Event, PATIENCE);
                    }
                    let mut slots = producer.reserve(1);
                    slots
                        .bytes_mut()
                        .unwrap()
                        .copy_from_slice(&number.to_le_bytes());
                    slots.finish(FrameMeta::whole(number, 8));
                    slots.publish();
                }
            });
            scope.spawn(move || runner.run(&Pulse::new("doubler".to_owned())));
            scope.spawn(move || {
                for job in jobs {
                    assert!(output.published() <= job.before, "published before done");
                    job.told.0.store(true, Ordering::Release);
                }
            });
            let mut seen = Vec::new();
            while !results.is_finished() {
                if let Some(lease) = results.poll(8) {
                    seen.extend(lease.iter().map(|frame| {
                        u64::from_le_bytes(frame.bytes().unwrap().try_into().unwrap())
                    }));
                } else {
                    results.wait(Wait::Event, PATIENCE);
                }
            }
            seen
        });
    (seen, KernelReport::of(&ledger))
}

#[test]
fn outputs_are_published_in_order_when_the_device_is_done() {
    let (seen, ledger) = run(500, u64::MAX);
    assert!(seen.iter().copied().eq((0..500).map(|number| number * 2)));
    assert_eq!((ledger.input, ledger.consumed), (500, 500));
    assert_eq!((ledger.failed, ledger.pending), (0, 0));
}

#[test]
fn what_was_in_flight_when_a_kernel_failed_is_published_and_counted() {
    let (seen, ledger) = run(500, 100);
    assert!(seen.len() >= 100, "{seen:?}");
    assert!(
        seen.iter()
            .copied()
            .eq((0..seen.len() as u64).map(|number| number * 2))
    );
    assert_eq!(ledger.consumed, seen.len() as u64);
    assert!(ledger.failed > 0 && ledger.pending == 0, "{ledger:?}");
    assert_eq!(ledger.input, ledger.consumed + ledger.failed);
}
