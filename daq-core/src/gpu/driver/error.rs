//! Errors of the CUDA driver, with remedies.

use crate::sys::cuda::{self, Code};
use std::fmt;

/// A failed call of the CUDA driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaError {
    /// The operation, such as `copying to cuda:0`.
    pub what: String,
    /// The driver's error code.
    pub code: u32,
    /// The driver's name of the error, such as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub name: String,
    /// Details beyond the name, such as a compiler log or free memory; may be empty.
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

    /// Whether the device's context is unusable. Every later call then fails with the same error, and only a new
    /// process can use the device again.
    ///
    /// This is the case for the codes 226, 700, 702, 709, 710, 714 to 719 and 721, according to the driver's
    /// documentation. The codes for broken hardware and unknown errors (214, 220, 999) are also included, because
    /// results of the device are unreliable after them.
    pub const fn is_sticky(&self) -> bool {
        matches!(
            self.code,
            214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 999
        )
    }

    /// Returns the remedy; empty if none is known.
    pub fn remedy(&self) -> &'static str {
        match self.code {
            // For pinning, these codes concern host memory: invalid value, out of memory, operating system error, not
            // supported.
            1 | 2 | 304 | 801 if self.what.starts_with(PINNING) => {
                "raise the limit of locked memory (`ulimit -l unlimited`; for a service `LimitMEMLOCK=infinity` in its unit), or lower `slots` or `slot` of the rings that are copied to the GPU"
            }
            2 => {
                "lower `slots` or `slot` of the rings on this GPU, or free memory of other processes (nvidia-smi shows them)"
            }
            46 | 100 => "check whether the GPU is still present: nvidia-smi; dmesg | grep -i xid",
            214 | 220 | 226 => {
                "check the GPU's memory and links for faults: nvidia-smi -q -d ECC; dmesg | grep -i xid"
            }
            222 => "the code was compiled for a newer driver: update the driver",
            700 | 714..=718 => {
                "a kernel accessed invalid memory: run it under compute-sanitizer, or remove your own kernel"
            }
            702 => {
                "a kernel ran longer than the display watchdog allows; use a GPU without a display"
            }
            710 | 719 => {
                "a kernel stopped with a fault: run it under compute-sanitizer, or remove your own kernel"
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
            f.write_str("; this process can no longer use the GPU")?;
        }
        let remedy = self.remedy();
        if !remedy.is_empty() {
            write!(f, "; {remedy}")?;
        }
        Ok(())
    }
}

impl std::error::Error for CudaError {}

/// The prefix of `what` for pinning host memory. For these errors, host memory is exhausted, not GPU memory.
pub(super) const PINNING: &str = "pinning";

/// Converts an error code into a [`CudaError`] that names the failed operation.
pub(super) trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, CudaError>;
}

impl<T> Doing<T> for Result<T, Code> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, CudaError> {
        self.map_err(|code| CudaError::new(what(), code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(what: &str, code: u32) -> CudaError {
        CudaError::new(what, Code(code))
    }

    #[test]
    fn sticky_errors_match_cuda_documentation() {
        let sticky: Vec<u32> = (0..2000)
            .filter(|code| error("copying", *code).is_sticky())
            .collect();
        assert_eq!(
            sticky,
            [
                214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999
            ]
        );
    }

    #[test]
    fn pinning_failure_hint_names_memlock_limit() {
        for code in [1, 2, 304, 801] {
            let text = error("pinning 1 GiB of host memory for CUDA", code).to_string();
            assert!(text.contains("ulimit -l"), "{text}");
            assert!(text.contains("LimitMEMLOCK="), "{text}");
            assert!(!text.contains("nvidia-smi"), "{text}");
        }
        let text = error("allocating 1 GiB on cuda:0", 2).to_string();
        assert!(text.contains("nvidia-smi"), "{text}");
        assert!(!text.contains("ulimit"), "{text}");
    }
}
