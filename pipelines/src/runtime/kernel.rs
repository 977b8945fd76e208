//! Runs a kernel on its own thread. The thread leases a burst of frames, reserves output slots, and releases frames and
//! slots when the work is complete.

use super::{Control, FailureKind, Heartbeat, Progress, STOP_POLL_INTERVAL};
use daq_core::frame::FrameMeta;
use daq_core::gpu::driver::{self, StreamEvent};
use daq_core::kernel::{Kernel, KernelError, Stream, Submitted};
use daq_core::leak::leak;
use daq_core::ledger::{DeviceLedger, KernelLedger};
use daq_core::notify::{Notifier, Wait};
use daq_core::ring::{Completion, Lease, Producer, Reader, RingOptions, SlotsMut, WorkInFlight};
use daq_core::staging::RingCopy;
use daq_core::units::counted;
use std::sync::Arc;
use std::time::{Duration, Instant};

mod pace;
#[cfg(test)]
mod tests;

use pace::{Pace, fitting};

/// Inputs of a kernel's thread.
pub struct Parts {
    /// Name of the kernel.
    pub name: String,
    /// Reader of the input ring.
    pub reader: Reader,
    /// Producer of the output ring.
    pub producer: Producer,
    /// The CUDA stream of a kernel with dispatch `launch`; `None` for other kernels.
    pub stream: Option<driver::Stream>,
    /// The kernel.
    pub kernel: Box<dyn Kernel>,
    /// Counters of the kernel.
    pub ledger: KernelLedger,
    /// Maximum number of frames per burst.
    pub burst: usize,
    /// How the thread waits for frames.
    pub wait: Wait,
    /// State of the pipeline.
    pub control: Arc<Control>,
    /// Whether the work runs on a device. A device does not notify the thread when the work is complete.
    pub on_device: bool,
    /// Whether a failure loses only the frames of this kernel, and the pipeline continues.
    pub isolated: bool,
    /// Another kernel that is persistent on the same GPU, by name. It can prevent this kernel from running.
    pub persistent: Option<String>,
    /// The copy into the input ring that this thread performs, with the notifier that both rings of the copy use.
    pub inline_copy: Option<(RingCopy, Arc<Notifier>)>,
}

/// A kernel with its rings. Dropping the runner waits for the device. If the device does not finish, the memory that it
/// uses is leaked.
#[expect(
    clippy::struct_excessive_bools,
    reason = "two settings, two independent states of the device, and whether a message was logged"
)]
pub struct Runner {
    name: String,
    inline_copy: Option<RingCopy>,
    reader: Reader,
    producer: Producer,
    stream: Option<driver::Stream>,
    /// The kernel; `None` after it was leaked.
    kernel: Option<Box<dyn Kernel>>,
    ledger: KernelLedger,
    burst: usize,
    wait: Wait,
    notifier: Arc<Notifier>,
    on_device: bool,
    isolated: bool,
    persistent: Option<String>,
    control: Arc<Control>,
    /// Maximum time for a device to finish one burst after the drain deadline.
    hang_timeout: Duration,
    /// Time after the drain deadline since which the device has completed no work; `None` if the device makes progress.
    hanging: Option<Instant>,
    /// Whether a kernel was found to hang.
    hung: bool,
    /// Whether the device has completed work.
    has_completed: bool,
    in_flight: WorkInFlight<InFlight>,
    timing: Timing,
    /// The limit of frames per call on the CPU.
    pace: Pace,
    /// Time since which the thread has not waited: the end of the last call of the kernel, or of the last wait.
    ready: Instant,
    /// Whether frames that the kernel could not process were logged.
    failure_is_logged: bool,
    /// Whether frames were discarded because the drain time is over.
    is_late: bool,
}

/// Default maximum time for a device to finish one burst after the drain deadline.
pub(crate) const HANG_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time for a GPU to finish the first burst beside a persistent kernel, after which the kernel counts as hanging.
const FIRST_WORK_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval at which a sleeping thread checks work in flight that sends no notification.
const DEVICE_POLL_INTERVAL: Duration = Duration::from_micros(50);

