//! The properties that a sender must share with its receiver.

use crate::verbs::{Service, Transport};
use crate::wire::{Hello, KeptNames, Mode, Record, SamplePlaces};
use daq_core::units::counted;

/// Properties that all links of a receiver share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) mode: Mode,
    pub(super) service: Service,
    pub(super) transport: Transport,
    pub(super) rails: usize,
    /// Maximum number of packets per frame.
    pub(super) packets_per_frame: u32,
    /// Names of the fields that frames keep.
    pub(super) kept: KeptNames,
    /// The places of samples in frames.
    pub(super) places: SamplePlaces,
}

impl Shape {
    /// Returns the size of a record in bytes.
    pub(super) const fn record(&self) -> usize {
        Record::bytes(self.packets_per_frame, self.kept.count)
    }

    /// Returns the number of receives of each rail's queue pair.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the quotient of a u32 fits into a u32"
    )]
    pub(super) const fn receives(&self, slots: u32) -> u32 {
        (slots as usize).div_ceil(self.rails) as u32 + 1
    }

    /// Checks the greetings of a sender. Returns the reason if the sender cannot be accepted.
    pub(super) fn check(&self, greetings: &[Vec<u8>]) -> Result<Hello, Rejection> {
        let hellos = greetings
            .iter()
            .map(|greeting| {
                Hello::decode(greeting).map_err(|error| Rejection::same(error.to_string()))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let rails = self.rails;
        let first = *hellos
            .first()
            .ok_or_else(|| Rejection::same("the greeting is empty".to_owned()))?;
        if usize::from(first.rails) != rails || hellos.len() != rails {
            let ours = counted(rails, self.transport.rail());
            let theirs = counted(first.rails, self.transport.rail());
            let fix = self.transport.rails_keys();
            return Err(Rejection {
                sender: format!(
                    "the receiver has {ours}, but this sink has {theirs}: set {fix} on both hosts"
                ),
                receiver: format!(
                    "the sender's sink has {theirs}, but this source has {ours}: set {fix} on both hosts"
                ),
            });
        }
        for (rail, hello) in hellos.iter().enumerate() {
            let alike = Hello {
                rail: first.rail,
                credit_address: first.credit_address,
                credit_rkey: first.credit_rkey,
                ..*hello
            };
            if usize::from(hello.rail) != rail || alike != first {
                return Err(Rejection::same(format!(
                    "the sender's rail {rail} has different stream parameters than the sender's first rail: run the same version \
                     of daq on both hosts"
                )));
            }
        }
        if first.mode != self.mode {
            let (theirs, ours) = (name(first.mode), name(self.mode));
            return Err(Rejection {
                sender: format!(
                    "the receiver has mode = \"{ours}\": set this mode in this sink, or mode = \"{theirs}\" in the receiver's source"
                ),
                receiver: format!(
                    "the sender's sink has mode = \"{theirs}\": set this mode in this source, or mode = \"{ours}\" in the sender's sink"
                ),
            });
        }
        if first.has_checksums && self.transport != Transport::Tcp {
            return Err(Rejection::same(
                "checksums need transport = \"tcp\": remove `checksums` in the sender's sink"
                    .to_owned(),
            ));
        }
        if first.packets_per_frame > self.packets_per_frame {
            let (wanted, packets_per_frame) = (first.packets_per_frame, self.packets_per_frame);
            let packets = counted(wanted, "packet");
            return Err(Rejection {
                sender: format!(
                    "frames have up to {packets}, but the receiver accepts {packets_per_frame}: set `packets_per_frame = {wanted}` in the receiver's source"
                ),
                receiver: format!(
                    "the sender's frames have up to {packets}, but this source accepts {packets_per_frame}: set `packets_per_frame = {wanted}` in this source"
                ),
            });
        }
        if self.kept.count > 0 && first.kept != self.kept {
            return Err(Rejection {
                sender: "the names of kept fields differ: set `keep` in the receiver's source to the names in the sender's source"
                    .to_owned(),
                receiver: format!(
                    "the names in `keep` differ from those of the sender, whose frames keep {}: set the names in the sender's source, in the same order",
                    counted(first.kept.count, "field"),
                ),
            });
        }
        if !self.places.agrees(first.places) {
            return Err(Rejection {
                sender: "the samples of frames differ: set `samples` in the receiver's source to type, channels and order of these frames"
                    .to_owned(),
                receiver: "the sender's frames contain other samples than `samples` states: set type, `complex`, `channels` and `order` \
                     as `daq plan` shows them on the sending host; planar frames also need the same `slot`"
                    .to_owned(),
            });
        }
        Ok(first)
    }
}

/// The reason why a sender is rejected, with one text for the log of each host. The texts describe the problem and what
/// to change on which host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rejection {
    /// The text that is sent to the sender. `rdma_cm` can carry about 140 bytes.
    pub(super) sender: String,
    /// The text that the receiver logs.
    pub(super) receiver: String,
}

