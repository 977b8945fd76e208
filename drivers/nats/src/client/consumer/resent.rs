//! The messages that the server sends again after an interruption.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

/// Maximum number of times that the client asks which messages the server has not sent again, until it receives later ones.
pub(super) const MAX_ROUNDS: u32 = 15;

/// What the server has sent to a consumer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    /// Stream sequence of the last message that it has sent.
    pub(super) last: u64,
    /// All messages up to this stream sequence are acknowledged.
    pub(super) floor: u64,
    /// Number of messages that it has sent and that are not acknowledged.
    pub(super) pending: usize,
}

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
    /// Messages that wait for the others, by their stream sequence, with their size in bytes.
    waiting: BTreeMap<u64, (T, usize)>,
    /// Number of bytes of the messages that wait.
    bytes: usize,
    /// When the last awaited message arrived, or since when the client waits.
    since: Option<Instant>,
    /// Number of times that the client has asked without receiving a later message.
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
            bytes: 0,
            since: None,
            rounds: 0,
        }
    }
}

impl<T> Resent<T> {
    /// Returns the stream sequences of the messages that wait for others.
    pub(super) fn sequences(&self) -> impl Iterator<Item = u64> {
        self.waiting.keys().copied()
    }

    /// Returns the messages that wait for others.
    pub(super) fn messages(&self) -> impl Iterator<Item = &T> {
        self.waiting.values().map(|(message, _)| message)
    }

    /// Returns the number of bytes of the messages that wait.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether messages must arrive before others.
    pub(super) const fn is_awaiting(&self) -> bool {
        self.unreceived > 0
    }

    /// Begins to wait for the messages of `sent` that the client has not received. It holds those with the stream sequences
    /// `held`, including the ones that wait here. Returns the number of messages that must arrive.
    pub(super) fn begin(&mut self, sent: Sent, held: &[u64]) -> usize {
        self.last = sent.last;
        // A new leader of the cluster may not know that they were sent. It sends them again, after those before them.
        for (_, bytes) in self.waiting.split_off(&(sent.last + 1)).into_values() {
            self.bytes -= bytes;
        }
        let held = held.iter().copied();
        self.arrived.clear();
        let is_pending = |sequence: &u64| (sent.floor + 1..=sent.last).contains(sequence);
        self.arrived.extend(held.filter(is_pending));
        self.unreceived = sent.pending.saturating_sub(self.arrived.len());
        self.since = None;
        self.unreceived
    }

    /// Counts a further round. Returns false if there were too many.
    pub(super) fn may_wait(&mut self) -> bool {
        self.rounds += 1;
        self.rounds <= MAX_ROUNDS
    }

    /// Restarts the time of [`is_overdue`](Self::is_overdue), because no message can arrive at the moment.
    pub(super) const fn restart_timeout(&mut self) {
        self.since = None;
    }

    /// Whether no awaited message has arrived for `limit`. The server may have deleted the messages, so it must be asked again.
    pub(super) fn is_overdue(&mut self, now: Instant, limit: Duration) -> bool {
        let since = *self.since.get_or_insert(now);
        self.is_awaiting() && now.duration_since(since) >= limit
    }

    /// Waits for no message any more. Returns the waiting messages in the order of the stream, with their stream sequences.
    pub(super) fn end(&mut self) -> Vec<(u64, T)> {
        let waiting = std::mem::take(self).waiting;
        let messages = waiting.into_iter();
        messages
            .map(|(sequence, (message, _))| (sequence, message))
            .collect()
    }

    /// Decides about the `message` of `bytes` bytes with the stream sequence `sequence`, which has arrived.
    pub(super) fn turn(&mut self, sequence: u64, message: T, bytes: usize) -> Turn<T> {
        if sequence > self.last {
            if self.is_awaiting() {
                return Turn::Drop;
            }
            self.rounds = 0;
            return Turn::Now(message);
        }
        let is_new = !self.arrived.contains(&sequence);
        if !self.is_awaiting() || !is_new && !self.waiting.contains_key(&sequence) {
            // The client holds the message already.
            return Turn::Now(message);
        }
        self.bytes += bytes;
        if let Some((_, bytes)) = self.waiting.insert(sequence, (message, bytes)) {
            self.bytes -= bytes;
        }
        if is_new {
            self.arrived.insert(sequence);
            self.unreceived -= 1;
            self.since = None;
        }
        if self.is_awaiting() {
            return Turn::Wait;
        }
        Turn::All(self.take_waiting())
    }

