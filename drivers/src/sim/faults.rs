//! What goes wrong with packets, by chance and by sequence number.

use super::signal::uniform;
use daq_core::config::Problem;
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};
use std::fmt;

/// What becomes of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fate {
    /// It is sent in its turn.
    Sent,
    /// It is never sent: `wire_gap`.
    Lost,
    /// It is sent with an unreadable sequence number: `rejected`, and its place is a `wire_gap`.
    BadHeader,
    /// It is sent with damaged payload: `bad_packet`.
    BadPayload,
    /// It is sent twice: one of `duplicates`.
    Twice,
    /// It is sent after its frame was closed: `late`.
    Late,
    /// It is sent some packets later, yet in time: nothing is lost.
    Reordered,
}

/// Sequence numbers: single ones and ranges, as in `[5, "100..120"]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers(Vec<(u64, u64)>);

impl Numbers {
    /// Whether `number` is one of them.
    pub fn contains(&self, number: u64) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= number);
        after > 0 && number < self.0[after - 1].1
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(u64, u64)> for Numbers {
    /// Collects ranges `first..end`.
    fn from_iter<I: IntoIterator<Item = (u64, u64)>>(ranges: I) -> Self {
        let mut ranges: Vec<_> = ranges
            .into_iter()
            .filter(|(first, end)| first < end)
            .collect();
        ranges.sort_unstable();
        ranges.dedup_by(|next, last| {
            let joined = next.0 <= last.1;
            if joined {
                last.1 = last.1.max(next.1);
            }
            joined
        });
        Self(ranges)
    }
}

/// One element of [`Numbers`].
struct Run(u64, u64);

impl<'de> Deserialize<'de> for Run {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Run;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sequence number such as 5 or a range such as \"100..120\"")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Run, E> {
                number
                    .checked_add(1)
                    .map(|end| Run(number, end))
                    .ok_or_else(|| E::custom("the number is too large"))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Run, E> {
                match u64::try_from(number) {
                    Ok(number) => self.visit_u64(number),
                    Err(_) => Err(E::invalid_value(de::Unexpected::Signed(number), &self)),
                }
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Run, E> {
                let run = text.split_once("..").and_then(|(first, end)| {
                    Some(Run(first.trim().parse().ok()?, end.trim().parse().ok()?))
                });
                match run {
                    Some(Run(first, end)) if first < end => Ok(Run(first, end)),
                    Some(_) => Err(E::custom(format!(
                        "the range \"{text}\" is empty; try \"100..120\""
                    ))),
                    None => Err(E::custom(format!(
                        "\"{text}\" is no range of sequence numbers; try \"100..120\""
                    ))),
                }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl<'de> Deserialize<'de> for Numbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let runs = Vec::<Run>::deserialize(deserializer)?;
        Ok(runs
            .into_iter()
            .map(|Run(first, end)| (first, end))
            .collect())
    }
}

impl JsonSchema for Numbers {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Numbers".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "array",
            "items": {
                "anyOf": [
                    { "type": "integer", "minimum": 0 },
                    { "type": "string", "pattern": r"^\s*[0-9]+\s*\.\.\s*[0-9]+\s*$" },
                ],
            },
            "examples": [[5, "100..120"]],
        })
    }
}

/// `[source.NAME.faults]`: every packet has one fate. Lists go before chance; among several that hit one packet
/// the first in the order of the keys below wins. Numbers in lists are the sender's, before they are cut to
/// `sequence_bits`; `"100..120"` is 100 to 119.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Everything random follows from this number.
    pub seed: u64,
    /// Probability that a packet is never sent.
    pub loss: f64,
    /// Packets that are lost in a row on average, at least 1; 1 is each for itself.
    pub loss_burst: f64,
    /// Sequence numbers of packets that are never sent.
    pub lose: Numbers,
    /// Probability that a packet arrives with an unreadable sequence number.
    pub corrupt_header: f64,
    /// Sequence numbers of packets that arrive with an unreadable sequence number.
    pub corrupt_header_at: Numbers,
    /// Probability that a packet arrives with damaged payload.
    pub corrupt_payload: f64,
    /// Sequence numbers of packets that arrive with damaged payload.
    pub corrupt_payload_at: Numbers,
    /// Probability that a packet is sent twice.
    pub duplicate: f64,
    /// Sequence numbers of packets that are sent twice.
    pub duplicate_at: Numbers,
    /// Probability that a packet is held back until its frame was closed: until a packet `window` frames further
    /// on has been sent. What is still held back at the end of the stream is sent then.
    pub late: f64,
    /// Sequence numbers of packets that are held back until their frames were closed.
    pub late_at: Numbers,
    /// Probability that a packet is overtaken by others.
    pub reorder: f64,
    /// By how many; 8 if not given. At most what keeps it in time: `window` less one frame.
    pub reorder_by: Option<u64>,
    /// Sequence numbers of packets that are overtaken.
    pub reorder_at: Numbers,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            seed: 0,
            loss: 0.0,
            loss_burst: 1.0,
            lose: Numbers::default(),
            corrupt_header: 0.0,
            corrupt_header_at: Numbers::default(),
            corrupt_payload: 0.0,
            corrupt_payload_at: Numbers::default(),
            duplicate: 0.0,
            duplicate_at: Numbers::default(),
            late: 0.0,
            late_at: Numbers::default(),
            reorder: 0.0,
            reorder_by: None,
            reorder_at: Numbers::default(),
        }
    }
}

