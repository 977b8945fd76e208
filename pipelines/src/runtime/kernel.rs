//! A kernel's thread: takes a burst, reserves output slots, and releases both when the work is done.

use super::{Control, FailureKind, Heartbeat, Progress, STOP_POLL_INTERVAL};
use daq_core::gpu::driver::{self, CudaError, StreamEvent};
use daq_core::kernel::{Kernel, KernelError, Stream, Submitted};
use daq_core::ledger::KernelLedger;
use daq_core::notify::{Notifier, Wait};
use daq_core::ring::{Completion, Lease, Producer, Reader, SlotsMut};
use daq_core::staging::InlineCopy;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

/// Inputs of a kernel's thread.
pub struct Parts {
    /// Name of the kernel.
    pub name: String,
    /// Reader of the input ring.
    pub reader: Reader,
    /// Producer of the output ring.
    pub producer: Producer,
    /// The stream of a kernel with dispatch `launch`.
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
    /// Whether the work runs on a device, which does not notify the thread.
    pub on_device: bool,
    /// The copy into the input ring that this thread makes itself, with the notifier of both rings.
    pub inline_copy: Option<(InlineCopy, Arc<Notifier>)>,
}

/// A kernel with its rings. Dropping it waits for the device; if the device does not finish, the memory it uses is
/// leaked.
pub struct Runner {
    name: String,
    inline_copy: Option<InlineCopy>,
    reader: Reader,
    producer: Producer,
    stream: Option<driver::Stream>,
    /// `None` after the kernel was leaked.
    kernel: Option<Box<dyn Kernel>>,
    ledger: KernelLedger,
    burst: usize,
    wait: Wait,
    notifier: Arc<Notifier>,
    on_device: bool,
    control: Arc<Control>,
    /// Maximum time for a device to finish one burst once the end is overdue.
    hang_timeout: Duration,
    /// Since when the end is overdue and the device has completed nothing.
    hanging: Option<Instant>,
    /// Whether a persistent kernel was found to hang.
    hung: bool,
    /// Whether work has failed. Later work is not published, because the slots before it were never filled.
    failed: bool,
    in_flight: VecDeque<InFlight>,
    timing: Timing,
}

/// Default timeout for a device to finish a burst when the end is overdue.
pub(crate) const HANG_TIMEOUT: Duration = Duration::from_secs(5);

/// Polling interval of a sleeping thread for work that sends no notification.
const DEVICE_POLL_INTERVAL: Duration = Duration::from_micros(50);

/// Maximum number of bursts of one kernel on a GPU at a time; enough to keep the GPU busy.
pub(crate) const MAX_IN_FLIGHT: usize = 8;

/// Work in flight on a device: what to count and publish when it is complete.
struct InFlight {
    frames: u64,
    outputs: u64,
    completion: Completion,
    /// The accepted frames; `None` if the call failed.
    submitted: Option<Submitted>,
    /// Event on the kernel's stream after the work.
    mark: Option<Arc<StreamEvent>>,
    /// Whether other work was in flight when this work was submitted.
    follows: bool,
}

/// GPU time of a kernel's work, counted on completion.
#[derive(Default)]
struct Timing {
    last: Option<Arc<StreamEvent>>,
}

impl Timing {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "times are positive and short"
    )]
    fn count(&mut self, ledger: &KernelLedger, mark: Arc<StreamEvent>, follows: bool) {
        let ns = |milliseconds: f32| (f64::from(milliseconds.max(0.0)) * 1e6) as u64;
        ledger.launches.add(1);
        ledger.device_ns.add(mark.milliseconds().map_or(0, ns));
        // If no work was in flight, the GPU waited for frames and not for the launch.
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
    /// There are no frames.
    Idle,
    /// Work in flight must complete first, or a reader of the output must free a slot.
    Full,
    /// The input has ended and all its frames are done.
    Finished,
}

