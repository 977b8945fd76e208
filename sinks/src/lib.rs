//! The sinks of daq. Each sink has one module and one entry in [`SINKS`].

#![warn(unreachable_pub)]

mod channel;
mod directory;
pub mod file;
mod finisher;
mod layout;
pub mod lock;
mod nats;
mod null;
mod peer;
mod presence;
pub mod sigmf;
mod stem;
pub mod stream;
mod udp;
mod zarr;

use daq_core::entry::SinkEntry;
use daq_core::ledger::CountSet;

/// The registry entries of all sinks.
///
/// ```
/// let file = daq_sinks::SINKS.iter().find(|entry| entry.name == "file");
/// assert!(file.is_some());
/// ```
pub const SINKS: &[SinkEntry] = &[
    file::ENTRY,
    zarr::ENTRY,
    udp::ENTRY,
    stream::ENTRY,
    nats::ENTRY,
    null::ENTRY,
];

/// The counters that only some sinks have.
pub const COUNTS: &[&CountSet] = &[
    peer::ConnectionCounts::SET,
    peer::StallCounts::SET,
    udp::counts::UdpCounts::SET,
    nats::counts::NatsCounts::SET,
];
