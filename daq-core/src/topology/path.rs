//! The path of a source's data into a memory region.

use serde::Serialize;

/// The path of a source's data into a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DataPath {
    /// The device writes directly into the region.
    Direct,
    /// The device writes into a pinned host ring, whose data is then copied into the region.
    Staged,
    /// The CPU writes into the region.
    Cpu,
}

impl DataPath {
    /// Returns the name used in plans and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Staged => "staged",
            Self::Cpu => "cpu",
        }
    }
}