impl Runner {
    /// Returns a kernel that is ready to run.
    pub fn new(parts: Parts) -> Self {
        let (inline_copy, notifier) = parts.inline_copy.unzip();
        Self {
            in_flight: VecDeque::with_capacity(
                // Bursts without outputs occupy only input slots.
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
            control: parts.control,
            hang_timeout: HANG_TIMEOUT,
            hanging: None,
            hung: false,
            failed: false,
            timing: Timing::default(),
        }
    }

    /// Starts a persistent kernel.
    pub fn begin(&mut self) -> Result<(), KernelError> {
        self.kernel.as_mut().map_or(Ok(()), |kernel| kernel.begin())
    }

    /// Runs until the input ends, the kernel fails or the end is overdue.
    pub fn run(mut self, heartbeat: &Heartbeat) {
        if self.on_device {
            // Polling of the device must not be delayed.
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
            self.control
                .fail(kind, format!("kernel `{}`", self.name), error.to_string());
            // Frames that arrive while the sources stop are counted as discarded.
            while !self.is_finished() && !self.hangs() {
                heartbeat.beat();
                // Later failures are consequences of the one already logged.
                let _ = self.reap();
                if let Some(inline_copy) = &mut self.inline_copy {
                    inline_copy.discard();
                }
                self.reader.discard_pending();
                self.wait(Step::Idle);
            }
        }
        if self.reader.has_in_flight() {
            self.leak();
        }
    }

    /// Whether the input has ended; if this thread fills the input, also closes it when its source has ended.
    fn is_finished(&mut self) -> bool {
        if self
            .inline_copy
            .as_ref()
            .is_some_and(InlineCopy::is_finished)
        {
            self.inline_copy = None;
        }
        self.inline_copy.is_none() && self.reader.is_finished()
    }

    /// Ends although the device has not finished, and leaks everything that the device may still use.
    fn leak(&mut self) {
        if let Some(stream) = &self.stream {
            stream.device().mark_hung();
        }
        self.producer.leak_memory();
        if let Some(kernel) = self.kernel.take() {
            kernel.leak();
        }
        std::mem::forget(self.stream.take());
        self.reader.detach_now();
    }

    /// Whether a device has taken so long for a burst that the end must not wait for it.
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
        loop {
            let before = self.in_flight.len();
            let step = self.step()?;
            // New submissions do not count as progress, because they are possible until the rings are full.
            let has_ended = step == Step::Moved && self.in_flight.len() <= before;
            let stalled = progress.look(before > 0, has_ended, heartbeat);
            if let Some(kernel) = self.kernel.as_mut().filter(|_| progress.is_slow()) {
                kernel.look()?;
                if let Some(hung) = kernel.hung().filter(|_| stalled) {
                    return Err(KernelError::Hung(hung));
                }
            }
            match step {
                Step::Finished => return Ok(()),
                Step::Moved => {}
                Step::Idle | Step::Full if self.hangs() => {
                    return Err(KernelError::Defect(format!(
                        "the device has not finished {} frames in time; daq exits without waiting for it, and the memory \
                         that it uses is not freed",
                        self.reader.held()
                    )));
                }
                Step::Idle | Step::Full => self.wait(step),
            }
        }
    }

