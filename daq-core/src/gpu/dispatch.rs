//! How bursts reach a kernel on a GPU.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How bursts reach a kernel on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Dispatch {
    /// One launch a burst, on a stream of the kernel's own that waits for no other.
    #[default]
    Launch,
    /// The kernel stays on the GPU and waits for its doorbell.
    Persistent,
}

impl Dispatch {
    /// The name in configuration, plans and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Launch => "launch",
            Self::Persistent => "persistent",
        }
    }
}
