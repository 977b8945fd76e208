//! Runs rings with threads at both ends. Slots are filled in advance and only published, so the measurement covers only
//! the transport and no data generator.

mod publish;

use super::BenchError;
use super::place::{Ends, Place, slots};
use daq_core::gpu::driver::Device;
use daq_core::ledger::{CopyLedger, ReaderLedger, RingLedger};
use daq_core::notify::{Notifier, Wait};
use daq_core::region::{Placement, Region};
use daq_core::ring::{Producer, Reader, Ring, RingOptions};
use daq_core::staging::{
    CopyEngineThread, CopyThread, Direction, RingCopy, Route, StagingError, Step, Tuning, on_stream,
};
use publish::{CommonEnd, publish};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time for which a harness runs before the measurement begins.
const WARM_UP: Duration = Duration::from_millis(150);
/// Interval at which a waiting thread checks for a stop request.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of frames published or released in one batch.
const BURST: usize = 512;
/// Number of steps of the copy engine thread between two reads of its CPU time.
const STEPS_PER_CPU_SAMPLE: u64 = 64;

/// The workload of one ring copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) direction: Direction,
    /// Number of bytes per frame. A frame fills its slot.
    pub(super) frame: usize,
    /// Number of bytes to publish per second. Without a rate, the publisher waits for free slots and publishes as fast
    /// as possible. With a rate, the publisher does not wait: a frame without a free slot is lost and counted.
    pub(super) rate: Option<f64>,
}

/// The frames of one ring copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traffic {
    /// Number of bytes per frame.
    pub(super) frame: usize,
    /// Number of bytes to publish per second, see [`Load`].
    pub(super) rate: Option<f64>,
}

/// The ring copies of one copy engine thread.
#[derive(Clone, Debug)]
pub(super) struct Group<'a> {
    pub(super) route: Route,
    pub(super) tuning: Tuning,
    pub(super) copies: Vec<(Ends<'a>, Traffic)>,
}

/// Counters of a running harness. Each list has one entry per [`Group`]. For [`Load`]s, the first is for copies to the
/// GPU, the second for copies from the GPU.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    /// Number of bytes that have been copied.
    pub(super) bytes: Vec<u64>,
    /// CPU time of the copy engine thread.
    pub(super) cpu: Vec<Duration>,
    /// Number of completed copies.
    pub(super) copies: Vec<u64>,
    /// Number of frames that found no free slot, or that were not copied.
    pub(super) lost: u64,
    /// Number of frames that have been copied.
    pub(super) frames: u64,
}

/// The figures of one measurement: bytes per second, number of busy cores, mean size of a copy in bytes, and number of
/// verified bytes. A figure is NaN if the method does not have it. Bytes are verified only in the first round.
pub(super) type Figures = [f64; 4];

/// What one [`Group`] has moved: bytes, seconds of CPU time and copies, each per second.
pub(super) type Moved = [f64; 3];

/// Returns the figures of a method that has only a rate.
pub(super) const fn only_rate(rate: f64) -> Figures {
    [rate, f64::NAN, f64::NAN, f64::NAN]
}

/// Returns the figures of groups together, without the number of verified bytes.
pub(super) fn figures(groups: &[Moved]) -> Figures {
    let sum = |i: usize| groups.iter().map(|moved| moved[i]).sum::<f64>();
    [sum(0), sum(1), sum(0) / sum(2), f64::NAN]
}

/// Returns the index of a direction in a [`Sample`].
pub(super) const fn index(direction: Direction) -> usize {
    match direction {
        Direction::In => 0,
        Direction::Out => 1,
    }
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    /// CPU time of each group's copy engine thread in nanoseconds.
    cpu: Vec<AtomicU64>,
    bytes: Vec<AtomicU64>,
    frames: AtomicU64,
    gaps: AtomicU64,
}

#[derive(Debug)]
pub(super) struct Harness {
    shared: Arc<Shared>,
    /// For each ring copy: the index of its group and its counters.
    copies: Vec<(usize, CopyLedger)>,
    rings: Vec<RingLedger>,
    threads: Vec<JoinHandle<Result<(), String>>>,
}

impl Harness {
    /// Starts one ring copy per load, and one copy engine thread per direction. The regions of the ring copies are in
    /// `places`.
    pub(super) fn start(
        device: &'static Device,
        places: &[Place],
        loads: &[Load],
        tunings: [Tuning; 2],
        wait: Wait,
    ) -> Result<Self, BenchError> {
        let gpu = Placement::Cuda(device.ordinal());
        let routes = [
            (Direction::In, Route::between(Placement::Host, gpu)),
            (Direction::Out, Route::between(gpu, Placement::Host)),
        ];
        let groups = routes.into_iter().zip(tunings);
        let groups: Vec<_> = groups
            .filter_map(|((direction, route), tuning)| {
                let loads = loads.iter().zip(places);
                let loads = loads.filter(|(load, _)| load.direction == direction);
                let copies = loads.map(|(load, place)| {
                    let Load { frame, rate, .. } = *load;
                    (place.ends(direction), Traffic { frame, rate })
                });
                Some(Group {
                    route: route?,
                    tuning,
                    copies: copies.collect(),
                })
            })
            .collect();
        Self::start_groups(&groups, wait)
    }

