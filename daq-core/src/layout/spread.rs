//! What each part of a divided layout holds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What each GPU of a spread ring holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Spread {
    /// Whole frames, in turn.
    Frames,
    /// Consecutive channels of each frame.
    Channels,
    /// Consecutive points of each channel: a part of the time or of the frequencies of each frame.
    Points,
    /// A consecutive part of the bytes of each frame, such as the packets of some of its senders.
    Parts,
}

impl Spread {
    /// Returns the name used in configuration and plans.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Frames => "frames",
            Self::Channels => "channels",
            Self::Points => "points",
            Self::Parts => "parts",
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
