//! What the CUDA driver refuses, and what helps.

use crate::sys::cuda::{self, Code};
use std::fmt;

/// A call of the CUDA driver that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaError {
    /// What was being done, as in `copying to cuda:0`.
    pub what: String,
    /// The driver's number of the error.
    pub code: u32,
    /// The driver's name of it, as in `CUDA_ERROR_OUT_OF_MEMORY`.
    pub name: String,
    /// What is known beyond the name: a compiler's log, free memory; empty if nothing is.
    pub detail: String,
}

impl CudaError {
    pub(super) fn new(what: impl Into<String>, code: Code) -> Self {
        let (name, about) = cuda::describe(code);
        Self {
            what: what.into(),
            code: code.0,
            name: if name.is_empty() {
                format!("error {}", code.0)
            } else {
                name
            },
            detail: about,
        }
    }

    pub(super) fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }

    /// Whether the device's context is dead: every later call fails with the same error, and only a new process
    /// can use the device again.
    ///
    /// The codes are those that the driver's documentation says this of.
    pub const fn is_sticky(&self) -> bool {
        matches!(
            self.code,
            4 | 46 | 214 | 220 | 226 | 304 | 700 | 702 | 709 | 710 | 713..=721 | 999
        )
    }

    /// What helps; empty where nothing is known.
    pub const fn remedy(&self) -> &'static str {
        match self.code {
            2 => {
                "lower `slots` or `slot` of the rings on this GPU, or free memory of other processes (nvidia-smi shows them)"
            }
            46 | 100 => "look whether the GPU is still there: nvidia-smi; dmesg | grep -i xid",
            214 | 220 | 226 => {
                "the GPU's memory or a link is faulty: nvidia-smi -q -d ECC; dmesg | grep -i xid"
            }
            222 => "the driver is older than the compiler that made the code: update the driver",
            700 | 714..=718 => {
                "a kernel touched memory that is not its own: run it under compute-sanitizer, or leave your own kernel out"
            }
            702 => "a kernel ran for longer than the display's watchdog allows",
            710 | 719 => {
                "a kernel stopped with a fault: run it under compute-sanitizer, or leave your own kernel out"
            }
            803 => "driver and libcuda.so do not match: reboot after a driver update",
            _ => "",
        }
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.name)?;
        if !self.detail.is_empty() {
            write!(f, " ({})", self.detail)?;
        }
        if self.is_sticky() {
            f.write_str("; the GPU cannot be used by this process any more")?;
        }
        let remedy = self.remedy();
        if !remedy.is_empty() {
            write!(f, "; {remedy}")?;
        }
        Ok(())
    }
}

impl std::error::Error for CudaError {}

/// Adds to a code what was being done.
pub(super) trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, CudaError>;
}

impl<T> Doing<T> for Result<T, Code> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, CudaError> {
        self.map_err(|code| CudaError::new(what(), code))
    }
}
