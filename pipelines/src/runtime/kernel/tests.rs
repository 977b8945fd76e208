//! Tests the runner with a kernel that submits work to a simulated device, which completes the work later.

use super::super::control::Role;
use super::*;
use daq_core::frame::FrameMeta;
use daq_core::gpu::Event;
use daq_core::ledger::{KernelReport, ReaderLedger, RingLedger};
use daq_core::region::{HostOptions, Region};
use daq_core::ring::{Lease, Ring, RingOptions, SlotsMut};
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
struct Finished(AtomicBool);

impl Event for Finished {
    fn is_done(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The work of one call of the kernel, and the number of outputs submitted before this call.
struct Job {
    finished: Arc<Finished>,
    before: u64,
}

/// A kernel that doubles numbers. Another thread signals when the work of a call is complete.
struct Doubler {
    device: mpsc::Sender<Job>,
    made: u64,
    fails_at: u64,
}

impl Kernel for Doubler {
    fn run(
        &mut self,
        burst: &Lease<'_>,
        out: &mut SlotsMut<'_>,
        _: Stream<'_>,
    ) -> Result<Submitted, KernelError> {
        if self.made >= self.fails_at {
            return Err(KernelError::Defect(
                "the device fell off the bus".to_owned(),
            ));
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
        let finished = Arc::new(Finished::default());
        let job = Job {
            finished: finished.clone(),
            before,
        };
        // A hanging device has closed its queue, so sending fails.
        let _ = self.device.send(job);
        Ok(Submitted {
            completion: Completion::Event(finished),
            ..Submitted::done(burst.len() as u64)
        })
    }
}

/// Outputs and counters after a run with 500 numbers.
struct Outcome {
    seen: Vec<u64>,
    ledger: KernelReport,
    failures: usize,
}

/// Runs 500 numbers through a [`Doubler`] that fails after `fails_at` numbers. The device completes no work submitted
/// after `hangs_at` numbers.
fn run(fails_at: u64, hangs_at: u64) -> Outcome {
    let (_input, producer, reader) = ring("input", 4);
    let (output, outputs, mut results) = ring("output", 2);
    let (device, jobs) = mpsc::channel::<Job>();
    let ledger = KernelLedger::default();
    let control = Arc::new(Control::new(Duration::ZERO));
    let hang_timeout = if hangs_at < 500 {
        // The runner stops waiting for the device only while the pipeline is stopping.
        control.stop();
        Duration::from_millis(50)
    } else {
        Duration::from_mins(5)
    };
    let mut runner = Runner::new(Parts {
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
        control: control.clone(),
        stream: None,
        on_device: true,
        isolated: false,
        persistent: None,
        inline_copy: None,
    });
    runner.hang_timeout = hang_timeout;
    let is_over = AtomicBool::new(false);
    let seen =
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut producer = producer;
                for number in 0..500_u64 {
                    while producer.claim(1) == 0 {
                        if is_over.load(Ordering::Acquire) {
                            return;
                        }
                        producer.wait(Wait::Event, STOP_POLL_INTERVAL);
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
            scope.spawn(move || runner.run(&Heartbeat::new("doubler".to_owned(), Role::Step)));
            scope.spawn(move || {
                for job in jobs.iter().take_while(|job| job.before < hangs_at) {
                    assert!(
                        output.published() <= job.before,
                        "an output frame was published before the device had finished it"
                    );
                    job.finished.0.store(true, Ordering::Release);
                }
            });
            let mut seen = Vec::new();
            while !results.is_finished() {
                if let Some(lease) = results.poll(8) {
                    seen.extend(lease.iter().map(|frame| {
                        u64::from_le_bytes(frame.bytes().unwrap().try_into().unwrap())
                    }));
                } else {
                    results.wait(Wait::Event, STOP_POLL_INTERVAL);
                }
            }
            is_over.store(true, Ordering::Release);
            seen
        });
    let failures = control.failures().len();
    let ledger = KernelReport::of(&ledger);
    assert!(
        seen.iter()
            .copied()
            .eq((0..seen.len() as u64).map(|number| number * 2))
    );
    assert_eq!(ledger.consumed, seen.len() as u64);
    assert_eq!(
        ledger.input,
        ledger.consumed + ledger.failed + ledger.pending
    );
    Outcome {
        seen,
        ledger,
        failures,
    }
}

#[test]
fn outputs_are_published_in_order_after_device_completion() {
    let outcome = run(u64::MAX, u64::MAX);
    assert_eq!((outcome.seen.len(), outcome.failures), (500, 0));
    assert_eq!((outcome.ledger.failed, outcome.ledger.pending), (0, 0));
}

#[test]
fn frames_in_flight_at_kernel_failure_are_published_and_counted() {
    let outcome = run(100, u64::MAX);
    assert!(outcome.seen.len() >= 100 && outcome.failures == 1);
    assert!(outcome.ledger.failed > 0 && outcome.ledger.pending == 0);
}

#[test]
fn device_hang_does_not_block_exit() {
    let outcome = run(u64::MAX, 100);
    assert!(outcome.seen.len() <= 102 && outcome.failures == 1);
    assert!(outcome.ledger.pending > 0);
    // A hang also does not block the exit if the kernel has already failed.
    let outcome = run(102, 100);
    assert!(outcome.seen.len() <= 102 && outcome.failures >= 1);
}

#[test]
fn first_work_has_a_limit_only_beside_a_persistent_kernel() {
    let (_input, _producer, reader) = ring("input", 4);
    let (_output, outputs, _results) = ring("output", 2);
    let (device, _jobs) = mpsc::channel();
    let mut runner = Runner::new(Parts {
        name: "slow".to_owned(),
        kernel: Box::new(Doubler {
            device,
            made: 0,
            fails_at: u64::MAX,
        }),
        reader,
        producer: outputs,
        ledger: KernelLedger::default(),
        burst: 3,
        wait: Wait::Event,
        control: Arc::new(Control::new(Duration::ZERO)),
        stream: None,
        on_device: true,
        isolated: false,
        persistent: None,
        inline_copy: None,
    });
    assert!(runner.check_first_work().is_ok());
    runner.persistent = Some("stays".to_owned());
    let error = runner.check_first_work().unwrap_err().to_string();
    for part in [
        "first burst of at most 3 frames",
        "persistent kernel `stays`",
        "reduce `burst`",
    ] {
        assert!(error.contains(part), "{error}");
    }
    runner.has_completed = true;
    assert!(runner.check_first_work().is_ok());
}

/// A kernel on the CPU that keeps every `every`-th frame, as far as it knows its inputs: it reserves a slot for each.
struct Sieve {
    every: u64,
    /// The numbers of frames of all calls.
    calls: Arc<std::sync::Mutex<Vec<usize>>>,
    /// Number of outputs per frame that the kernel reserves.
    outputs: usize,
}

impl Kernel for Sieve {
    fn outputs(&self, frames: usize) -> usize {
        frames * self.outputs
    }

    fn run(
        &mut self,
        burst: &Lease<'_>,
        out: &mut SlotsMut<'_>,
        _: Stream<'_>,
    ) -> Result<Submitted, KernelError> {
        self.calls.lock().unwrap().push(burst.len());
        let mut submitted = Submitted::done(0);
        for frame in burst.iter() {
            let number = frame.meta().sequence;
            if number.is_multiple_of(self.every) {
                out.finish(FrameMeta::whole(number / self.every, 8));
                submitted.consumed += 1;
            } else {
                submitted.failed += 1;
            }
        }
        Ok(submitted)
    }
}

/// Returns the runner of a [`Sieve`], the producer of its input, its output ring, a reader of the output, and the numbers of frames
/// of its calls.
fn sieve(
    (every, per_frame): (u64, usize),
    slots: usize,
    guarantee: bool,
) -> (
    Runner,
    Producer,
    Ring,
    Reader,
    Arc<std::sync::Mutex<Vec<usize>>>,
) {
    let (_input, producer, reader) = ring("input", 64);
    let options = RingOptions::new("output", slots, 8);
    let region = Region::host(options.region_bytes(), HostOptions::default()).unwrap();
    let (output, outputs) = Ring::new(region, options, RingLedger::default()).unwrap();
    let results = output
        .attach(guarantee, 16, ReaderLedger::default())
        .unwrap();
    let calls = Arc::new(std::sync::Mutex::new(Vec::new()));
    let runner = Runner::new(Parts {
        name: "sieve".to_owned(),
        kernel: Box::new(Sieve {
            every,
            calls: calls.clone(),
            outputs: per_frame,
        }),
        reader,
        producer: outputs,
        ledger: KernelLedger::default(),
        burst: 16,
        wait: Wait::Event,
        control: Arc::new(Control::new(Duration::ZERO)),
        stream: None,
        on_device: false,
        isolated: false,
        persistent: None,
        inline_copy: None,
    });
    (runner, producer, output, results, calls)
}

fn fill(producer: &mut Producer, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let mut slots = producer.reserve(1);
        slots.finish(FrameMeta::whole(number, 8));
        slots.publish();
    }
}

/// Otherwise nothing is published, and no heartbeat is given, before all frames of a burst are processed.
#[test]
fn first_call_on_the_cpu_has_one_frame() {
    let (mut runner, mut producer, output, _results, calls) = sieve((1, 1), 64, true);
    fill(&mut producer, 0..16);
    assert_eq!(runner.step().unwrap(), Step::Moved);
    assert_eq!(output.published(), 1);
    // A call that has taken long is not followed by a burst.
    runner.pace = Pace::default();
    runner.pace.record(1, Duration::from_secs(2));
    assert_eq!(runner.step().unwrap(), Step::Moved);
    assert_eq!(
        (output.published(), &calls.lock().unwrap()[..]),
        (2, &[1, 1][..])
    );
}

/// A kernel reserves a slot for each frame that it may keep. Reserved slots look overwritten to a reader without guarantee.
#[test]
fn readers_without_guarantee_find_frames_of_a_kernel_that_keeps_few() {
    for slots in [2, 4, 8, 64] {
        let (mut runner, mut producer, output, mut results, _) = sieve((10, 1), slots, false);
        let mut read = 0;
        for round in 0..40 {
            // Other tests check the pace.
            runner.pace = Pace::default();
            (0..6).for_each(|_| runner.pace.record(64, Duration::ZERO));
            fill(&mut producer, round * 10..round * 10 + 10);
            while runner.step().unwrap() == Step::Moved {}
            read += results.poll(16).map_or(0, |lease| lease.len());
        }
        assert_eq!((output.published(), read), (40, 40), "{slots} slots");
    }
}

#[test]
fn output_ring_with_too_few_slots_is_refused() {
    let (mut runner, mut producer, ..) = sieve((1, 9), 8, true);
    let error = runner.start().unwrap_err().to_string();
    for part in ["9 output frames", "ring `output` has 8 slots", "18 or more"] {
        assert!(error.contains(part), "{error}");
    }
    // A kernel that needs more slots later does not wait for ever either.
    fill(&mut producer, 0..1);
    let error = runner.step().unwrap_err().to_string();
    assert!(error.contains("has 8 slots"), "{error}");
    let (mut runner, mut producer, ..) = sieve((1, 8), 8, true);
    runner.start().unwrap();
    fill(&mut producer, 0..1);
    assert_eq!(runner.step().unwrap(), Step::Moved);
}

#[test]
fn failed_frames_are_logged_once() {
    let (mut runner, mut producer, ..) = sieve((2, 1), 64, true);
    fill(&mut producer, 0..1);
    assert_eq!(runner.step().unwrap(), Step::Moved);
    assert!(!runner.failure_is_logged);
    fill(&mut producer, 1..2);
    assert_eq!(runner.step().unwrap(), Step::Moved);
    assert!(runner.failure_is_logged);
}

#[test]
fn frames_that_a_slow_kernel_has_not_processed_within_the_drain_time_are_discarded() {
    let (runner, mut producer, _output, _results, calls) = sieve((1, 1), 64, true);
    let (control, counters) = (runner.control.clone(), runner.ledger.clone());
    fill(&mut producer, 0..10);
    producer.close();
    control.stop();
    while !control.is_overdue() {
        std::thread::yield_now();
    }
    runner.run(&Heartbeat::new("sieve".to_owned(), Role::Step));
    assert!(calls.lock().unwrap().is_empty() && counters.input.get() == 0);
    let failures = control.failures();
    assert_eq!(failures.len(), 1);
    assert!(
        failures[0].why.contains("at least 10 frames"),
        "{}",
        failures[0].why
    );
}
