//! Attributes of the simulated devices, with the values of an H100.

use crate::options::{DmaBuf, Options};

/// Maximum dynamic shared memory per block in bytes after an opt-in.
pub const SHARED_OPTIN: i32 = 227 << 10;
/// Shared memory per block in bytes without an opt-in.
pub const SHARED: i32 = 48 << 10;
/// Shared memory per multiprocessor in bytes.
pub const SHARED_MULTIPROCESSOR: i32 = 228 << 10;
/// Number of multiprocessors per device.
pub const MULTIPROCESSORS: u32 = 132;
/// Maximum number of threads per block.
pub const THREADS: u32 = 1024;
/// Maximum number of threads per multiprocessor.
pub const THREADS_MULTIPROCESSOR: u32 = 2048;
/// Maximum number of blocks per multiprocessor.
pub const BLOCKS_MULTIPROCESSOR: u32 = 32;
/// Maximum number of blocks of a grid in each dimension.
pub const GRID: [u32; 3] = [0x7fff_ffff, 65_535, 65_535];
/// Maximum number of threads of a block in each dimension.
pub const BLOCK: [u32; 3] = [1024, 1024, 64];
/// Compute capability: 10 × major + minor.
pub const CAPABILITY: i32 = 90;
/// Maximum pitch of a two-dimensional copy in bytes.
pub const PITCH: u64 = 0x7fff_ffff;

/// Returns the PCI bus number of a device. It contains hexadecimal letters, as on many real machines.
pub const fn bus(ordinal: i32) -> i32 {
    0xab + ordinal
}

/// Returns the value of an attribute by its number in the driver; 0 if the attribute is unknown.
pub const fn value(options: &Options, attribute: i32) -> i32 {
    match attribute {
        16 => MULTIPROCESSORS.cast_signed(),
        39 => THREADS_MULTIPROCESSOR.cast_signed(),
        // Number of copy engines.
        40 => 3,
        75 => CAPABILITY / 10,
        76 => CAPABILITY % 10,
        97 => SHARED_OPTIN,
        102 => options.vmm as i32,
        103 => options.posix_fd as i32,
        116 | 117 => options.rdma as i32,
        118 => options.ordering,
        124 => !matches!(options.dma_buf, DmaBuf::None) as i32,
        _ => 0,
    }
}