/// Maximum number of bursts of one kernel in flight on a GPU. It is large enough to keep the GPU busy.
pub(crate) const MAX_IN_FLIGHT: usize = 8;

/// Work in flight on a device, with the values to count and publish when the work is complete.
struct InFlight {
    frames: u64,
    outputs: u64,
    /// Numbers of frames that the kernel accepted; `None` if the call failed.
    submitted: Option<Submitted>,
    /// Event on the kernel's stream that follows the work.
    mark: Option<Arc<StreamEvent>>,
    /// Whether earlier work was still in flight when this work was submitted.
    follows: bool,
}

/// Measures the GPU time of a kernel's work when the work is complete.
#[derive(Default)]
struct Timing {
    last: Option<Arc<StreamEvent>>,
}

impl Timing {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the times are not negative and fit into 64 bits"
    )]
    fn count(&mut self, ledger: &DeviceLedger, mark: Arc<StreamEvent>, follows: bool) {
        let ns = |milliseconds: f32| (f64::from(milliseconds.max(0.0)) * 1e6) as u64;
        ledger.launches.add(1);
        ledger.busy_ns.add(mark.milliseconds().map_or(0, ns));
        // If no work was in flight, the GPU was waiting for frames, not for the launch.
        if let Some(last) = self.last.take().filter(|_| follows) {
            ledger.gap_ns.add(mark.gap(&last).map_or(0, ns));
        }
        self.last = Some(mark);
    }
}

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Work was submitted or completed.
    Moved,
    /// No frames are available.
    Idle,
    /// The thread must wait for work in flight, or until a reader of the output frees a slot.
    Full,
    /// The input has ended and all its frames are processed.
    Finished,
}

impl Runner {
    /// Creates a runner that is ready to run.
    pub fn new(parts: Parts) -> Self {
        let (inline_copy, notifier) = parts.inline_copy.unzip();
        Self {
            in_flight: WorkInFlight::new(
                // A burst without outputs occupies only input slots.
                parts
                    .producer
                    .options()
                    .slots
                    .max(parts.reader.options().slots),
            ),
            name: parts.name,
            inline_copy,
            reader: parts.reader,
            producer: parts.producer,
            stream: parts.stream,
            kernel: Some(parts.kernel),
            ledger: parts.ledger,
            burst: parts.burst,
            wait: parts.wait,
            notifier: notifier.unwrap_or_default(),
            on_device: parts.on_device,
            isolated: parts.isolated,
            persistent: parts.persistent,
            control: parts.control,
            hang_timeout: HANG_TIMEOUT,
            hanging: None,
            hung: false,
            has_completed: false,
            timing: Timing::default(),
            pace: Pace::default(),
            ready: Instant::now(),
            failure_is_logged: false,
            is_late: false,
        }
    }

    /// Launches the code of a GPU kernel once without work, and waits for the end.
    pub fn launch_empty(&mut self) -> Result<(), KernelError> {
        let Some(kernel) = &mut self.kernel else {
            return Ok(());
        };
        let Some(stream) = &self.stream else {
            return kernel.launch_empty(Stream::Host);
        };
        kernel.launch_empty(Stream::Cuda(stream))?;
        Ok(stream.synchronize()?)
    }

    /// Checks the size of the output ring, and starts a persistent kernel.
    pub fn start(&mut self) -> Result<(), KernelError> {
        let Some(kernel) = &mut self.kernel else {
            return Ok(());
        };
        check_slots(kernel.outputs(1), self.producer.options())?;
        kernel.start()
    }

