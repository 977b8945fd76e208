//! Whether there is CUDA, and which devices.

use super::error::CudaError;
use crate::sys::cuda;
use std::sync::OnceLock;

/// The oldest driver interface that is used here: CUDA 12.0, which driver 525 brought.
const OLDEST: i32 = 12_000;

/// Why there is no CUDA, as a clause with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCuda {
    /// No library.
    #[error("there is no libcuda.so.1; install NVIDIA's driver where there is a GPU")]
    NoLibrary,
    /// A driver before CUDA 12.0.
    #[error(
        "the driver supports CUDA {}.{}, and daq needs 12.0: update it to 525 or newer", .version / 1000, .version % 1000 / 10
    )]
    TooOld {
        /// 1000 × major + 10 × minor.
        version: i32,
    },
    /// A library that is not what it says.
    #[error("libcuda.so.1 lacks {symbol}, which CUDA 12.0 has: reinstall the driver")]
    Incomplete {
        /// The first missing symbol.
        symbol: &'static str,
    },
    /// The driver would not start, or found no device.
    #[error("the CUDA driver finds no GPU: {why}")]
    NoDevice {
        /// The driver's words.
        why: String,
    },
}

/// What the driver offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The CUDA version that the driver supports: 1000 × major + 10 × minor.
    pub version: i32,
    /// Devices, at least 1; their ordinals count from 0.
    pub devices: u32,
}

/// Starts the driver, once a process. What it answers does not change while the process lives.
pub fn probe() -> Result<Found, NoCuda> {
    static FOUND: OnceLock<Result<Found, NoCuda>> = OnceLock::new();
    FOUND.get_or_init(start).clone()
}

fn start() -> Result<Found, NoCuda> {
    if !cuda::is_present() {
        return Err(NoCuda::NoLibrary);
    }
    let no_device = |code| {
        let CudaError { name, detail, .. } = CudaError::new("", code);
        NoCuda::NoDevice {
            why: if detail.is_empty() {
                name
            } else {
                format!("{name} ({detail})")
            },
        }
    };
    // The version before the symbols: an old driver's owner wants to hear of its age.
    let version = cuda::driver_version().map_err(no_device)?;
    if version < OLDEST {
        return Err(NoCuda::TooOld { version });
    }
    if let Some(symbol) = cuda::missing_symbol() {
        return Err(NoCuda::Incomplete { symbol });
    }
    cuda::init().map_err(no_device)?;
    let devices = cuda::device_count().map_err(no_device)?;
    match u32::try_from(devices) {
        Ok(devices) if devices > 0 => Ok(Found { version, devices }),
        _ => Err(NoCuda::NoDevice {
            why: "it counts none; CUDA_VISIBLE_DEVICES may hide them".to_owned(),
        }),
    }
}
