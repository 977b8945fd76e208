//! The start of a pipeline: its current step, which another thread can observe and cancel.

use super::StartError;
use daq_core::kernel::Side;
use daq_core::plan::PlannedKernel;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum time for a GPU to launch or start a kernel. A GPU that waits for another kernel may never start it.
const GPU_LIMIT: Duration = Duration::from_mins(2);

/// The steps of a start.
#[derive(Debug, Default)]
pub struct Startup {
    step: Mutex<Option<Step>>,
    is_cancelled: AtomicBool,
}

#[derive(Clone, Debug)]
struct Step {
    what: String,
    since: Instant,
    limit: Option<Duration>,
}

/// The step that a start currently performs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurrentStep {
    /// The step, such as ``allocating ring `raw` ``.
    pub what: String,
    /// Time since the step began.
    pub elapsed: Duration,
    /// Whether the step takes longer than its limit, so that it will probably never end.
    pub is_overdue: bool,
}

impl Startup {
    /// Requests the start to end with [`StartError::Cancelled`] before its next step.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Release);
    }

    /// Returns the current step; `None` before the first.
    pub fn current(&self) -> Option<CurrentStep> {
        self.current_at(Instant::now())
    }

    fn current_at(&self, now: Instant) -> Option<CurrentStep> {
        let step = self.step.lock().unwrap_or_else(PoisonError::into_inner);
        step.as_ref().map(|step| {
            let elapsed = now.saturating_duration_since(step.since);
            CurrentStep {
                what: step.what.clone(),
                elapsed,
                is_overdue: step.limit.is_some_and(|limit| elapsed > limit),
            }
        })
    }

    /// Begins a step.
    ///
    /// # Errors
    /// If the start was cancelled.
    pub fn begin(&self, what: String) -> Result<(), StartError> {
        self.enter(what, None)
    }

    /// Begins to launch or start a kernel. On a GPU, this step has a time limit.
    ///
    /// # Errors
    /// If the start was cancelled.
    pub(super) fn begin_kernel(
        &self,
        action: &str,
        kernel: &PlannedKernel,
    ) -> Result<(), StartError> {
        let limit = (kernel.side != Side::Cpu).then_some(GPU_LIMIT);
        self.enter(format!("{action} kernel `{}`", kernel.name), limit)
    }

    fn enter(&self, what: String, limit: Option<Duration>) -> Result<(), StartError> {
        if self.is_cancelled.load(Ordering::Acquire) {
            return Err(StartError::Cancelled);
        }
        let since = Instant::now();
        let step = Step { what, since, limit };
        *self.step.lock().unwrap_or_else(PoisonError::into_inner) = Some(step);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_can_have_a_limit_and_all_can_be_cancelled() {
        let startup = Startup::default();
        assert_eq!(startup.current(), None);
        let later = Instant::now() + GPU_LIMIT * 2;
        startup.begin("allocating ring `raw`".to_owned()).unwrap();
        assert!(!startup.current_at(later).unwrap().is_overdue);
        let gain = "starting kernel `gain`".to_owned();
        startup.enter(gain, Some(GPU_LIMIT)).unwrap();
        let step = startup.current_at(later).unwrap();
        assert_eq!(
            (&*step.what, step.is_overdue),
            ("starting kernel `gain`", true)
        );
        assert!(!startup.current().unwrap().is_overdue);
        startup.cancel();
        let error = startup.begin("opening sink `disk`".to_owned()).unwrap_err();
        assert!(matches!(error, StartError::Cancelled), "{error}");
        assert_eq!(startup.current().unwrap().what, "starting kernel `gain`");
    }
}