    /// Runs until the input ends, the kernel fails or the device hangs after the drain deadline.
    pub fn run(mut self, heartbeat: &Heartbeat) {
        if self.on_device {
            // The polling thread must wake up on time.
            daq_core::thread::wake_on_time();
        }
        if let Some(inline_copy) = &self.inline_copy {
            inline_copy.warn_if_remote_numa("[kernel.NAME] core");
        }
        if let Err(error) = self.work(heartbeat) {
            self.hung = matches!(error, KernelError::Hung(_));
            let kind = match error {
                KernelError::Cuda(_) | KernelError::Unavailable(_) => FailureKind::Device,
                _ => FailureKind::Defect,
            };
            let name = format!("kernel `{}`", self.name);
            if self.isolated && !self.hung {
                self.control.lose(kind, name, error.to_string());
            } else {
                self.control.fail(kind, name, error.to_string());
            }
            // Frames that arrive until the sources stop are counted as discarded.
            while !self.is_finished() && !self.hangs() {
                heartbeat.beat();
                // Further failures are consequences of the failure that was already logged.
                let _ = self.reap();
                if !self.reader.has_in_flight() {
                    self.producer.close();
                }
                if let Some(inline_copy) = &mut self.inline_copy {
                    inline_copy.discard();
                    inline_copy.notify_freed();
                }
                self.reader.discard_pending();
                self.wait(Step::Idle);
            }
        }
        if self.reader.has_in_flight() {
            self.leak();
        }
    }

    /// Returns whether the input has ended. If this thread copies into the input ring, closes that ring when the source
    /// of the copy has ended.
    fn is_finished(&mut self) -> bool {
        if self.inline_copy.as_ref().is_some_and(RingCopy::is_finished) {
            self.inline_copy = None;
        }
        self.inline_copy.is_none() && self.reader.is_finished()
    }

    /// Ends the runner although the device has not finished. [Leaks](daq_core::leak) everything that the device may still
    /// use.
    fn leak(&mut self) {
        if let Some(stream) = &self.stream {
            stream.device().mark_hung();
        }
        self.producer.leak();
        if let Some(kernel) = self.kernel.take() {
            kernel.leak();
        }
        leak(self.stream.take());
        self.reader.leak();
    }

    /// Returns whether the device has taken so long for a burst that the pipeline must end without waiting for the
    /// device.
    fn hangs(&mut self) -> bool {
        if self.hung {
            return true;
        }
        if !self.reader.has_in_flight() || !self.control.is_overdue() {
            self.hanging = None;
            return false;
        }
        self.hanging.get_or_insert_with(Instant::now).elapsed() >= self.hang_timeout
    }

    fn work(&mut self, heartbeat: &Heartbeat) -> Result<(), KernelError> {
        let mut progress = Progress::new();
        self.ready = Instant::now();
        loop {
            let before = self.in_flight.len();
            self.discard_overdue();
            let step = self.step()?;
            // Only completions count as progress. New submissions are possible until the rings are full.
            let has_ended = step == Step::Moved && self.in_flight.len() <= before;
            let stalled = progress.observe(before > 0, has_ended, heartbeat);
            if stalled && progress.elapsed() > FIRST_WORK_TIMEOUT {
                self.check_first_work()?;
            }
            if let Some(kernel) = self.kernel.as_mut().filter(|_| progress.is_slow()) {
                kernel.poll()?;
                if let Some(hung) = kernel.hang_report().filter(|_| stalled) {
                    return Err(KernelError::Hung(hung));
                }
            }
            match step {
                Step::Finished => return Ok(()),
                Step::Moved => {}
                Step::Idle | Step::Full if self.hangs() => {
                    return Err(KernelError::Defect(format!(
                        "the device has not finished {} frames in time; daq exits without waiting \
                         for the device, and the memory that the device uses is not freed",
                        self.reader.held()
                    )));
                }
                Step::Idle | Step::Full => {
                    self.wait(step);
                    self.ready = Instant::now();
                }
            }
        }
    }

    /// Discards the frames that a kernel on the CPU has not processed within the drain time.
    fn discard_overdue(&mut self) {
        if !self.is_on_cpu() || !self.control.is_overdue() {
            return;
        }
        let frames = self.reader.discard_pending();
        if frames > 0 && !std::mem::replace(&mut self.is_late, true) {
            let why = format!(
                "the drain time is over: at least {} were not processed and count as `discarded`; increase `--drain`, or use a \
                 faster kernel",
                counted(frames, "frame")
            );
            let name = format!("kernel `{}`", self.name);
            self.control.fail(FailureKind::Io, name, why);
        }
    }

