//! How bursts are submitted to a kernel on a GPU.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How bursts are submitted to a kernel on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Dispatch {
    /// One launch per burst, on the kernel's own stream, which waits for no other stream.
    #[default]
    Launch,
    /// A persistent kernel polls its doorbell.
    Persistent,
}

impl Dispatch {
    /// Returns the name in configuration, plans and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Launch => "launch",
            Self::Persistent => "persistent",
        }
    }
}
