//! The faults that an emulated device still has to inject.

use daq_drivers::fpga::transports::emulated::{EmulatedOptions, FaultOption};

/// The faults of a device that are not injected yet.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    left: Vec<FaultOption>,
}

impl Faults {
    /// Returns the faults of `options`.
    pub fn new(options: &EmulatedOptions) -> Self {
        Self {
            left: options.faults.clone(),
        }
    }

    /// Returns true if the fault `name` is due at `transfer`, and removes the fault. Each fault is injected once.
    pub fn take(&mut self, name: &str, transfer: u64) -> bool {
        let place = self
            .left
            .iter()
            .position(|fault| fault.transfer == transfer && fault.name == name);
        place.map(|place| self.left.swap_remove(place)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_occurs_once() {
        let options = EmulatedOptions {
            faults: vec!["a@3".parse().unwrap(), "a@5".parse().unwrap()],
            ..EmulatedOptions::default()
        };
        let mut faults = Faults::new(&options);
        assert!(!faults.take("a", 2) && !faults.take("b", 3));
        assert!(faults.take("a", 3) && !faults.take("a", 3) && faults.take("a", 5));
    }
}
