//! Whether the data threads work: what the probes, `/status` and the watchdog answer by.

use serde::Serialize;

/// The state of the data threads at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Health {
    /// Whether every source has started.
    pub ready: bool,
    /// Whether the pipeline has been told to end and drains.
    pub stopping: bool,
    /// Names of the data threads that have not advanced for longer than they may.
    pub stalled: Vec<String>,
}

impl Health {
    /// Whether every data thread advances.
    pub fn advances(&self) -> bool {
        self.stalled.is_empty()
    }

    /// Whether the pipeline takes data: every source has started and nobody has asked it to end.
    pub fn takes_data(&self) -> bool {
        self.ready && !self.stopping
    }

    /// One word for people: `stalled`, `stopping`, `running` or `starting`.
    pub fn state(&self) -> &'static str {
        if !self.advances() {
            "stalled"
        } else if self.stopping {
            "stopping"
        } else if self.ready {
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
    fn a_stall_outweighs_the_rest() {
        let mut health = Health::default();
        assert_eq!((health.state(), health.takes_data()), ("starting", false));
        health.ready = true;
        assert_eq!((health.state(), health.takes_data()), ("running", true));
        health.stopping = true;
        assert_eq!((health.state(), health.takes_data()), ("stopping", false));
        health.stalled.push("source adc".to_owned());
        assert_eq!((health.state(), health.advances()), ("stalled", false));
    }
}
