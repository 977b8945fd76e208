//! `daq fpga-guard` is the process that stops a card after the daemon that used it was killed.

/// Guards `device`; returns the exit code.
pub(super) fn guard(device: &str) -> u8 {
    daq_drivers::fpga::guard::main(device)
}