    /// Starts the ring copies and the copy engine thread of each group. A group without ring copies has no thread.
    pub(super) fn start_groups(groups: &[Group<'_>], wait: Wait) -> Result<Self, BenchError> {
        let mut harness = Self::new(groups.len());
        for (i, group) in groups.iter().enumerate() {
            if group.copies.is_empty() {
                continue;
            }
            let (notifier, tuning) = (Arc::new(Notifier::default()), group.tuning);
            let stream = on_stream(group.route, tuning.depth)?;
            let mut copy_engine = CopyEngineThread::new(stream, tuning, notifier.clone());
            for (ends, traffic) in &group.copies {
                let copies = harness.copy_ledger(i);
                copy_engine.add(harness.ring_copy(i, *traffic, *ends, &notifier, copies, tuning)?);
            }
            harness.run(copy_engine, wait, i);
        }
        Ok(harness)
    }

    /// Creates a harness without rings and threads, whose samples have `groups` entries.
    pub(super) fn new(groups: usize) -> Self {
        let words = || (0..groups).map(|_| AtomicU64::new(0)).collect();
        Self {
            shared: Arc::new(Shared {
                cpu: words(),
                bytes: words(),
                ..Shared::default()
            }),
            copies: Vec::new(),
            rings: Vec::new(),
            threads: Vec::new(),
        }
    }

    /// Creates the ledger of copies of a group.
    pub(super) fn copy_ledger(&mut self, group: usize) -> CopyLedger {
        let ledger = CopyLedger::default();
        self.copies.push((group, ledger.clone()));
        ledger
    }

    /// Starts a thread for the copies of a group.
    pub(super) fn run(&mut self, copies: impl CopyThread + 'static, wait: Wait, group: usize) {
        let shared = self.shared.clone();
        self.threads.push(std::thread::spawn(move || {
            serve(copies, wait, &shared, group).map_err(|error| error.to_string())
        }));
    }

    /// Creates a ring that notifies `bells`. Its frames are published by [`publish`](Self::publish).
    pub(super) fn source(
        &mut self,
        region: &Arc<Region>,
        traffic: Traffic,
        bells: Vec<Arc<Notifier>>,
    ) -> Result<(Ring, Producer), BenchError> {
        let options = RingOptions {
            notifiers: bells,
            supports_backpressure: traffic.rate.is_none(),
            ..slots(region, traffic.frame)
        };
        Ok(Ring::new(region.clone(), options, self.ledger())?)
    }

    /// Starts threads that publish the frames of sources, the same number of frames of each. All readers must be attached.
    pub(super) fn publish(&mut self, producers: Vec<Producer>, traffic: Traffic) {
        let end = Arc::new(CommonEnd::new(producers.len()));
        for producer in producers {
            let (shared, end) = (self.shared.clone(), end.clone());
            self.threads.push(std::thread::spawn(move || {
                publish(producer, traffic, &shared.stop, &end);
                Ok(())
            }));
        }
    }

    /// Creates a ring with the slots of the ring `like` for the copies of `group`, and starts a thread that releases its
    /// frames.
    pub(super) fn target(
        &mut self,
        region: &Arc<Region>,
        like: &Ring,
        notifier: &Arc<Notifier>,
        group: usize,
    ) -> Result<Producer, BenchError> {
        let options = RingOptions {
            notifiers: vec![notifier.clone()],
            supports_backpressure: true,
            ..like.options().clone()
        };
        let frame = options.slot_bytes;
        let (ring, producer) = Ring::new(region.clone(), options, RingLedger::default())?;
        let end = ring.attach(true, BURST, ReaderLedger::default())?;
        let shared = self.shared.clone();
        self.threads.push(std::thread::spawn(move || {
            take(end, group, frame, &shared);
            Ok(())
        }));
        Ok(producer)
    }

    /// Creates a ring copy and starts the threads at its ends.
    fn ring_copy(
        &mut self,
        group: usize,
        traffic: Traffic,
        ends: Ends<'_>,
        notifier: &Arc<Notifier>,
        copies: CopyLedger,
        tuning: Tuning,
    ) -> Result<RingCopy, BenchError> {
        let (source, producer) = self.source(ends.from, traffic, vec![notifier.clone()])?;
        let copied = self.target(ends.to, &source, notifier, group)?;
        let reader = source.attach(true, BURST, ReaderLedger::default())?;
        self.publish(vec![producer], traffic);
        Ok(RingCopy::new(reader, copied, copies, tuning.chunk))
    }

    fn ledger(&mut self) -> RingLedger {
        let ledger = RingLedger::default();
        self.rings.push(ledger.clone());
        ledger
    }

    /// Reads the counters.
    pub(super) fn sample(&self) -> Sample {
        let read = |words: &[AtomicU64]| -> Vec<u64> {
            let words = words.iter();
            words.map(|word| word.load(Ordering::Relaxed)).collect()
        };
        let mut copies = vec![0; self.shared.bytes.len()];
        for (group, ledger) in &self.copies {
            copies[*group] += ledger.copies.get();
        }
        let cpu = read(&self.shared.cpu).into_iter();
        Sample {
            bytes: read(&self.shared.bytes),
            cpu: cpu.map(Duration::from_nanos).collect(),
            copies,
            lost: self
                .rings
                .iter()
                .map(|ledger| ledger.ring_full.get())
                .sum::<u64>()
                + self.shared.gaps.load(Ordering::Relaxed),
            frames: self.shared.frames.load(Ordering::Relaxed),
        }
    }

    /// Lets the harness run for `window`, then stops it. Returns what each group has moved, and the number of copied frames
    /// for each ring copy.
    pub(super) fn observe(self, window: Duration) -> Result<(Vec<Moved>, Vec<u64>), BenchError> {
        std::thread::sleep(WARM_UP);
        let (before, start) = (self.sample(), Instant::now());
        std::thread::sleep(window);
        let (after, took) = (self.sample(), start.elapsed().as_secs_f64());
        let (last, copied) = self.stop()?;
        if last.lost > 0 {
            return Err(BenchError::Thread(format!(
                "{} frames were not copied; this is a defect in daq",
                last.lost
            )));
        }
        let moved = (0..after.bytes.len()).map(|i| {
            let bytes = (after.bytes[i] - before.bytes[i]) as f64;
            let cpu = after.cpu[i].saturating_sub(before.cpu[i]).as_secs_f64();
            let copies = (after.copies[i] - before.copies[i]) as f64;
            [bytes, cpu, copies].map(|grown| grown / took)
        });
        Ok((moved.collect(), copied))
    }

    /// Stops publishing and waits until all frames are copied. Returns the last sample, and the number of copied frames
    /// for each ring copy, group by group. Frames that were published but not copied count as lost.
    pub(super) fn stop(mut self) -> Result<(Sample, Vec<u64>), BenchError> {
        self.shared.stop.store(true, Ordering::Release);
        let mut failure = None;
        for thread in self.threads.drain(..) {
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(why)) => failure = Some(why),
                Err(_) => failure = Some("a thread of the measurement panicked".to_owned()),
            }
        }
        if let Some(why) = failure {
            return Err(BenchError::Thread(why));
        }
        let mut last = self.sample();
        let published: u64 = self.rings.iter().map(|ledger| ledger.published.get()).sum();
        last.lost += published - last.frames;
        let ring_copies = self.copies.iter().map(|(_, ledger)| ledger.frames.get());
        Ok((last, ring_copies.collect()))
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn serve(
    mut copies: impl CopyThread,
    wait: Wait,
    shared: &Shared,
    index: usize,
) -> Result<(), StagingError> {
    daq_core::thread::wake_on_time();
    let mut steps = 0_u64;
    loop {
        match copies.step() {
            Ok(Step::Finished) => return Ok(()),
            Ok(Step::Busy) => {}
            Ok(Step::Idle) => copies.wait(wait, STOP_POLL_INTERVAL),
            Err(error) => {
                shared.stop.store(true, Ordering::Release);
                while !copies.discard() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                return Err(error);
            }
        }
        steps += 1;
        if steps.is_multiple_of(STEPS_PER_CPU_SAMPLE) {
            let time = clock_gettime(ClockId::ThreadCPUTime);
            let time = u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
                + u64::try_from(time.tv_nsec).unwrap_or(0);
            shared.cpu[index].store(time, Ordering::Relaxed);
        }
    }
}

fn take(mut reader: Reader, group: usize, frame: usize, shared: &Shared) {
    let mut next = None;
    while !reader.is_finished() {
        let Some(lease) = reader.poll(4 * BURST) else {
            reader.wait(Wait::Adaptive, STOP_POLL_INTERVAL);
            continue;
        };
        let frames = lease.len() as u64;
        let first = lease.frame(0).meta().sequence;
        let last = lease.frame(lease.len() - 1).meta().sequence;
        // The publisher counts frames without a free slot as lost. Within a batch and between batches, frames must not
        // be out of order or arrive twice.
        if next.is_some_and(|next| first < next) || last < first || last - first + 1 < frames {
            shared.gaps.fetch_add(1, Ordering::Relaxed);
        }
        next = Some(last + 1);
        drop(lease);
        shared.frames.fetch_add(frames, Ordering::Relaxed);
        shared.bytes[group].fetch_add(frames * frame as u64, Ordering::Relaxed);
    }
}
