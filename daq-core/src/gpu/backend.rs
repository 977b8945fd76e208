//! What makes GPU memory that the CPU or a device can write to, and what writes to it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What makes a mapping.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// GDRCopy's library, `libgdrapi.so.2`, over CUDA memory.
    Gdrapi,
    /// The CUDA memory's dma-buf, mapped directly.
    #[serde(rename = "dma-buf")]
    DmaBuf,
    /// Vulkan memory that lies behind the GPU's BAR, imported into CUDA.
    Vulkan,
    /// Host memory that the GPU reads over the bus: for words alone.
    Host,
}

impl Backend {
    /// All of them, in the order in which they are tried.
    pub const ALL: [Self; 4] = [Self::Gdrapi, Self::DmaBuf, Self::Vulkan, Self::Host];

    /// The name in configuration, plans and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gdrapi => "gdrapi",
            Self::DmaBuf => "dma-buf",
            Self::Vulkan => "vulkan",
            Self::Host => "host",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What writes a piece of memory; it decides which backends can make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// The CPU, whole frames.
    Cpu,
    /// The CPU, words and records: host memory will do.
    Doorbell,
    /// A card behind VFIO.
    Fpga,
    /// A network card: it takes memory of CUDA's alone.
    Nic,
}

impl Writer {
    /// The backends that can make memory for this writer, in the order in which they are tried.
    pub const fn backends(self) -> &'static [Backend] {
        match self {
            Self::Cpu | Self::Fpga => &[Backend::Gdrapi, Backend::DmaBuf, Backend::Vulkan],
            Self::Doorbell => &Backend::ALL,
            Self::Nic => &[Backend::Gdrapi, Backend::DmaBuf],
        }
    }
}
