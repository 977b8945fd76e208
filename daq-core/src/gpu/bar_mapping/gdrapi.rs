//! CUDA memory that is mapped by GDRCopy.

use super::pieces::{self, Pieces, Refused, Stopwatch, plain_offset};
use crate::gpu::driver::{Backing, Device, Memory};
use crate::sys::gdrapi::{self, GdrError, NoGdr, PAGE, Pin};
use rustix::io::Errno;
use std::ptr::NonNull;
use std::sync::Arc;

/// A pinned and mapped part of CUDA memory.
#[derive(Debug)]
pub(super) struct Mapping {
    pin: Pin,
    cpu: NonNull<u8>,
    bytes: usize,
    pub(super) memory: Arc<Memory>,
}

pub(super) fn make(
    device: &'static Device,
    bytes: usize,
    backing: Option<Backing>,
) -> Result<Pieces<Mapping>, Refused> {
    // Check whether the library is available before allocating memory.
    gdrapi::open().map_err(|missing| refusal(&missing.into()))?;
    let bytes = pieces::whole_pages(bytes, PAGE)?;
    let (memory, allocate) = pieces::allocate(device, bytes, PAGE, backing)?;
    let is_plain = memory.backing() == Backing::Plain;
    let mut pieces = match map(Arc::new(memory), bytes) {
        // Some versions of GDRCopy's Linux module cannot pin every kind of memory.
        Err(_) if backing.is_none() && !is_plain => {
            return make(device, bytes, Some(Backing::Plain));
        }
        made => made?,
    };
    pieces.costs.allocate = allocate;
    Ok(pieces)
}

pub(super) fn map(memory: Arc<Memory>, bytes: usize) -> Result<Pieces<Mapping>, Refused> {
    let gpu = memory.address() + plain_offset(&memory, PAGE);
    let mut stopwatch = Stopwatch::new();
    // SAFETY: the range consists of whole pages of CUDA memory, which lives as long as the mapping of the pin.
    let pin = unsafe { gdrapi::pin(gpu, bytes) }.map_err(|error| refusal(&error))?;
    let pinned = stopwatch.lap();
    // SAFETY: the range was pinned just above and is not mapped yet.
    let cpu = match unsafe { gdrapi::map(pin, gpu, bytes) } {
        Ok(cpu) => cpu,
        Err(error) => {
            // SAFETY: the range was pinned just above and is not mapped.
            let _ = unsafe { gdrapi::unpin(pin) };
            return Err(refusal(&error));
        }
    };
    let mut pieces = Pieces::new(
        (cpu, gpu, bytes),
        Mapping {
            pin,
            cpu,
            bytes,
            memory,
        },
    );
    pieces.costs.pin = pinned;
    pieces.costs.map = stopwatch.lap();
    Ok(pieces)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: pin and mapping were created in `map`. The owner of this value is dropped, so nothing uses the
        // mapping any more.
        let undone = unsafe {
            gdrapi::unmap(self.pin, self.cpu, self.bytes).and_then(|()| gdrapi::unpin(self.pin))
        };
        if let Err(error) = undone {
            tracing::debug!("cannot unmap GPU memory: {error}");
        }
    }
}

/// Describes an error, with a remedy.
fn refusal(error: &GdrError) -> Refused {
    let helps = match error {
        GdrError::Missing(NoGdr::NoLibrary(_)) => {
            "install GDRCopy (packages libgdrapi and gdrdrv-dkms) to use it for CPU stores to GPU memory"
        }
        GdrError::Missing(NoGdr::Incomplete(_)) => "install GDRCopy 2.3 or newer",
        GdrError::Missing(NoGdr::NoDriver(..)) => {
            "load GDRCopy's kernel module and check its device file: modprobe gdrdrv; ls -l /dev/gdrdrv; GDRCOPY_ENABLE_LOGGING=1 shows more"
        }
        GdrError::Call("gdr_pin_buffer", answer) if is(*answer, Errno::NOMEM) => {
            "the GPU's BAR1 aperture is full: nvidia-smi -q -d MEMORY shows it; lower `slots` or `slot` of the rings on this GPU"
        }
        GdrError::Call("gdr_pin_buffer", _) => {
            "the GPU must support access by other devices (data centre and RTX cards do), and gdrdrv must match the driver: dmesg | grep -i gdrdrv; GDRCOPY_ENABLE_LOGGING=1 shows more"
        }
        GdrError::Call(..) | GdrError::Elsewhere { .. } => {
            "library and kernel module must have the same version: dmesg | grep -i gdrdrv; GDRCOPY_ENABLE_LOGGING=1 shows more"
        }
    };
    Refused(format!("{error}; {helps}"))
}

const fn is(answer: gdrapi::Answer, errno: Errno) -> bool {
    answer.0.saturating_abs() == errno.raw_os_error()
}