    /// Checks a kernel whose work in flight takes longer than [`FIRST_WORK_TIMEOUT`]. Without a persistent kernel on the same GPU,
    /// the kernel itself may take that long.
    fn check_first_work(&self) -> Result<(), KernelError> {
        let Some(persistent) = self.persistent.as_ref().filter(|_| !self.has_completed) else {
            return Ok(());
        };
        Err(KernelError::Hung(format!(
            "the GPU has not completed the kernel's first burst of at most {} frames within {} s; the persistent kernel \
             `{persistent}` may keep it from running: give one of the two a GPU of its own (`device`); or the burst takes longer: \
             reduce `burst`",
            self.burst,
            FIRST_WORK_TIMEOUT.as_secs()
        )))
    }

    /// Waits briefly, until `step` may return a result other than `step`, the last result.
    fn wait(&self, step: Step) {
        if step == Step::Full && !self.reader.has_in_flight() {
            // All bursts are completed and their frames are in the output ring, so wait for its readers to free slots.
            self.producer.wait(self.wait, STOP_POLL_INTERVAL);
        } else if step == Step::Full {
            self.reader.wait_in_flight(self.wait, STOP_POLL_INTERVAL);
        } else if let Some(inline_copy) = &self.inline_copy {
            let ready = || {
                inline_copy.is_ready()
                    || inline_copy.is_finished()
                    || self.reader.pending() > 0
                    || self.reader.is_oldest_done()
            };
            let look = if self.reader.has_in_flight() {
                DEVICE_POLL_INTERVAL
            } else {
                STOP_POLL_INTERVAL
            };
            self.notifier
                .wait_polling(self.wait, look, STOP_POLL_INTERVAL, ready);
        } else {
            self.reader.wait(self.wait, STOP_POLL_INTERVAL);
        }
    }

    /// Publishes completed work and submits available frames. Never waits.
    pub fn step(&mut self) -> Result<Step, KernelError> {
        let step = self.advance();
        // A notification waits for the stores to the GPU, so it follows the submission.
        if let Some(inline_copy) = &mut self.inline_copy {
            inline_copy.notify_freed();
        }
        step
    }