impl Rejection {
    /// Creates a rejection with the same text for both hosts.
    pub(super) fn same(why: String) -> Self {
        Self {
            sender: why.clone(),
            receiver: why,
        }
    }
}

const fn name(mode: Mode) -> &'static str {
    match mode {
        Mode::Write => "write",
        Mode::Send => "send",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::layout::{Axis, Layout, Order, Scalar};

    /// Maximum size of a rejection over `rdma_cm` in bytes.
    const CARRIED: usize = 148;

    fn layout(channels: u32) -> Layout {
        Layout {
            scalar: Scalar::Int16,
            complex: false,
            channels,
            points: 64,
            order: Order::Planar,
            axis: Axis::Time { rate: None },
            frame_rate: None,
            is_contiguous: false,
        }
    }

    /// Only the places of planar samples depend on the length of frames.
    #[test]
    fn places_depend_on_length_of_planar_frames() {
        let places = |order, points| {
            SamplePlaces::of(&Layout {
                order,
                points,
                ..layout(2)
            })
        };
        assert!(places(Order::Interleaved, 64).agrees(places(Order::Interleaved, 65)));
        assert!(places(Order::Planar, 64).agrees(places(Order::Planar, 64)));
        assert!(!places(Order::Planar, 64).agrees(places(Order::Planar, 65)));
        assert!(!places(Order::Planar, 64).agrees(places(Order::Interleaved, 64)));
    }

    #[test]
    fn rejection_names_difference_fix_and_host() {
        let shape = Shape {
            mode: Mode::Write,
            service: Service::Rc,
            transport: Transport::Rdma,
            rails: 1,
            packets_per_frame: 70,
            kept: KeptNames::of(&["feng_id".to_owned()]),
            places: SamplePlaces::of(&layout(1)),
        };
        let hello = Hello {
            rails: 1,
            packets_per_frame: 1,
            kept: shape.kept,
            places: shape.places,
            slot: 4096,
            ..Hello::default()
        };
        assert_eq!(shape.check(&[hello.encode()]), Ok(hello));
        let unknown = Hello {
            places: SamplePlaces::default(),
            ..hello
        };
        assert_eq!(shape.check(&[unknown.encode()]), Ok(unknown));
        let cases = [
            (
                Hello { rails: 2, ..hello },
                ["this sink has 2 queue pairs", "`nics`"],
                ["the sender's sink has 2", "this source has 1 queue pair:"],
            ),
            (
                Hello {
                    mode: Mode::Send,
                    ..hello
                },
                ["the receiver has mode = \"write\"", "in this sink"],
                ["the sender's sink has mode = \"send\"", "in this source"],
            ),
            (
                Hello {
                    kept: KeptNames::of(&["bunch_id".to_owned()]),
                    ..hello
                },
                ["kept fields differ", "in the receiver's source"],
                ["the names in `keep` differ", "frames keep 1 field"],
            ),
            (
                Hello {
                    places: SamplePlaces::of(&layout(2)),
                    ..hello
                },
                ["samples of frames differ", "in the receiver's source"],
                ["other samples than `samples` states", "`daq plan`"],
            ),
            (
                Hello {
                    has_checksums: true,
                    ..hello
                },
                ["checksums need transport = \"tcp\"", "sender's sink"],
                ["checksums need transport = \"tcp\"", "`checksums`"],
            ),
            (
                Hello {
                    packets_per_frame: 71,
                    ..hello
                },
                [
                    "`packets_per_frame = 71` in the receiver's source",
                    "the receiver accepts 70",
                ],
                [
                    "`packets_per_frame = 71` in this source",
                    "the sender's frames",
                ],
            ),
        ];
        for (hello, sender, receiver) in cases {
            let rejection = shape.check(&[hello.encode()]).unwrap_err();
            let contains_all =
                |text: &str, parts: [&str; 2]| parts.iter().all(|part| text.contains(part));
            assert!(contains_all(&rejection.sender, sender), "{rejection:?}");
            assert!(contains_all(&rejection.receiver, receiver), "{rejection:?}");
            assert!(rejection.sender.len() <= CARRIED, "{rejection:?}");
        }
    }
}
