//! The counters of a sink `nats`.

use daq_core::counts;

counts! {
    /// The frames and messages of a sink `nats`.
    pub(crate) struct NatsCounts {
        /// Frames that a sink `nats` began to publish.
        published, counter "daq_sink_published_frames_total" {
            meaning: "Always the sum of acknowledged, refused and unacknowledged frames.",
        },
        /// Frames whose messages are all stored by the server.
        acknowledged, counter "daq_sink_acknowledged_frames_total" {
            meaning: "The server has confirmed that it stores each message of these frames. If the stream does not hold them \
                      afterwards, the frames also count in daq_sink_lost_frames_total.",
            cause: "A rate below that of daq_sink_published_frames_total: the server is slow, full or not reachable.",
            remedy: "See daq_sink_full and the log; check the server with `nats server report jetstream`.",
        },
        /// Frames that the server refused, or did not acknowledge before the end of the run.
        refused, counter "daq_sink_refused_frames_total" {
            meaning: "These frames count as lost, and are also in daq_sink_lost_frames_total. Of a frame that was not \
                      acknowledged before the end of the run, the server may store some or all messages.",
            cause: "The stream does not accept messages of this size, or the server was not reachable at the end of the run.",
            remedy: "The log names the reason.",
        },
        /// Messages that the sink published again, because the connection was interrupted or an acknowledgement is missing.
        repeated, counter "daq_sink_repeated_messages_total" {
            meaning: "A repeated message has the same id, so the server stores it once.",
            cause: "The server restarted, or the connection was interrupted.",
            remedy: "The log names each interruption.",
        },
        /// Repeated messages that the server recognised by their id and did not store again.
        deduplicated, counter "daq_sink_deduplicated_messages_total" {
            meaning: "The server had stored these messages before the interruption, but its acknowledgements were lost.",
        },
    }
    calculated {
        /// Frames that are published, and neither acknowledged nor refused.
        unacknowledged, gauge "daq_sink_unacknowledged_frames" {
            meaning: "At most `window` of the sink.",
            cause: "A constant value equal to `window`: the server does not acknowledge.",
            remedy: "Check that the server runs and that its stream has space; the log names the reason.",
        },
    }
    equation published = acknowledged + refused, unacknowledged;
}
