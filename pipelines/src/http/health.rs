//! Health of the data threads, used by the probes, `/status` and the watchdog.

use serde::Serialize;

/// The state of the data threads at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Health {
    /// Whether every source has started.
    pub started: bool,
    /// Whether the pipeline was stopped and is draining its rings.
    pub stopping: bool,
    /// Names of the data threads that have made no progress for longer than the stall timeout.
    pub stalled: Vec<String>,
    /// One sentence for each source that has received no data for longer than its `silent_after`, or that cannot receive data,
    /// such as `gige` without a camera.
    pub silent: Vec<String>,
}

impl Health {
    /// Whether every data thread makes progress.
    pub fn advances(&self) -> bool {
        self.stalled.is_empty()
    }

    /// Whether the pipeline is ready, which means that it processes data: every source has started, no source is silent or has
    /// an obstacle, every data thread makes progress, and the pipeline is not draining.
    pub fn is_ready(&self) -> bool {
        self.started && !self.stopping && self.silent.is_empty() && self.advances()
    }

    /// The state as one word: `stalled`, `stopping`, `silent`, `running` or `starting`.
    pub fn state(&self) -> &'static str {
        if !self.advances() {
            "stalled"
        } else if self.stopping {
            "stopping"
        } else if !self.silent.is_empty() {
            "silent"
        } else if self.started {
            "running"
        } else {
            "starting"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stall_takes_precedence_over_other_states() {
        let mut health = Health::default();
        assert_eq!((health.state(), health.is_ready()), ("starting", false));
        health.started = true;
        assert_eq!((health.state(), health.is_ready()), ("running", true));
        health.stalled.push("sink disk".to_owned());
        assert_eq!((health.state(), health.is_ready()), ("stalled", false));
        health.stalled.clear();
        health.silent.push("source adc: no packet".to_owned());
        assert_eq!((health.state(), health.is_ready()), ("silent", false));
        health.stopping = true;
        assert_eq!((health.state(), health.is_ready()), ("stopping", false));
        health.stalled.push("source adc".to_owned());
        assert_eq!((health.state(), health.advances()), ("stalled", false));
    }
}
