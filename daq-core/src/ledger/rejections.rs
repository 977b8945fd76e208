//! Reasons for rejected packets: counts by reason, with the first message of each.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The reason for packets that the reorder window rejects. The window counts them only in `rejected`.
pub const FAR_NUMBER: &str = "far_number";
/// Maximum number of different reasons; packets with further reasons are not counted by reason.
const REASONS: usize = 16;

#[derive(Debug, Default)]
struct Reason {
    name: OnceLock<&'static str>,
    count: AtomicU64,
    /// Message for the first packet: its fault, and how to fix the fault.
    message: OnceLock<Message>,
}

/// Maximum length of a message; longer ones are cut.
const MESSAGE_BYTES: usize = 510;

/// A message in fixed memory, so that data threads do not allocate.
#[derive(Debug)]
struct Message {
    bytes: [u8; MESSAGE_BYTES],
    length: usize,
}

impl Message {
    fn of(text: impl Display) -> Self {
        let mut message = Self {
            bytes: [0; MESSAGE_BYTES],
            length: 0,
        };
        // An error only means that the text was truncated.
        let _ = write!(message, "{text}");
        message
    }
}

impl Write for Message {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let kept = text.floor_char_boundary(MESSAGE_BYTES - self.length);
        let room = &mut self.bytes[self.length..][..kept];
        room.copy_from_slice(&text.as_bytes()[..kept]);
        self.length += kept;
        if kept == text.len() {
            Ok(())
        } else {
            Err(fmt::Error)
        }
    }
}

impl Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.bytes[..self.length]))
    }
}

/// The rejected packets of a source, by reason. Any thread may count; no lock is used.
#[derive(Clone, Debug, Default)]
pub struct Rejections(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    reasons: [Reason; REASONS],
    /// A warning about packets that are not rejected.
    warning: OnceLock<Message>,
}

impl Rejections {
    /// Counts packets by reason and stores `message` for the first packet of each reason. Returns whether the packet
    /// was the first with this reason. Does not allocate memory.
    pub fn count(&self, name: &'static str, packets: u64, message: impl Display) -> bool {
        let known = |reason: &&Reason| *reason.name.get_or_init(|| name) == name;
        let Some(reason) = self.0.reasons.iter().find(known) else {
            return false;
        };
        reason.count.fetch_add(packets, Ordering::AcqRel);
        reason.message.get().is_none() && reason.message.set(Message::of(message)).is_ok()
    }

    /// Stores a warning about packets that are not rejected, such as absurd times. Returns whether it is the first. Does not
    /// allocate memory.
    pub fn warn(&self, message: impl Display) -> bool {
        self.0.warning.get().is_none() && self.0.warning.set(Message::of(message)).is_ok()
    }

    /// Returns the warning about packets that are not rejected.
    pub fn warning(&self) -> Option<String> {
        self.0.warning.get().map(Message::to_string)
    }

    /// Returns the counts by reason. `rejected` is the total number of rejected packets. Packets without a reason were
    /// rejected by the reorder window.
    pub fn read(&self, rejected: u64) -> BTreeMap<&'static str, u64> {
        let named = self.0.reasons.iter().filter_map(|reason| {
            let count = reason.count.load(Ordering::Acquire);
            Some((*reason.name.get()?, count))
        });
        let mut counts: BTreeMap<_, _> = named.collect();
        let others = counts.values().sum();
        if let Some(far) = counts.get_mut(FAR_NUMBER) {
            *far += rejected.saturating_sub(others);
        }
        counts.retain(|_, count| *count > 0);
        counts
    }

    /// Returns the number of packets of the most frequent reason, and the first message of this reason. `rejected` is
    /// the total number of rejected packets.
    pub fn most_frequent(&self, rejected: u64) -> Option<(u64, String)> {
        let counts = self.read(rejected);
        let (name, count) = counts.iter().max_by_key(|(_, count)| **count)?;
        let mut reasons = self.0.reasons.iter();
        let reason = reasons.find(|reason| reason.name.get() == Some(name))?;
        Some((*count, format!("{name}: {}", reason.message.get()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_frequent_rejection_is_named_with_first_message() {
        let rejections = Rejections::default();
        assert_eq!(rejections.most_frequent(0), None);
        assert!(rejections.count("length", 1, "7 bytes"));
        assert!(rejections.count("headers", 1, "packet 9"));
        assert!(!rejections.count("headers", 4, "packet 10"));
        assert_eq!(
            rejections.most_frequent(6),
            Some((5, "headers: packet 9".to_owned()))
        );
        assert_eq!(
            rejections.read(6),
            BTreeMap::from([("headers", 5), ("length", 1)])
        );
    }

    #[test]
    fn first_warning_is_kept() {
        let rejections = Rejections::default();
        assert_eq!(rejections.warning(), None);
        assert!(rejections.warn("times"));
        assert!(!rejections.clone().warn("rates"));
        assert_eq!(rejections.warning().as_deref(), Some("times"));
        assert!(rejections.read(0).is_empty());
    }

    #[test]
    fn long_message_is_truncated_at_character_boundary() {
        let rejections = Rejections::default();
        assert!(rejections.count("length", 1, format_args!("{}{}", "a", "é".repeat(400))));
        let kept = rejections.most_frequent(1).unwrap().1;
        assert_eq!(kept, format!("length: a{}", "é".repeat(254)));
    }

    #[test]
    fn rejections_without_reason_are_counted_as_window_rejections() {
        let rejections = Rejections::default();
        rejections.count("length", 1, "7 bytes");
        assert!(rejections.count(FAR_NUMBER, 0, "packet 9"));
        assert!(!rejections.count(FAR_NUMBER, 0, "packet 10"));
        assert_eq!(rejections.read(1), BTreeMap::from([("length", 1)]));
        let reasons = BTreeMap::from([("length", 1), (FAR_NUMBER, 7)]);
        assert_eq!(rejections.read(8), reasons);
        assert_eq!(
            rejections.most_frequent(8),
            Some((7, "far_number: packet 9".to_owned()))
        );
    }
}
