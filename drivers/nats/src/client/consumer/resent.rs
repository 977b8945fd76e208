//! The messages that the server sends again after an interruption.

use std::collections::{BTreeMap, HashSet};

/// Maximum number of times that the client waits for messages that the server has sent, until it receives later ones.
pub(super) const MAX_ROUNDS: u32 = 30;

/// Messages that the server had sent before the last request. They are passed on in the order of the stream and before later
/// ones, but the server sends them again in any order, some of them twice.
#[derive(Debug)]
pub(super) struct Resent<T> {
    /// Stream sequence of the last message that the server had sent.
    last: u64,
    /// Number of messages that must arrive.
    unreceived: usize,
    /// Stream sequences of the messages that have arrived.
    arrived: HashSet<u64>,
    /// Messages that wait for the others, by their stream sequence.
    waiting: BTreeMap<u64, T>,
    /// Number of times that the client has waited without receiving a later message.
    rounds: u32,
}

/// What to do with a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn<T> {
    /// Pass the message on.
    Now(T),
    /// Pass these messages on, in this order.
    All(Vec<T>),
    /// The message waits for others.
    Wait,
    /// The message is dropped, because messages are missing that the server has sent before. It is received again after them.
    Drop,
}

impl<T> Default for Resent<T> {
    fn default() -> Self {
        Self {
            last: 0,
            unreceived: 0,
            arrived: HashSet::new(),
            waiting: BTreeMap::new(),
            rounds: 0,
        }
    }
}

impl<T> Resent<T> {
    /// Returns the messages that wait for others, with their stream sequences.
    pub(super) fn waiting(&self) -> &BTreeMap<u64, T> {
        &self.waiting
    }

    /// Begins to wait: the server has sent messages up to `last`, and has no acknowledgement of `pending` messages, of which
    /// the client holds those with the stream sequences `held`. Returns the number of messages that must arrive.
    pub(super) fn begin(&mut self, last: u64, pending: usize, held: &[u64]) -> usize {
        self.last = last;
        self.arrived.clear();
        let held = held.iter().copied();
        self.arrived
            .extend(held.filter(|sequence| *sequence <= last));
        self.unreceived = pending.saturating_sub(self.arrived.len());
        self.unreceived
    }

    /// Counts a further round. Returns false if there were too many.
    pub(super) fn may_wait(&mut self) -> bool {
        self.rounds += 1;
        self.rounds <= MAX_ROUNDS
    }

    /// Waits for no message any more. Returns the waiting messages in the order of the stream.
    pub(super) fn end(&mut self) -> BTreeMap<u64, T> {
        std::mem::take(self).waiting
    }

    /// Decides about the `message` with the stream sequence `sequence`, which has arrived.
    pub(super) fn turn(&mut self, sequence: u64, message: T) -> Turn<T> {
        if sequence > self.last {
            if self.unreceived > 0 {
                return Turn::Drop;
            }
            self.rounds = 0;
            return Turn::Now(message);
        }
        if self.unreceived == 0 {
            return Turn::Now(message);
        }
        self.waiting.insert(sequence, message);
        if self.arrived.insert(sequence) {
            self.unreceived -= 1;
        }
        if self.unreceived > 0 {
            return Turn::Wait;
        }
        Turn::All(self.take_waiting())
    }

    /// Returns the messages that wait, in the order of the stream.
    pub(super) fn take_waiting(&mut self) -> Vec<T> {
        std::mem::take(&mut self.waiting).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_are_sent_again_are_passed_on_in_order_before_later_ones() {
        let mut resent = Resent::default();
        assert_eq!(resent.turn(5, 5), Turn::Now(5));
        // The client holds 11. It also holds 16, which another leader had sent.
        assert_eq!(resent.begin(15, 4, &[11, 16]), 3);
        assert_eq!(resent.turn(17, 17), Turn::Drop);
        for sequence in [14, 11, 14, 12] {
            assert_eq!(resent.turn(sequence, sequence), Turn::Wait);
            assert_eq!(
                resent.turn(17, 17),
                Turn::Drop,
                "messages that arrive twice, or that the client holds, do not count"
            );
        }
        // The connection is interrupted again.
        let held: Vec<_> = resent.waiting().keys().copied().chain([16]).collect();
        assert_eq!(resent.begin(15, 4, &held), 1);
        assert_eq!(resent.turn(13, 13), Turn::All(vec![11, 12, 13, 14]));
        assert_eq!(resent.turn(15, 15), Turn::Now(15));
        assert_eq!(resent.turn(17, 17), Turn::Now(17));
    }

    #[test]
    fn client_waits_a_limited_number_of_times() {
        let mut resent = Resent::default();
        for _ in 0..MAX_ROUNDS {
            assert_eq!(resent.begin(3, 2, &[]), 2);
            assert!(resent.may_wait());
            assert_eq!(resent.turn(4, 4), Turn::Drop);
        }
        assert_eq!(resent.turn(2, 2), Turn::Wait);
        assert!(!resent.may_wait());
        assert!(resent.end().into_values().eq([2]));
        assert_eq!(resent.turn(4, 4), Turn::Now(4));
    }
}