impl Faults {
    /// Fates with their lists, in the order in which they are asked.
    fn lists(&self) -> [(Fate, &Numbers); 6] {
        [
            (Fate::Lost, &self.lose),
            (Fate::BadHeader, &self.corrupt_header_at),
            (Fate::BadPayload, &self.corrupt_payload_at),
            (Fate::Twice, &self.duplicate_at),
            (Fate::Late, &self.late_at),
            (Fate::Reordered, &self.reorder_at),
        ]
    }

    /// Fates with their probabilities, but for loss, and their keys.
    fn chances(&self) -> [(Fate, f64, &'static str); 5] {
        [
            (Fate::BadHeader, self.corrupt_header, "corrupt_header"),
            (Fate::BadPayload, self.corrupt_payload, "corrupt_payload"),
            (Fate::Twice, self.duplicate, "duplicate"),
            (Fate::Late, self.late, "late"),
            (Fate::Reordered, self.reorder, "reorder"),
        ]
    }

    /// Whether any packet may be overtaken.
    pub fn reorders(&self) -> bool {
        self.reorder > 0.0 || !self.reorder_at.is_empty()
    }

    /// What cannot be, each with its key below the source's section.
    pub fn problems(&self) -> Vec<Problem> {
        let mut found = Vec::new();
        let mut sum = 0.0;
        for (key, chance) in std::iter::once(("loss", self.loss))
            .chain(self.chances().map(|(_, chance, key)| (key, chance)))
        {
            if (0.0..=1.0).contains(&chance) {
                sum += chance;
            } else {
                let message = format!("{chance} is no probability");
                found.push(
                    Problem::at(format!("faults.{key}"), message).help("give a number from 0 to 1"),
                );
            }
        }
        if sum > 1.0 + 1e-9 {
            let message = format!("the probabilities sum up to {sum}: a packet has one fate");
            found.push(
                Problem::at("faults", message).help("lower them so that the sum is at most 1"),
            );
        }
        if !(self.loss_burst.is_finite() && self.loss_burst >= 1.0) {
            let message = format!("{} is no mean length of a burst", self.loss_burst);
            found.push(
                Problem::at("faults.loss_burst", message)
                    .help("give a number of packets, at least 1"),
            );
        }
        if self.reorder_by == Some(0) {
            found.push(
                Problem::at("faults.reorder_by", "0 packets cannot overtake")
                    .help("give at least 1"),
            );
        }
        found
    }

    /// The dice that say each packet's fate.
    pub fn dice(&self) -> Dice {
        Dice {
            random: Xoshiro256PlusPlus::seed_from_u64(self.seed),
            is_random: self.loss > 0.0 || self.chances().iter().any(|(_, chance, _)| *chance > 0.0),
            is_listed: self.lists().iter().any(|(_, numbers)| !numbers.is_empty()),
            bursting: false,
            faults: self.clone(),
        }
    }
}

/// Fates, packet after packet.
#[derive(Clone, Debug)]
pub struct Dice {
    faults: Faults,
    random: Xoshiro256PlusPlus,
    is_random: bool,
    is_listed: bool,
    /// Whether the packet before was lost by chance.
    bursting: bool,
}

impl Dice {
    /// The fate of the next packet, which has the number `sequence`.
    pub fn roll(&mut self, sequence: u64) -> Fate {
        let chance = if self.is_random {
            self.by_chance()
        } else {
            Fate::Sent
        };
        let listed = self.is_listed.then(|| {
            let lists = self.faults.lists();
            lists
                .iter()
                .find(|(_, numbers)| numbers.contains(sequence))
                .map(|(fate, _)| *fate)
        });
        listed.flatten().unwrap_or(chance)
    }

