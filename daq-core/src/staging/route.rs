//! The two memories between which a GPU copies.

use super::Direction;
use crate::region::Placement;
use serde::{Serialize, Serializer};
use std::fmt;

/// The memory from which and the memory to which a GPU copies. At least one of them is memory of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    from: Placement,
    to: Placement,
}

impl Route {
    /// Returns the route between two memories; `None` if no GPU copies between them, because both are host memory.
    pub const fn between(from: Placement, to: Placement) -> Option<Self> {
        match (from, to) {
            (Placement::Host, Placement::Host) => None,
            (from, to) => Some(Self { from, to }),
        }
    }

    /// Returns the memory that is read.
    pub const fn from(self) -> Placement {
        self.from
    }

    /// Returns the memory that is written.
    pub const fn to(self) -> Placement {
        self.to
    }

    /// Returns the CUDA ordinal of the GPU whose stream copies. Between two GPUs, this is the source, because writing to
    /// another GPU needs no answer from it.
    pub const fn device(self) -> u32 {
        match (self.from, self.to) {
            (Placement::Cuda(gpu), _) | (Placement::Host, Placement::Cuda(gpu)) => gpu,
            (Placement::Host, Placement::Host) => unreachable!(),
        }
    }

    /// Returns the CUDA ordinals of source and target if they are different GPUs.
    pub const fn peers(self) -> Option<(u32, u32)> {
        match (self.from, self.to) {
            (Placement::Cuda(from), Placement::Cuda(to)) if from != to => Some((from, to)),
            _ => None,
        }
    }

    /// Returns the CUDA ordinal of the target if the source is host memory.
    pub const fn staged_to(self) -> Option<u32> {
        match (self.from, self.to) {
            (Placement::Host, Placement::Cuda(gpu)) => Some(gpu),
            _ => None,
        }
    }

    /// Returns the direction as seen from the [GPU](Self::device); `None` if both memories belong to GPUs.
    pub const fn direction(self) -> Option<Direction> {
        match (self.from, self.to) {
            (Placement::Host, _) => Some(Direction::In),
            (_, Placement::Host) => Some(Direction::Out),
            _ => None,
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} → {}", self.from, self.to)
    }
}

/// Serializes the names of both memories.
impl Serialize for Route {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq([self.from.to_string(), self.to.to_string()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Placement::{Cuda, Host};

    fn route(from: Placement, to: Placement) -> Route {
        Route::between(from, to).unwrap()
    }

    #[test]
    fn source_gpu_copies_unless_source_is_host_memory() {
        assert_eq!(Route::between(Host, Host), None);
        assert_eq!(route(Host, Cuda(2)).device(), 2);
        assert_eq!(route(Cuda(1), Host).device(), 1);
        assert_eq!(route(Cuda(3), Cuda(0)).device(), 3);
        assert_eq!(route(Cuda(3), Cuda(3)).device(), 3);
    }

    #[test]
    fn only_different_gpus_are_peers() {
        assert_eq!(route(Cuda(3), Cuda(0)).peers(), Some((3, 0)));
        assert_eq!(route(Cuda(3), Cuda(3)).peers(), None);
        assert_eq!(route(Host, Cuda(3)).peers(), None);
        assert_eq!(route(Cuda(3), Cuda(0)).direction(), None);
        assert_eq!(route(Cuda(3), Host).direction(), Some(Direction::Out));
        assert_eq!(route(Cuda(3), Host).staged_to(), None);
        assert_eq!(route(Host, Cuda(3)).staged_to(), Some(3));
    }

    #[test]
    fn route_names_both_memories() {
        assert_eq!(route(Cuda(1), Cuda(0)).to_string(), "cuda:1 → cuda:0");
        let json = serde_json::to_string(&route(Host, Cuda(0))).unwrap();
        assert_eq!(json, r#"["host","cuda:0"]"#);
    }
}
