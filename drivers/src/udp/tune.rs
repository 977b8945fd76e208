//! Adapts the number of messages and packets per receive call to the traffic.

/// Maximum number of messages per system call.
pub(super) const MESSAGES: usize = 64;
/// Maximum number of coalesced messages per system call, if their payload is copied.
pub(super) const COALESCED: usize = 8;
/// Maximum number of packet slots predicted for one system call.
pub(super) const MAX_BATCH_PACKETS: usize = 512;
/// Number of mispredicted batches in a row after which prediction pauses.
const BAD: u32 = 3;
/// Length of a prediction pause in batches: initial value and maximum.
const REST: (u32, u32) = (32, 2048);
/// Number of batches in a row with smaller messages after which fewer packets per message are predicted.
const SMALLER: u32 = 16;

/// Result of a batch that was received into predicted packet slots.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// Number of messages received.
    pub messages: usize,
    /// Number of packets in the largest message.
    pub fullest: usize,
    /// Whether a message other than the last had a different number of packets than predicted.
    pub uneven: bool,
    /// Number of packets that were predicted correctly.
    pub matched: u64,
    /// Number of packets that must be moved to another packet slot.
    pub moved: u64,
}

/// The current prediction and its history.
#[derive(Clone, Debug)]
pub(super) struct Tune {
    /// Number of messages to predict.
    messages: usize,
    /// Number of packets per message to predict.
    segments: usize,
    /// Number of batches in a row whose largest message was smaller than predicted.
    smaller: u32,
    /// Number of even batches since the number of messages last changed. In an even batch, all messages but the last
    /// have the predicted size.
    even: u32,
    /// Number of even batches required before more messages are predicted.
    trust: u32,
    /// Number of mispredicted batches in a row.
    bad: u32,
    /// Number of batches until prediction resumes.
    rest: u32,
    /// Number of batches of the next pause.
    next_rest: u32,
}

impl Default for Tune {
    fn default() -> Self {
        Self {
            messages: 4,
            segments: 1,
            smaller: 0,
            even: 0,
            trust: 1,
            bad: 0,
            rest: 0,
            next_rest: REST.0,
        }
    }
}

impl Tune {
    /// Returns whether to receive the next batch into predicted packet slots.
    pub(super) fn guesses(&mut self) -> bool {
        let rests = self.rest > 0;
        self.rest = self.rest.saturating_sub(1);
        !rests
    }

    /// Returns the number of messages and the number of packets per message to predict.
    pub(super) fn guess(&self) -> (usize, usize) {
        (
            self.messages
                .min((MAX_BATCH_PACKETS / self.segments).max(1)),
            self.segments,
        )
    }

    /// Returns the number of messages to receive without prediction. `is_rule` is false if a prediction was due but not
    /// possible; then the batch is small, so that the next prediction follows soon.
    pub(super) fn plain(&self, is_rule: bool) -> usize {
        // The messages are read immediately, so they should still fit into a CPU cache.
        let cached = if self.segments > 1 {
            COALESCED
        } else {
            MESSAGES
        };
        if is_rule { cached } else { cached / 4 }
    }

    /// Updates the prediction after a batch that was received without prediction.
    pub(super) fn saw_plain(&mut self, fullest: usize) {
        self.segments = self.segments.max(fullest);
    }

    /// Updates the prediction after a batch that was received into predicted packet slots.
    pub(super) fn saw(&mut self, seen: Seen) {
        if seen.messages == 0 {
            return;
        }
        self.size(seen.fullest);
        if seen.uneven {
            // A single message can have any size without affecting later messages.
            (self.messages, self.even) = (1, 0);
            self.trust = (self.trust * 2).min(1024);
        } else {
            self.even += 1;
            if self.even >= self.trust {
                self.even = 0;
                self.messages = (self.messages * 2).min(MESSAGES);
            }
        }
        if seen.moved <= seen.matched {
            (self.bad, self.next_rest) = (0, REST.0);
            return;
        }
        self.bad += 1;
        if self.bad >= BAD {
            (self.bad, self.rest) = (0, self.next_rest);
            self.next_rest = (self.next_rest * 2).min(REST.1);
        }
    }

    fn size(&mut self, fullest: usize) {
        if fullest >= self.segments {
            (self.segments, self.smaller) = (fullest, 0);
            return;
        }
        self.smaller += 1;
        if self.smaller >= SMALLER {
            (self.segments, self.smaller) = (fullest.max(1), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good(packets: usize) -> Seen {
        Seen {
            messages: 2,
            fullest: packets,
            matched: 2 * packets as u64,
            ..Seen::default()
        }
    }

    #[test]
    fn even_messages_are_received_in_batches() {
        let mut tune = Tune::default();
        for _ in 0..10 {
            tune.saw(good(44));
        }
        assert_eq!(tune.guess(), (MAX_BATCH_PACKETS / 44, 44));
        for _ in 0..SMALLER {
            tune.saw(good(1));
        }
        assert_eq!(tune.guess(), (64, 1));
    }

    #[test]
    fn uneven_messages_are_received_singly() {
        let mut tune = Tune::default();
        tune.saw(good(8));
        tune.saw(Seen {
            uneven: true,
            ..good(8)
        });
        assert_eq!(tune.guess(), (1, 8));
        tune.saw(good(8));
        assert_eq!(tune.guess(), (1, 8));
        tune.saw(good(8));
        assert_eq!(tune.guess(), (2, 8));
    }

    #[test]
    fn prediction_backs_off_after_misses() {
        let mut tune = Tune::default();
        let bad = Seen {
            messages: 1,
            fullest: 1,
            moved: 1,
            ..Seen::default()
        };
        for rest in [32, 64, 128] {
            for _ in 0..BAD {
                assert!(tune.guesses());
                tune.saw(bad);
            }
            for _ in 0..rest {
                assert!(!tune.guesses());
            }
        }
        assert!(tune.guesses());
        tune.saw(good(1));
        assert_eq!(tune.next_rest, 32);
    }
}
