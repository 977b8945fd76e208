//! A kernel's thread: a burst in, slots out, both given up when the work is done.

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

/// What a kernel's thread is made of.
pub struct Parts {
    /// Its name.
    pub name: String,
    /// The input.
    pub reader: Reader,
    /// The output.
    pub producer: Producer,
    /// The stream of a kernel that is launched on a GPU.
    pub stream: Option<driver::Stream>,
    /// The kernel.
    pub kernel: Box<dyn Kernel>,
    /// Its counters.
    pub ledger: KernelLedger,
    /// Most frames taken at once.
    pub burst: usize,
    /// How the thread waits for frames.
    pub wait: Wait,
    /// The state of its pipeline.
    pub control: Arc<Control>,
    /// Whether a device does the work, which rings no notifier.
    pub on_device: bool,
    /// What fills the input, where this thread does that itself, and the notifier that both its rings ring.
    pub inline_copy: Option<(InlineCopy, Arc<Notifier>)>,
}

/// A kernel with its ends. One that is dropped waits for its device; if that does not finish, what the device uses is
/// never freed.
pub struct Runner {
    name: String,
    inline_copy: Option<InlineCopy>,
    reader: Reader,
    producer: Producer,
    stream: Option<driver::Stream>,
    /// None once it is kept for ever.
    kernel: Option<Box<dyn Kernel>>,
    ledger: KernelLedger,
    burst: usize,
    wait: Wait,
    notifier: Arc<Notifier>,
    on_device: bool,
    control: Arc<Control>,
    /// How long a device may go on with one burst once the end is overdue.
    hang_timeout: Duration,
    /// Since when the end is overdue and a device has finished nothing.
    hanging: Option<Instant>,
    /// Whether a persistent kernel was found to hang.
    hung: bool,
    /// Whether work has failed: what ends from then on is not published, for the slots before it were never filled.
    failed: bool,
    in_flight: VecDeque<InFlight>,
    timing: Timing,
}

/// Default timeout for a device to finish a burst when the end is overdue.
pub(crate) const HANG_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a sleeping thread polls work that sends no notification.
const DEVICE_POLL_INTERVAL: Duration = Duration::from_micros(50);

/// Maximum number of bursts of one kernel on a GPU at a time. Enough to keep the GPU busy.
pub(crate) const MAX_IN_FLIGHT: usize = 8;

/// Work that a device has not finished: what to count and publish when it has.
struct InFlight {
    frames: u64,
    outputs: u64,
    completion: Completion,
    /// What the kernel took on; `None` where it failed half-way.
    submitted: Option<Submitted>,
    /// Where it ends on the kernel's stream.
    mark: Option<Arc<StreamEvent>>,
    /// Whether other work was under way when it was put on the stream.
    follows: bool,
}

/// How long a kernel's work takes on its GPU, counted as it is done.
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
        // Where nothing was under way the GPU waited for frames, not for the launch.
        if let Some(last) = self.last.take().filter(|_| follows) {
            ledger.gap_ns.add(mark.gap(&last).map_or(0, ns));
        }
        self.last = Some(mark);
    }
}

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Something was begun or ended.
    Moved,
    /// There are no frames.
    Idle,
    /// What is under way must end first, or a reader of the output make room.
    Full,
    /// The input is at its end, and everything of it is done.
    Finished,
}

impl Runner {
    /// Returns a kernel that is ready to run.
    pub fn new(parts: Parts) -> Self {
        let (inline_copy, notifier) = parts.inline_copy.unzip();
        Self {
            in_flight: VecDeque::with_capacity(
                // Bursts without outputs hold input slots alone.
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

    /// Lets a persistent kernel begin.
    pub fn begin(&mut self) -> Result<(), KernelError> {
        self.kernel.as_mut().map_or(Ok(()), |kernel| kernel.begin())
    }

    /// Runs until the input ends, the kernel fails or the end is overdue.
    pub fn run(mut self, heartbeat: &Heartbeat) {
        if self.on_device {
            // Looks at what a device does must not come late.
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
                // Later failures have the cause that was already logged.
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

    /// Whether the input is at its end; closes the ring that this thread fills once its source is.
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

    /// Ends although the device has not finished: whatever it was given may be used by it at any time.
    fn leak(&mut self) {
        if let Some(stream) = &self.stream {
            stream.device().mark_hung();
        }
        self.producer.leak_memory();
        if let Some(kernel) = self.kernel.take() {
            kernel.abandon();
        }
        std::mem::forget(self.stream.take());
        self.reader.detach_now();
    }

    /// Whether a device has not finished a burst for so long that the end must not wait for it.
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
            // What is begun behind something that hangs is no sign of life: it can go on until the rings are full.
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
                        "the device has not finished {} frames, and the end does not wait for it any longer; what it \
                         holds is not freed",
                        self.reader.held()
                    )));
                }
                Step::Idle | Step::Full => self.wait(step),
            }
        }
    }

    /// Waits until a step that came to `step` may come to something else, for a moment at most.
    fn wait(&self, step: Step) {
        if step == Step::Full && !self.reader.has_in_flight() {
            // What was in flight is frames in the output by now, and their readers make room.
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

    /// Publishes what is done and takes on what is there; never waits.
    pub fn step(&mut self) -> Result<Step, KernelError> {
        let reaped = self.reap()?;
        let moved = |step| if reaped { Step::Moved } else { step };
        if let Some(inline_copy) = &mut self.inline_copy {
            inline_copy
                .step()
                .map_err(|error| KernelError::Unavailable(error.to_string()))?;
        }
        // What waits decides how many slots are taken: slots reserved for frames that are not there would
        // look overwritten to readers of the output that are not waited for.
        let waiting = usize::try_from(self.reader.pending()).unwrap_or(usize::MAX);
        let waiting = waiting.min(self.burst);
        if waiting == 0 {
            if self.inline_copy.is_some() && self.producer.open() == self.producer.submitted() {
                // A slot for the next frame, while there is time: claiming one waits for what was stored to the GPU.
                self.producer.claim(1);
            }
            return Ok(if self.is_finished() {
                Step::Finished
            } else {
                moved(Step::Idle)
            });
        }
        // A mark is free again when its burst has been reaped and is not the last one timed.
        let has_free_event = self
            .stream
            .as_ref()
            .is_none_or(driver::Stream::has_free_event);
        // Not more than half of the output at a time: a reader that is not waited for must find something to lease.
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
        // Most often all of them; fewer when the output ring is nearly full.
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
        // A reader that may be overrun, or drops incomplete frames, can find nothing after all.
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

    /// Publishes the output of work that is done. Of work that the device failed in, nothing is published and all
    /// frames are counted as failed. Says whether any was done.
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
        // A panic can end a kernel with work under way.
        if !self.reader.detach() {
            self.leak();
        }
    }
}

/// What a launch came to, with the mark behind it. Of one that failed too there may be a mark behind what it has put on
/// the stream; without a mark nothing of it is under way.
type Launched =
    Result<(Submitted, Option<Arc<StreamEvent>>), (KernelError, Option<Arc<StreamEvent>>)>;

/// Puts a burst's work on a stream, between two marks.
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
            // Only waiting tells when it ends; a device that takes no mark does not take long either.
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
