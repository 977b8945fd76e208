//! The two memories between which copy engines copy.

use super::Direction;
use crate::region::Placement;
use serde::{Serialize, Serializer};
use std::fmt;

/// The memory from which and the memory to which a copy engine copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Route {
    /// From host memory to the GPU with this CUDA ordinal.
    In(u32),
    /// From the GPU with this CUDA ordinal to host memory.
    Out(u32),
}

impl Route {
    /// Returns the route between two memories; `None` if no copy engine copies between them.
    pub const fn between(from: Placement, to: Placement) -> Option<Self> {
        match (from, to) {
            (Placement::Host, Placement::Cuda(to)) => Some(Self::In(to)),
            (Placement::Cuda(from), Placement::Host) => Some(Self::Out(from)),
            _ => None,
        }
    }

    /// Returns the CUDA ordinal of the GPU whose copy engine copies.
    pub const fn device(self) -> u32 {
        match self {
            Self::In(gpu) | Self::Out(gpu) => gpu,
        }
    }

    /// Returns the direction as seen from the [GPU](Self::device).
    pub const fn direction(self) -> Direction {
        match self {
            Self::In(_) => Direction::In,
            Self::Out(_) => Direction::Out,
        }
    }

    const fn ends(self) -> (Placement, Placement) {
        match self {
            Self::In(gpu) => (Placement::Host, Placement::Cuda(gpu)),
            Self::Out(gpu) => (Placement::Cuda(gpu), Placement::Host),
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = self.ends();
        write!(f, "{from} → {to}")
    }
}

/// Serializes the names of both memories.
impl Serialize for Route {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (from, to) = self.ends();
        serializer.collect_seq([from.to_string(), to.to_string()])
    }
}
