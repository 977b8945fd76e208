//! `daq fpga-guard`, the process that stops a card when the daemon that had it was killed.

/// Guards `device`; returns the exit code.
pub fn guard(device: &str) -> u8 {
    daq_drivers::fpga::guard::main(device)
}