    fn by_chance(&mut self) -> Fate {
        // Always two numbers a packet, so that one probability does not change the others' packets.
        let (for_loss, for_rest) = (uniform(&mut self.random), uniform(&mut self.random));
        let Faults {
            loss, loss_burst, ..
        } = self.faults;
        // Two states: left with 1/burst, entered so often that the share of lost packets is `loss`.
        let chance = if loss >= 1.0 || loss_burst <= 1.0 {
            loss
        } else if self.bursting {
            1.0 - 1.0 / loss_burst
        } else {
            (loss / (loss_burst * (1.0 - loss))).min(1.0)
        };
        self.bursting = for_loss < chance;
        if self.bursting {
            return Fate::Lost;
        }
        // Given that the packet is not lost, the others' probabilities are larger.
        let mut left = for_rest * (1.0 - loss);
        for (fate, chance, _) in self.faults.chances() {
            if left < chance {
                return fate;
            }
            left -= chance;
        }
        Fate::Sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn faults(text: &str) -> Faults {
        toml::from_str(text).unwrap()
    }

    fn shares(faults: &Faults, packets: u64) -> BTreeMap<Fate, f64> {
        let mut dice = faults.dice();
        let mut shares = BTreeMap::new();
        for sequence in 0..packets {
            *shares.entry(dice.roll(sequence)).or_insert(0.0) += 1.0 / packets as f64;
        }
        shares
    }

    #[test]
    fn fault_probabilities_are_as_declared() {
        let faults = faults(
            "loss = 0.1\ncorrupt_header = 0.05\ncorrupt_payload = 0.04\nduplicate = 0.03\nlate = 0.02\nreorder = 0.2",
        );
        let shares = shares(&faults, 200_000);
        let expected = [
            (Fate::Lost, 0.1),
            (Fate::BadHeader, 0.05),
            (Fate::BadPayload, 0.04),
            (Fate::Twice, 0.03),
            (Fate::Late, 0.02),
            (Fate::Reordered, 0.2),
            (Fate::Sent, 0.56),
        ];
        for (fate, share) in expected {
            assert!(
                (shares[&fate] - share).abs() < 0.004,
                "{fate:?}: {} instead of {share}",
                shares[&fate]
            );
        }
    }

    #[test]
    fn loss_bursts_have_declared_mean_length_and_share() {
        let mut dice = faults("loss = 0.05\nloss_burst = 10").dice();
        let (mut lost, mut bursts, mut before) = (0.0, 0.0, Fate::Sent);
        for sequence in 0..1_000_000 {
            let fate = dice.roll(sequence);
            if fate == Fate::Lost {
                lost += 1.0;
                bursts += f64::from(u8::from(before != Fate::Lost));
            }
            before = fate;
        }
        assert!((lost / 1e6 - 0.05_f64).abs() < 0.005, "{lost}");
        assert!((lost / bursts - 10.0_f64).abs() < 0.5, "{}", lost / bursts);
    }

    #[test]
    fn same_seed_repeats_and_other_seed_differs() {
        let roll = |seed: u64| {
            let mut dice = Faults {
                seed,
                loss: 0.3,
                late: 0.1,
                ..Faults::default()
            }
            .dice();
            (0..500)
                .map(|sequence| dice.roll(sequence))
                .collect::<Vec<_>>()
        };
        assert_eq!(roll(7), roll(7));
        assert_ne!(roll(7), roll(8));
    }

    #[test]
    fn fault_lists_apply_to_listed_packets_only() {
        let listed = faults("loss = 0.5\nlate_at = [3, \"10..13\", \"12..20\"]\nlose = [12]");
        let (mut with, mut without) = (listed.dice(), faults("loss = 0.5").dice());
        for sequence in 0..200 {
            let (with, without) = (with.roll(sequence), without.roll(sequence));
            match sequence {
                12 => assert_eq!(with, Fate::Lost),
                3 | 10..20 => assert_eq!(with, Fate::Late),
                _ => assert_eq!(with, without, "{sequence}"),
            }
        }
    }

    #[test]
    fn consecutive_numbers_are_joined() {
        let numbers: Numbers = [(5, 6), (100, 120), (3, 5), (110, 130), (7, 7)]
            .into_iter()
            .collect();
        assert_eq!(numbers.0, [(3, 6), (100, 130)]);
        assert!(toml::from_str::<Faults>("lose = [\"9..9\"]").is_err());
        assert!(toml::from_str::<Faults>("lose = [\"a\"]").is_err());
        assert!(toml::from_str::<Faults>("lose = [-1]").is_err());
    }

    #[test]
    fn fault_errors_name_keys() {
        let wrong = faults(
            "loss = 1.5\nlate = -1.0\nduplicate = 0.7\nreorder = 0.7\nloss_burst = 0.5\nreorder_by = 0",
        );
        let keys: Vec<_> = wrong
            .problems()
            .into_iter()
            .filter_map(|problem| problem.key)
            .collect();
        assert_eq!(
            keys,
            [
                "faults.loss",
                "faults.late",
                "faults",
                "faults.loss_burst",
                "faults.reorder_by"
            ]
        );
    }
}