    /// Returns the messages that wait, in the order of the stream.
    pub(super) fn take_waiting(&mut self) -> Vec<T> {
        self.bytes = 0;
        let waiting = std::mem::take(&mut self.waiting).into_values();
        waiting.map(|(message, _)| message).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(last: u64, floor: u64, pending: usize) -> Sent {
        Sent {
            last,
            floor,
            pending,
        }
    }

    fn turn(resent: &mut Resent<u64>, sequence: u64) -> Turn<u64> {
        resent.turn(sequence, sequence, 10)
    }

    /// Begins again after a further interruption. The client holds `held`, and what waits.
    fn again(resent: &mut Resent<u64>, sent: Sent, held: &[u64]) -> usize {
        let held: Vec<_> = resent.sequences().chain(held.iter().copied()).collect();
        resent.begin(sent, &held)
    }

    #[test]
    fn messages_that_are_sent_again_are_passed_on_in_order_before_later_ones() {
        let mut resent = Resent::default();
        assert_eq!(turn(&mut resent, 5), Turn::Now(5));
        // The client holds 11. It also holds 16, which another leader had sent, and 9, which is acknowledged.
        assert_eq!(resent.begin(sent(15, 10, 4), &[9, 11, 16]), 3);
        assert_eq!(turn(&mut resent, 17), Turn::Drop);
        for sequence in [14, 14, 12] {
            assert_eq!(turn(&mut resent, sequence), Turn::Wait);
            assert_eq!(turn(&mut resent, 11), Turn::Now(11), "the client holds it");
            assert_eq!(
                turn(&mut resent, 17),
                Turn::Drop,
                "messages that arrive twice do not count"
            );
        }
        assert_eq!(resent.bytes(), 20);
        // 11 is acknowledged, and the connection is interrupted again.
        assert_eq!(again(&mut resent, sent(15, 11, 3), &[16]), 1);
        assert_eq!(turn(&mut resent, 13), Turn::All(vec![12, 13, 14]));
        assert_eq!((resent.bytes(), resent.is_awaiting()), (0, false));
        assert_eq!(turn(&mut resent, 15), Turn::Now(15));
        assert_eq!(turn(&mut resent, 17), Turn::Now(17));
    }

    #[test]
    fn messages_that_a_new_leader_has_not_sent_do_not_wait() {
        let mut resent = Resent::default();
        assert_eq!(resent.begin(sent(14, 11, 3), &[]), 3);
        assert_eq!(turn(&mut resent, 14), Turn::Wait);
        assert_eq!(again(&mut resent, sent(11, 11, 0), &[]), 0);
        assert!(resent.take_waiting().is_empty());
        assert_eq!(resent.bytes(), 0);
        for sequence in 12..15 {
            assert_eq!(turn(&mut resent, sequence), Turn::Now(sequence));
        }
    }

    #[test]
    fn deleted_messages_are_awaited_for_a_limited_time() {
        const LIMIT: Duration = Duration::from_secs(1);
        let (mut resent, start) = (Resent::default(), Instant::now());
        assert!(!resent.is_overdue(start + 9 * LIMIT, LIMIT));
        assert_eq!(resent.begin(sent(3, 0, 3), &[]), 3);
        assert!(!resent.is_overdue(start, LIMIT));
        assert_eq!(turn(&mut resent, 2), Turn::Wait);
        assert!(
            !resent.is_overdue(start + LIMIT, LIMIT),
            "2 has just arrived"
        );
        assert!(resent.is_overdue(start + 2 * LIMIT, LIMIT));
        resent.restart_timeout();
        assert!(!resent.is_overdue(start + 5 * LIMIT, LIMIT));
        // Message 1 was deleted, so it is not pending any more.
        assert_eq!(again(&mut resent, sent(3, 1, 2), &[]), 1);
        assert_eq!(turn(&mut resent, 3), Turn::All(vec![2, 3]));
    }

    #[test]
    fn client_asks_a_limited_number_of_times() {
        let mut resent = Resent::default();
        for _ in 0..MAX_ROUNDS {
            assert_eq!(resent.begin(sent(3, 0, 2), &[]), 2);
            assert!(resent.may_wait());
            assert_eq!(turn(&mut resent, 4), Turn::Drop);
        }
        assert_eq!(turn(&mut resent, 2), Turn::Wait);
        assert!(!resent.may_wait());
        assert_eq!(resent.end(), [(2, 2)]);
        assert_eq!(turn(&mut resent, 4), Turn::Now(4));
    }
}
