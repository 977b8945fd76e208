//! The backends that provide GPU memory which the CPU or a device can write, and the kinds of devices that write it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A backend that provides a BAR mapping.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// CUDA memory that is mapped by GDRCopy's library, `libgdrapi.so.2`.
    Gdrapi,
    /// CUDA memory whose dma-buf is mapped directly.
    #[serde(rename = "dma-buf")]
    DmaBuf,
    /// Vulkan memory behind the GPU's BAR, imported into CUDA.
    Vulkan,
    /// Host memory that the GPU reads over the bus. Used only for single words.
    Host,
}

impl Backend {
    /// All backends, in the order in which they are tried.
    pub const ALL: [Self; 4] = [Self::Gdrapi, Self::DmaBuf, Self::Vulkan, Self::Host];

    /// Returns the name in configuration, plans and metrics.
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

/// The kind of device that writes a memory region. It determines which backends can provide the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// The CPU, writing whole frames.
    Cpu,
    /// The CPU, writing doorbells and descriptors. Host memory is also suitable.
    Doorbell,
    /// A PCIe device behind VFIO.
    Fpga,
    /// A NIC, which accepts only CUDA memory.
    Nic,
}

impl Writer {
    /// Returns the backends that are suitable for this writer, in the order in which they are tried.
    pub const fn backends(self) -> &'static [Backend] {
        match self {
            Self::Cpu | Self::Fpga => &[Backend::Gdrapi, Backend::DmaBuf, Backend::Vulkan],
            Self::Doorbell => &Backend::ALL,
            Self::Nic => &[Backend::Gdrapi, Backend::DmaBuf],
        }
    }
}
