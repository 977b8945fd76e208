//! The counters of sinks that send frames to a peer.

use daq_core::counts;

counts! {
    /// The connections of a sink to its peer.
    pub(crate) struct ConnectionCounts {
        /// Connections of the sink to its peer.
        connections, counter "daq_sink_connections_total" {
            meaning: "The value is 1 in a run without interruptions. Each further connection follows an interruption.",
            cause: "The receiver restarted, or the link was down.",
            remedy: "The log names the reason for each interruption.",
        },
    }
}

counts! {
    /// How often a sink waited for its peer.
    pub(crate) struct StallCounts {
        /// Number of times that the sink had to wait because its peer had no free slot.
        stalls, counter "daq_sink_stalls_total" {
            meaning: "A few stalls per second are harmless. During a stall, frames wait in the ring that the sink \
                      reads.",
            cause: "The receiver's readers are slower than the sender.",
            remedy: "Increase `slots` of the receiver's ring, or make its readers faster. For a sink `udp`, the send \
                     buffer was full: set a `rate` that the link can carry.",
        },
    }
}