    fn advance(&mut self) -> Result<Step, KernelError> {
        let reaped = self.reap()?;
        let moved = |step| if reaped { Step::Moved } else { step };
        if let Some(inline_copy) = &mut self.inline_copy {
            inline_copy
                .step()
                .map_err(|error| KernelError::Unavailable(error.to_string()))?;
        }
        // Reserve only as many slots as the waiting frames need. To readers without guarantee, reserved slots look
        // overwritten.
        let waiting = usize::try_from(self.reader.pending()).unwrap_or(usize::MAX);
        let (waiting, is_on_cpu) = (waiting.min(self.max_frames()), self.is_on_cpu());
        if waiting == 0 {
            if self.inline_copy.is_some() && self.producer.open() == self.producer.submitted() {
                // Reserve a slot for the next frame early, because reserving waits for earlier stores to the GPU.
                self.producer.claim(1);
            }
            return Ok(if self.is_finished() {
                Step::Finished
            } else {
                moved(Step::Idle)
            });
        }
        // An event becomes free when its burst is complete and a later burst has been timed.
        let has_free_event = self
            .stream
            .as_ref()
            .is_none_or(driver::Stream::has_free_event);
        // Use at most half of the output ring at a time, so that a reader without guarantee finds frames to lease.
        let half = self.producer.options().slots.div_ceil(2);
        let is_half = !self.in_flight.is_empty() && self.producer.submitted() >= half as u64;
        if !has_free_event || is_half {
            return Ok(moved(Step::Full));
        }
        let Some(kernel) = self.kernel.as_deref_mut() else {
            return Ok(Step::Finished);
        };
        let outputs = |frames| kernel.outputs(frames);
        let of_one = outputs(1);
        let waiting = fitting(waiting, half.max(of_one), outputs);
        let mut slots = self.producer.reserve(outputs(waiting));
        // Usually all waiting frames are processed; fewer if the output ring is nearly full.
        let frames = fitting(waiting, slots.remaining(), outputs);
        if frames == 0 {
            check_slots(of_one, self.producer.options())?;
            if self.producer.has_leaked_slots() {
                return Err(KernelError::Unavailable(format!(
                    "ring `{}` has no free slot, because a reader's device hangs",
                    self.producer.options().name
                )));
            }
            return Ok(moved(Step::Full));
        }
        let position = self.reader.position();
        // A reader that can be overrun, or that drops incomplete frames, may find no frame.
        let Some(lease) = self.reader.poll(frames) else {
            let has_passed = self.reader.position() > position;
            return Ok(if has_passed {
                Step::Moved
            } else {
                moved(Step::Full)
            });
        };
        self.ledger.input.add(lease.len() as u64);
        let follows = !self.in_flight.is_empty();
        let ran = match &self.stream {
            None => match kernel.run(&lease, &mut slots, Stream::Host) {
                Ok(submitted) => Ok((submitted, None)),
                Err(error) => Err((error, kernel.in_flight())),
            },
            Some(stream) => launch(kernel, &lease, &mut slots, stream)
                .map_err(|(error, behind)| (error, behind.map(|mark| Completion::Event(mark)))),
        };
        let frames = lease.len() as u64;
        let (submitted, mark) = match ran {
            Ok(ran) => ran,
            Err((error, None)) => {
                self.in_flight.fail();
                self.ledger.failed.add(frames);
                return Err(error);
            }
            Err((error, Some(completion))) => {
                self.in_flight.fail();
                let work = InFlight {
                    frames,
                    outputs: 0,
                    submitted: None,
                    mark: None,
                    follows,
                };
                self.in_flight.push(lease, completion, work);
                return Err(error);
            }
        };
        if is_on_cpu {
            // The only look at the clock per call.
            let now = Instant::now();
            let before = std::mem::replace(&mut self.ready, now);
            self.pace
                .record(lease.len(), now.saturating_duration_since(before));
        }
        if submitted.failed + submitted.dropped > 0 && !self.failure_is_logged {
            self.failure_is_logged = true;
            log_failed(&self.name, &lease, &submitted);
        }
        let completion = mark.clone().map_or_else(
            || submitted.completion.clone(),
            |mark| Completion::Event(mark),
        );
        if matches!(completion, Completion::Immediate) && self.in_flight.is_empty() {
            let outputs = slots.publish() as u64;
            count(&self.ledger, &submitted, outputs);
            lease.retire(Completion::Immediate);
        } else {
            let outputs = slots.submit() as u64;
            let work = InFlight {
                frames,
                outputs,
                submitted: Some(submitted),
                mark,
                follows,
            };
            self.in_flight.push(lease, completion, work);
        }
        Ok(Step::Moved)
    }

    /// Returns the maximum number of frames of the next call.
    fn max_frames(&self) -> usize {
        if self.is_on_cpu() {
            self.burst.min(self.pace.limit())
        } else {
            self.burst
        }
    }

    /// Returns whether the kernel runs on this thread.
    const fn is_on_cpu(&self) -> bool {
        self.stream.is_none() && !self.on_device
    }

