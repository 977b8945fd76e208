//! The direction of a copy between host memory and a GPU.

use serde::Serialize;

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From host memory to a GPU.
    In,
    /// From a GPU to host memory.
    Out,
}

impl Direction {
    /// Returns the name in plans and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
        }
    }
}
