//! `daq fpga-owner`, the process that stops a card when the daemon that had it was killed.

use daq_drivers::fpga::guard;

/// Becomes the owner of `device`; the exit code.
pub fn owner(device: &str) -> u8 {
    guard::main(device)
}