    /// Publishes the output of completed work. If the device failed, publishes nothing and counts all frames as failed.
    /// Returns whether any work was completed.
    fn reap(&mut self) -> Result<bool, KernelError> {
        let Self {
            producer,
            ledger,
            timing,
            ..
        } = self;
        let (ended, failure) = self.in_flight.reap(&mut self.reader, |done, failed| {
            let Some(submitted) = done.submitted.filter(|_| !failed) else {
                ledger.failed.add(done.frames);
                return;
            };
            producer.publish(done.outputs);
            count(ledger, &submitted, done.outputs);
            if let Some(mark) = done.mark {
                timing.count(&ledger.device, mark, done.follows);
            }
        });
        if ended > 0 {
            self.has_completed = true;
            self.hanging = None;
        }
        failure.map_or(Ok(ended > 0), |error| Err(KernelError::Cuda(error)))
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        // A panic can end a kernel thread while work is in flight.
        if !self.reader.detach() {
            self.leak();
        }
    }
}

/// Result of a launch, with the event that follows the work. A failed launch may have submitted a part of its work; in
/// this case an event follows that part. If there is no event, no work of the launch is in flight.
type Launched =
    Result<(Submitted, Option<Arc<StreamEvent>>), (KernelError, Option<Arc<StreamEvent>>)>;

/// Submits the work of a burst to a stream, with one event before the work and one event after the work.
fn launch(
    kernel: &mut dyn Kernel,
    lease: &Lease<'_>,
    slots: &mut SlotsMut<'_>,
    stream: &driver::Stream,
) -> Launched {
    stream.begin().map_err(|error| (error.into(), None))?;
    let ran = kernel.run(lease, slots, Stream::Cuda(stream));
    if let Ok(submitted) = &ran
        && !matches!(submitted.completion, Completion::Immediate)
    {
        return ran
            .map(|submitted| (submitted, None))
            .map_err(|error| (error, None));
    }
    match (ran, stream.record_event()) {
        (Ok(submitted), Ok(mark)) => Ok((submitted, Some(mark))),
        (Err(error), Ok(mark)) => Err((error, Some(mark))),
        (ran, Err(unmarked)) => {
            // Without an event, only synchronising shows when the work ends. This case is rare, so its cost does not
            // matter.
            let _ = stream.synchronize();
            Err((ran.err().unwrap_or_else(|| unmarked.into()), None))
        }
    }
}

/// Rejects an output ring that has fewer slots than one input frame can have outputs, of which there are `outputs`. The kernel would
/// wait for free slots without end.
fn check_slots(outputs: usize, ring: &RingOptions) -> Result<(), KernelError> {
    if outputs <= ring.slots {
        return Ok(());
    }
    Err(KernelError::Refused(format!(
        "an input frame can have {outputs} output frames, but ring `{}` has {} slots; set `slots` of the ring to {} or more",
        ring.name,
        ring.slots,
        outputs.saturating_mul(2)
    )))
}

/// Logs that a kernel could not process frames of the burst `lease`, or frames before it.
fn log_failed(name: &str, lease: &Lease<'_>, submitted: &Submitted) {
    let metas = || lease.iter().map(|frame| *frame.meta());
    let number = |i: usize| lease.frame(i).meta().sequence;
    tracing::warn!(
        "kernel `{name}`: {} frames have no output and count as `failed`, first in the burst of frames {} to {}, of which the \
         shortest has {} bytes and {} have missing packets; possible reasons: a frame is shorter than the layout of the ring, \
         frames with missing packets are skipped (`partial = \"skip\"`), or a missing frame or a restart of the sender ended an \
         integration. Further failed frames are only counted",
        submitted.failed + submitted.dropped,
        number(0),
        number(lease.len() - 1),
        metas().map(|meta| meta.length).min().unwrap_or_default(),
        metas().filter(FrameMeta::is_incomplete).count(),
    );
}

fn count(ledger: &KernelLedger, submitted: &Submitted, outputs: u64) {
    ledger.produced.add(outputs);
    // Subtract from `accumulating` before adding to the other counters. A snapshot in between then shows frames as
    // pending, never twice.
    let before = ledger.accumulating.get();
    let left = submitted.released + submitted.dropped;
    ledger
        .accumulating
        .set(before + submitted.accumulating - left);
    ledger.failed.add(submitted.failed + submitted.dropped);
    ledger.filtered.add(submitted.filtered);
    ledger.consumed.add(submitted.consumed + submitted.released);
}
