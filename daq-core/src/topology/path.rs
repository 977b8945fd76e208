//! The path of a source's bytes.

use serde::Serialize;

/// How a source's bytes reach a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DataPath {
    /// The device writes into the region.
    Direct,
    /// Into a pinned host ring, then copied.
    Staged,
    /// The CPU writes into the region.
    Cpu,
}

impl DataPath {
    /// The name in plans and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Staged => "staged",
            Self::Cpu => "cpu",
        }
    }
}
