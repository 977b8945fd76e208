//! How much to ask of the kernel at a time, learned from what came.

/// Messages received by one system call, at most.
pub(super) const MESSAGES: usize = 64;
/// Coalesced messages received by one system call, at most, where their payload is copied.
pub(super) const COALESCED: usize = 8;
/// Places guessed for one system call, at most.
pub(super) const PLACES: usize = 512;
/// Wrong guesses in a row after which guessing is given up for a while.
const BAD: u32 = 3;
/// Batches without guesses, at first and at most.
const REST: (u32, u32) = (32, 2048);
/// Batches in a row with messages of fewer packets after which fewer are guessed.
const SMALLER: u32 = 16;

/// What became of a batch that was received into guessed places.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// Messages received.
    pub messages: usize,
    /// Packets of the fullest message.
    pub fullest: usize,
    /// Whether a message other than the last had another number of packets than was guessed.
    pub uneven: bool,
    /// Packets that lay where they belonged.
    pub matched: u64,
    /// Packets that had to be moved.
    pub moved: u64,
}

/// The present choice.
#[derive(Clone, Debug)]
pub(super) struct Tune {
    /// Messages to guess.
    messages: usize,
    /// Packets of a message to guess.
    segments: usize,
    /// Batches in a row whose fullest message was smaller than guessed.
    smaller: u32,
    /// Even batches in a row.
    even: u32,
    /// Even batches that are wanted before more messages are guessed.
    trust: u32,
    /// Wrong guesses in a row.
    bad: u32,
    /// Batches left without guesses.
    rest: u32,
    /// Batches without guesses next time.
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
    /// Whether the next batch should be received into guessed places.
    pub(super) fn guesses(&mut self) -> bool {
        let rests = self.rest > 0;
        self.rest = self.rest.saturating_sub(1);
        !rests
    }

    /// Messages and packets of each to guess.
    pub(super) fn guess(&self) -> (usize, usize) {
        (
            self.messages.min((PLACES / self.segments).max(1)),
            self.segments,
        )
    }

    /// Messages to receive without guesses, where that is the rule (true) or only until a guess can be made again.
    pub(super) fn plain(&self, is_rule: bool) -> usize {
        // What is received is read at once, and should still be in a near cache then.
        let cached = if self.segments > 1 {
            COALESCED
        } else {
            MESSAGES
        };
        if is_rule { cached } else { cached / 4 }
    }

    /// Learns from a batch that was received without guesses.
    pub(super) fn saw_plain(&mut self, fullest: usize) {
        self.segments = self.segments.max(fullest);
    }

    /// Learns from a batch that was received into guessed places.
    pub(super) fn saw(&mut self, seen: Seen) {
        if seen.messages == 0 {
            return;
        }
        self.size(seen.fullest);
        if seen.uneven {
            // One message at a time can be of any size without moving what comes after it.
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
        assert_eq!(tune.guess(), (PLACES / 44, 44));
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