    /// Waits briefly until the result of a step may differ from `step`.
    fn wait(&self, step: Step) {
        if step == Step::Full && !self.reader.has_in_flight() {
            // Completed bursts are frames in the output ring, whose readers may free slots.
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

    /// Publishes completed work and submits available frames; never waits.
    pub fn step(&mut self) -> Result<Step, KernelError> {
        let reaped = self.reap()?;
        let moved = |step| if reaped { Step::Moved } else { step };
        if let Some(inline_copy) = &mut self.inline_copy {
            inline_copy
                .step()
                .map_err(|error| KernelError::Unavailable(error.to_string()))?;
        }
        // The number of waiting frames determines the number of reserved slots. Readers without guarantee would see
        // unused reserved slots as overwritten.
        let waiting = usize::try_from(self.reader.pending()).unwrap_or(usize::MAX);
        let waiting = waiting.min(self.burst);
        if waiting == 0 {
            if self.inline_copy.is_some() && self.producer.open() == self.producer.submitted() {
                // Reserves a slot for the next frame early, because reserving waits for earlier stores to the GPU.
                self.producer.claim(1);
            }
            return Ok(if self.is_finished() {
                Step::Finished
            } else {
                moved(Step::Idle)
            });
        }
        // An event is free again when its burst has been completed and is not the last one timed.
        let has_free_event = self
            .stream
            .as_ref()
            .is_none_or(driver::Stream::has_free_event);
        // At most half of the output ring at a time, so that a reader without guarantee finds frames to lease.
        let slots = self.producer.options().slots as u64;
        let is_half = !self.in_flight.is_empty() && self.producer.submitted() >= slots.div_ceil(2);
        if !has_free_event || is_half {
            return Ok(moved(Step::Full));
        }
        let Some(kernel) = self.kernel.as_deref_mut() else {
            return Ok(Step::Finished);
        };
        let mut slots = self.producer.reserve(kernel.outputs(waiting));
        let room = slots.remaining();
        // Usually all of them; fewer if the output ring is nearly full.
        let frames = (0..=waiting)
            .rev()
            .find(|frames| kernel.outputs(*frames) <= room)
            .unwrap_or(0);
        if frames == 0 {
            if self.producer.has_leaked_slots() {
                return Err(KernelError::Unavailable(format!(
                    "ring `{}` is blocked by a reader whose device hangs",
                    self.producer.options().name
                )));
            }
            return Ok(moved(Step::Full));
        }
        let position = self.reader.position();
        // A reader that may be overrun or that drops incomplete frames may find no frame.
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
                Err(error) => Err((error, kernel.under_way())),
            },
            Some(stream) => launch(kernel, &lease, &mut slots, stream)
                .map_err(|(error, behind)| (error, behind.map(|mark| Completion::Event(mark)))),
        };
        let frames = lease.len() as u64;
        let (submitted, mark) = match ran {
            Ok(ran) => ran,
            Err((error, None)) => {
                self.failed = true;
                self.ledger.failed.add(frames);
                return Err(error);
            }
            Err((error, Some(completion))) => {
                self.failed = true;
                lease.retire(completion.clone());
                self.in_flight.push_back(InFlight {
                    frames,
                    outputs: 0,
                    completion,
                    submitted: None,
                    mark: None,
                    follows,
                });
                return Err(error);
            }
        };
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
            lease.retire(completion.clone());
            self.in_flight.push_back(InFlight {
                frames,
                outputs,
                completion,
                submitted: Some(submitted),
                mark,
                follows,
            });
        }
        Ok(Step::Moved)
    }

    /// Publishes the output of completed work. If the device failed, nothing is published and all frames count as
    /// failed. Returns whether any work was completed.
    fn reap(&mut self) -> Result<bool, KernelError> {
        let Self {
            reader,
            producer,
            ledger,
            hanging,
            failed,
            in_flight,
            timing,
            ..
        } = self;
        let before = in_flight.len();
        let mut failure: Option<CudaError> = None;
        reader.reap(|_| {
            *hanging = None;
            let Some(done) = in_flight.pop_front() else {
                return;
            };
            failure = failure.take().or_else(|| done.completion.failure());
            *failed |= failure.is_some();
            let Some(submitted) = done.submitted.filter(|_| !*failed) else {
                ledger.failed.add(done.frames);
                return;
            };
            producer.publish(done.outputs);
            count(ledger, &submitted, done.outputs);
            if let Some(mark) = done.mark {
                timing.count(ledger, mark, done.follows);
            }
        });
        let has_reaped = in_flight.len() < before;
        failure.map_or(Ok(has_reaped), |error| Err(KernelError::Cuda(error)))
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        // A panic can end a kernel while work is in flight.
        if !self.reader.detach() {
            self.leak();
        }
    }
}

/// Result of a launch with the event after it. A failed launch may also have an event, after the part that was
/// submitted; without an event none of its work is in flight.
type Launched =
    Result<(Submitted, Option<Arc<StreamEvent>>), (KernelError, Option<Arc<StreamEvent>>)>;

/// Submits a burst's work to a stream, between two events.
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
            // Only waiting can tell when the work ends; a device without events is fast enough for that.
            let _ = stream.synchronize();
            Err((ran.err().unwrap_or_else(|| unmarked.into()), None))
        }
    }
}

fn count(ledger: &KernelLedger, submitted: &Submitted, outputs: u64) {
    ledger.produced.add(outputs);
    // Out of `accumulating` before into the others: a snapshot in between shows frames as pending, never twice.
    let before = ledger.accumulating.get();
    let left = submitted.released + submitted.dropped;
    ledger
        .accumulating
        .set(before + submitted.accumulating - left);
    ledger.failed.add(submitted.failed + submitted.dropped);
    ledger.consumed.add(submitted.consumed + submitted.released);
}
