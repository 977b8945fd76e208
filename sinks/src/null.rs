//! `null` discards frames, to measure the stages before it or to simulate a slow consumer.

use daq_core::entry::SinkEntry;
use daq_core::ledger::SinkLedger;
use daq_core::ring::Lease;
use daq_core::sink::{Placements, Sink, SinkContext, SinkError, SinkFacts, SinkSpec};
use daq_core::units::Span;
use schemars::JsonSchema;
use serde::Deserialize;
use std::hint::black_box;
use std::time::Duration;

/// Registry entry of `null`.
pub(crate) const ENTRY: SinkEntry = SinkEntry::of::<NullKeys>(
    "null",
    "Counts frames and discards them, for measurements or to simulate a slow consumer",
    "\
[sink.NAME]
driver = \"null\"
input = \"INPUT\"
# Read every byte, as a real consumer would; otherwise frames are only counted.
# touch = false
# Wait this long for each frame, to rehearse a slow consumer.
# delay = \"0 s\"
",
);

/// The keys of a `null` sink.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NullKeys {
    /// Read every byte of every frame, like a real consumer; requires frames in host memory. Default false: frames are
    /// only counted.
    pub touch: bool,
    /// Wait for this time per frame, to simulate a slow consumer; default: no wait. The system's timer adds about 50 µs
    /// to each wait.
    pub delay: Option<Span>,
}

impl SinkSpec for NullKeys {
    fn facts(&self) -> SinkFacts {
        SinkFacts {
            accepts: if self.touch {
                Placements::Host
            } else {
                Placements::Any
            },
            ..SinkFacts::default()
        }
    }

    fn build(&self, context: SinkContext) -> Result<Box<dyn Sink>, SinkError> {
        let delay = self.delay.map_or(Duration::ZERO, |delay| delay.0);
        Ok(Box::new(Null {
            touch: self.touch,
            delay,
            ledger: context.ledger,
        }))
    }
}

struct Null {
    touch: bool,
    delay: Duration,
    ledger: SinkLedger,
}

impl Sink for Null {
    fn consume(&mut self, lease: &Lease<'_>, from: usize) -> Result<usize, SinkError> {
        // If the sink waits, it processes one frame per call, so that the runtime sees a heartbeat after each frame.
        let to = if self.delay.is_zero() {
            lease.len()
        } else {
            lease.len().min(from + 1)
        };
        let mut bytes = 0;
        for i in from..to {
            let frame = lease.frame(i);
            if self.touch {
                black_box(sum(frame.bytes().unwrap_or_default()));
            }
            bytes += frame.meta().length as u64;
        }
        if !self.delay.is_zero() {
            std::thread::sleep(self.delay);
        }
        self.ledger.frames.add((to - from) as u64);
        self.ledger.bytes.add(bytes);
        Ok(to - from)
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        Ok(())
    }
}

/// Returns a sum over all bytes: a cheap computation that reads every byte.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().fold(0_u64, |sum, word| {
        sum.wrapping_add(u64::from_ne_bytes(*word))
    });
    rest.iter()
        .fold(words, |sum, byte| sum.wrapping_add(u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_depends_on_every_byte() {
        for n in [0, 1, 7, 8, 9, 64, 65] {
            let mut bytes = vec![0; n];
            assert_eq!(sum(&bytes), 0);
            for i in 0..n {
                bytes[i] = 1;
                assert_ne!(sum(&bytes), 0, "byte {i} of {n}");
                bytes[i] = 0;
            }
        }
    }
}
