//! Data sources of daq.

pub mod fpga;
pub mod hsb;
pub mod list;
pub mod packet;
pub mod rdma;
pub mod replay;
pub mod sender;
pub mod silence;
pub mod sim;
pub mod sys;
pub mod udp;
pub mod xdp;

#[cfg(test)]
#[path = "../tests/common/loopback.rs"]
mod loopback;

use daq_core::entry::SourceEntry;
use fpga::transports::emulated::EmulatedDevices;

/// Returns all sources of a program that provides the emulated devices `E`.
pub const fn sources<E: EmulatedDevices>() -> [SourceEntry; 7] {
    [
        udp::ENTRY,
        xdp::ENTRY,
        hsb::ENTRY,
        rdma::ENTRY,
        fpga::entry::<E>(),
        sim::ENTRY,
        replay::ENTRY,
    ]
}
