//! Packet faults, random and by sequence number.

use super::signal::uniform;
use daq_core::config::Problem;
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};
use std::fmt;

/// What happens to one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Disposition {
    /// The packet is sent in order.
    Sent,
    /// The packet is never sent, and is counted as `wire_gap`.
    Lost,
    /// The packet is sent with an unreadable sequence number. It is counted as `rejected`, and the missing packet as
    /// `wire_gap`.
    BadHeader,
    /// The packet is sent with damaged payload, and is counted as `bad_packet`.
    BadPayload,
    /// The packet is sent twice, and is counted once in `duplicates`.
    Duplicated,
    /// The packet is sent after its frame was closed, and is counted as `late`.
    Late,
    /// The packet is sent some packets later, but before its frame is closed, so nothing is lost.
    Reordered,
}

/// A set of sequence numbers, given as single numbers and ranges, as in `[5, "100..120"]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers(Vec<(u64, u64)>);

impl Numbers {
    /// Returns whether `number` is in the set.
    pub fn contains(&self, number: u64) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= number);
        after > 0 && number < self.0[after - 1].1
    }

    /// Returns whether the set is empty.
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
struct NumberRange(u64, u64);

impl<'de> Deserialize<'de> for NumberRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = NumberRange;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sequence number such as 5 or a range such as \"100..120\"")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<NumberRange, E> {
                number
                    .checked_add(1)
                    .map(|end| NumberRange(number, end))
                    .ok_or_else(|| E::custom("the number is too large"))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<NumberRange, E> {
                match u64::try_from(number) {
                    Ok(number) => self.visit_u64(number),
                    Err(_) => Err(E::invalid_value(de::Unexpected::Signed(number), &self)),
                }
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<NumberRange, E> {
                let run = text.split_once("..").and_then(|(first, end)| {
                    Some(NumberRange(
                        first.trim().parse().ok()?,
                        end.trim().parse().ok()?,
                    ))
                });
                match run {
                    Some(NumberRange(first, end)) if first < end => Ok(NumberRange(first, end)),
                    Some(_) => Err(E::custom(format!(
                        "the range \"{text}\" is empty; try \"100..120\""
                    ))),
                    None => Err(E::custom(format!(
                        "\"{text}\" is not a range of sequence numbers; try \"100..120\""
                    ))),
                }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl<'de> Deserialize<'de> for Numbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let runs = Vec::<NumberRange>::deserialize(deserializer)?;
        Ok(runs
            .into_iter()
            .map(|NumberRange(first, end)| (first, end))
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

/// `[source.NAME.faults]`: at most one fault applies to each packet. Lists take precedence over probabilities; if several lists
/// contain a packet, the first of these lists in the order of the keys below applies. Lists contain the sequence numbers of the
/// sender before they are reduced to `sequence_bits`; `"100..120"` is 100 to 119.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Seed of all random faults.
    pub seed: u64,
    /// Probability that a packet is never sent.
    pub loss: f64,
    /// Average number of packets lost in a row, at least 1; with 1, losses are independent.
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
    /// Probability that a packet is delayed until its frame is closed: until a packet `window` frames later has been sent.
    /// Packets that are still delayed at the end of the stream are sent at the end.
    pub late: f64,
    /// Sequence numbers of packets that are delayed until their frames are closed.
    pub late_at: Numbers,
    /// Probability that a packet is overtaken by later packets.
    pub reorder: f64,
    /// Number of packets that overtake a reordered packet, default 8. The packet must arrive before its frame is closed, so the
    /// maximum is `window` minus one frame.
    pub reorder_by: Option<u64>,
    /// Sequence numbers of packets that are overtaken by later packets.
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
    /// Returns the faults and their lists, in order of precedence.
    fn lists(&self) -> [(Disposition, &Numbers); 6] {
        [
            (Disposition::Lost, &self.lose),
            (Disposition::BadHeader, &self.corrupt_header_at),
            (Disposition::BadPayload, &self.corrupt_payload_at),
            (Disposition::Duplicated, &self.duplicate_at),
            (Disposition::Late, &self.late_at),
            (Disposition::Reordered, &self.reorder_at),
        ]
    }

    /// Returns the faults other than loss, with their probabilities and keys.
    fn chances(&self) -> [(Disposition, f64, &'static str); 5] {
        [
            (
                Disposition::BadHeader,
                self.corrupt_header,
                "corrupt_header",
            ),
            (
                Disposition::BadPayload,
                self.corrupt_payload,
                "corrupt_payload",
            ),
            (Disposition::Duplicated, self.duplicate, "duplicate"),
            (Disposition::Late, self.late, "late"),
            (Disposition::Reordered, self.reorder, "reorder"),
        ]
    }

    /// Returns whether any packet may be reordered.
    pub fn reorders(&self) -> bool {
        self.reorder > 0.0 || !self.reorder_at.is_empty()
    }

    /// Returns every problem, with its key in the source's section.
    pub fn problems(&self) -> Vec<Problem> {
        let mut found = Vec::new();
        let mut sum = 0.0;
        for (key, chance) in std::iter::once(("loss", self.loss))
            .chain(self.chances().map(|(_, chance, key)| (key, chance)))
        {
            if (0.0..=1.0).contains(&chance) {
                sum += chance;
            } else {
                let message = format!("{chance} is not a probability");
                found.push(
                    Problem::at(format!("faults.{key}"), message).help("set a number from 0 to 1"),
                );
            }
        }
        if sum > 1.0 + 1e-9 {
            let message = format!(
                "the sum of the probabilities is {sum}, but must be at most 1, because at most one fault applies to a packet"
            );
            found.push(
                Problem::at("faults", message)
                    .help("lower the probabilities so that their sum is at most 1"),
            );
        }
        if !(self.loss_burst.is_finite() && self.loss_burst >= 1.0) {
            let message = format!("{} is not a valid mean burst length", self.loss_burst);
            found.push(
                Problem::at("faults.loss_burst", message)
                    .help("set a number of packets, at least 1"),
            );
        }
        if self.reorder_by == Some(0) {
            found.push(
                Problem::at("faults.reorder_by", "`reorder_by` cannot be 0").help("set at least 1"),
            );
        }
        found
    }

    /// Returns the generator of the packets' faults.
    pub fn generator(&self) -> FaultGenerator {
        FaultGenerator {
            random: Xoshiro256PlusPlus::seed_from_u64(self.seed),
            is_random: self.loss > 0.0 || self.chances().iter().any(|(_, chance, _)| *chance > 0.0),
            is_listed: self.lists().iter().any(|(_, numbers)| !numbers.is_empty()),
            bursting: false,
            faults: self.clone(),
        }
    }
}

/// Generates the fault of each packet.
#[derive(Clone, Debug)]
pub struct FaultGenerator {
    faults: Faults,
    random: Xoshiro256PlusPlus,
    is_random: bool,
    is_listed: bool,
    /// Whether the previous packet was lost at random.
    bursting: bool,
}

impl FaultGenerator {
    /// Returns the disposition of the next packet, which has the number `sequence`.
    pub fn next(&mut self, sequence: u64) -> Disposition {
        let chance = if self.is_random {
            self.by_chance()
        } else {
            Disposition::Sent
        };
        let listed = self.is_listed.then(|| {
            let lists = self.faults.lists();
            lists
                .iter()
                .find(|(_, numbers)| numbers.contains(sequence))
                .map(|(disposition, _)| *disposition)
        });
        listed.flatten().unwrap_or(chance)
    }

    fn by_chance(&mut self) -> Disposition {
        // Draw two random numbers for every packet, so that changing one probability does not affect the other faults.
        let (for_loss, for_rest) = (uniform(&mut self.random), uniform(&mut self.random));
        let Faults {
            loss, loss_burst, ..
        } = self.faults;
        // A model with two states. A burst ends with probability 1/burst, and bursts begin so often that the fraction
        // of lost packets is `loss`.
        let chance = if loss >= 1.0 || loss_burst <= 1.0 {
            loss
        } else if self.bursting {
            1.0 - 1.0 / loss_burst
        } else {
            (loss / (loss_burst * (1.0 - loss))).min(1.0)
        };
        self.bursting = for_loss < chance;
        if self.bursting {
            return Disposition::Lost;
        }
        // The other probabilities are conditional on the packet not being lost.
        let mut left = for_rest * (1.0 - loss);
        for (disposition, chance, _) in self.faults.chances() {
            if left < chance {
                return disposition;
            }
            left -= chance;
        }
        Disposition::Sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn faults(text: &str) -> Faults {
        toml::from_str(text).unwrap()
    }

    fn shares(faults: &Faults, packets: u64) -> BTreeMap<Disposition, f64> {
        let mut generator = faults.generator();
        let mut shares = BTreeMap::new();
        for sequence in 0..packets {
            *shares.entry(generator.next(sequence)).or_insert(0.0) += 1.0 / packets as f64;
        }
        shares
    }

    #[test]
    fn fault_rates_match_their_probabilities() {
        let faults = faults(
            "loss = 0.1\ncorrupt_header = 0.05\ncorrupt_payload = 0.04\nduplicate = 0.03\nlate = 0.02\nreorder = 0.2",
        );
        let shares = shares(&faults, 200_000);
        let expected = [
            (Disposition::Lost, 0.1),
            (Disposition::BadHeader, 0.05),
            (Disposition::BadPayload, 0.04),
            (Disposition::Duplicated, 0.03),
            (Disposition::Late, 0.02),
            (Disposition::Reordered, 0.2),
            (Disposition::Sent, 0.56),
        ];
        for (disposition, share) in expected {
            assert!(
                (shares[&disposition] - share).abs() < 0.004,
                "{disposition:?}: {} instead of {share}",
                shares[&disposition]
            );
        }
    }

    #[test]
    fn bursts_have_their_mean_length_and_keep_the_share() {
        let mut generator = faults("loss = 0.05\nloss_burst = 10").generator();
        let (mut lost, mut bursts, mut before) = (0.0, 0.0, Disposition::Sent);
        for sequence in 0..1_000_000 {
            let disposition = generator.next(sequence);
            if disposition == Disposition::Lost {
                lost += 1.0;
                bursts += f64::from(u8::from(before != Disposition::Lost));
            }
            before = disposition;
        }
        assert!((lost / 1e6 - 0.05_f64).abs() < 0.005, "{lost}");
        assert!((lost / bursts - 10.0_f64).abs() < 0.5, "{}", lost / bursts);
    }

    #[test]
    fn same_seed_repeats_and_other_seed_differs() {
        let roll = |seed: u64| {
            let mut generator = Faults {
                seed,
                loss: 0.3,
                late: 0.1,
                ..Faults::default()
            }
            .generator();
            (0..500)
                .map(|sequence| generator.next(sequence))
                .collect::<Vec<_>>()
        };
        assert_eq!(roll(7), roll(7));
        assert_ne!(roll(7), roll(8));
    }

    #[test]
    fn lists_affect_only_their_packets() {
        let listed = faults("loss = 0.5\nlate_at = [3, \"10..13\", \"12..20\"]\nlose = [12]");
        let (mut with, mut without) = (listed.generator(), faults("loss = 0.5").generator());
        for sequence in 0..200 {
            let (with, without) = (with.next(sequence), without.next(sequence));
            match sequence {
                12 => assert_eq!(with, Disposition::Lost),
                3 | 10..20 => assert_eq!(with, Disposition::Late),
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
