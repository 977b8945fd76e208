//! Detection of CUDA and the number of its devices.

use super::error::CudaError;
use crate::sys::cuda;
use std::sync::OnceLock;

/// The oldest supported version of the driver interface: CUDA 12.0, which driver 525 provides.
const OLDEST: i32 = 12_000;

/// The reason why CUDA is not available, as a clause with a remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCuda {
    /// The library is missing.
    #[error("libcuda.so.1 was not found; install NVIDIA's driver to use a GPU")]
    NoLibrary,
    /// The driver is older than CUDA 12.0.
    #[error(
        "the driver supports CUDA {}.{}, but daq needs 12.0: update the driver to 525 or newer", .version / 1000, .version % 1000 / 10
    )]
    TooOld {
        /// The CUDA version of the driver: 1000 × major + 10 × minor.
        version: i32,
    },
    /// The library lacks a function of its version.
    #[error("libcuda.so.1 lacks {symbol}, which CUDA 12.0 has: reinstall the driver")]
    Incomplete {
        /// The first missing symbol.
        symbol: &'static str,
    },
    /// The driver failed to start, or found no device.
    #[error("the CUDA driver finds no GPU: {why}")]
    NoDevice {
        /// The driver's message.
        why: String,
    },
}

/// The properties of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The CUDA version that the driver supports: 1000 × major + 10 × minor.
    pub version: i32,
    /// Number of devices, at least 1; their ordinals start at 0.
    pub devices: u32,
}

/// Starts the driver, once per process; the result does not change afterwards.
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
    // The version is checked before the symbols, so that an old driver is reported as such.
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
            why: "the driver reports 0 devices; CUDA_VISIBLE_DEVICES may hide them".to_owned(),
        }),
    }
}
