//! Descriptors with which other processes map a region.

use super::{Backing, Region};
use crate::gpu::driver::CudaError;
use crate::sys::memory;
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// Memory that another process can map.
#[derive(Debug)]
pub enum SharedMemory {
    /// Host memory: a file that can only be read.
    Host(OwnedFd),
    /// GPU memory: a descriptor for `cuMemImportFromShareableHandle`. The other process maps it with the access rights
    /// that it requests, so that process must request only read access.
    Cuda {
        /// The descriptor.
        file: OwnedFd,
        /// CUDA device ordinal in this process.
        ordinal: u32,
        /// UUID of the GPU in the form that nvidia-smi prints.
        uuid: String,
        /// Size of the allocation in bytes.
        bytes: usize,
    },
}

/// The error for memory that other processes cannot map.
#[derive(Debug, thiserror::Error)]
pub enum ShareError {
    /// The region is private memory of this process.
    #[error(
        "the memory is private to the daq process; remove `attach = false` from the ring, and raise the limits on open files and file sizes (ulimit -n and -f)"
    )]
    Private,
    /// The region is GPU memory that the CPU can write, which has no read-only handle.
    #[error(
        "the GPU memory is mapped for CPU stores ({0}), and such memory cannot be shared read-only; attach to another ring of the pipeline, or set `backends = []` in `[staging]`, so that the copy engine fills the ring"
    )]
    Mapped(crate::gpu::Backend),
    /// The GPU driver cannot share the allocation.
    #[error("the GPU memory is {0}, which cannot be shared with other processes")]
    Unshareable(crate::gpu::driver::Backing),
    /// The GPU failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// Linux cannot open the memory read-only.
    #[error(
        "cannot open the memory read-only: {0}; sharing memory needs /proc and Linux 5.1 or newer"
    )]
    Open(#[from] Errno),
}

impl Region {
    /// Returns a descriptor with which another process can map the region for reading.
    ///
    /// After the first call no other process can map host memory for writing. A device that is emulated by another process
    /// must map it before.
    ///
    /// # Errors
    /// If the region was not created [`shared`](super::HostOptions::shared), or is GPU memory that cannot be shared.
    pub fn share(&self) -> Result<SharedMemory, ShareError> {
        match &self.backing {
            Backing::Host(_, None) => Err(ShareError::Private),
            Backing::Host(_, Some(file)) => Ok(SharedMemory::Host(memory::read_only(file)?)),
            Backing::BarMapping(mapped) => Err(ShareError::Mapped(mapped.backend())),
            Backing::Cuda(allocation) => {
                let device = allocation.device();
                let file = allocation.share()?;
                Ok(SharedMemory::Cuda {
                    file: file.ok_or(ShareError::Unshareable(allocation.backing()))?,
                    ordinal: device.ordinal(),
                    uuid: device.identity().uuid.clone(),
                    bytes: allocation.bytes(),
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::HostOptions;
    use rustix::mm::{MapFlags, ProtFlags};
    use std::os::fd::AsRawFd;

    fn map(file: &OwnedFd, access: ProtFlags) -> Result<(), Errno> {
        // SAFETY: with a null hint Linux chooses an address, and the memory is not accessed.
        unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                4096,
                access,
                MapFlags::SHARED,
                file,
                0,
            )
        }
        .map(|_| ())
    }

    #[test]
    fn shared_region_can_be_read_but_not_written() {
        let options = HostOptions {
            shared: true,
            ..HostOptions::default()
        };
        let region = Region::host(4096, options).unwrap();
        // SAFETY: the region has 4096 bytes, and only this test uses it.
        unsafe { region.address().as_ptr().write(7) };
        let Ok(SharedMemory::Host(file)) = region.share() else {
            panic!("host memory is not shared as a file");
        };
        let mut byte = [0];
        assert_eq!(rustix::io::pread(&file, &mut byte, 0), Ok(1));
        assert_eq!(byte, [7]);
        assert_eq!(map(&file, ProtFlags::READ), Ok(()));
        assert_eq!(
            map(&file, ProtFlags::READ | ProtFlags::WRITE),
            Err(Errno::ACCESS)
        );
        // The owner of the file may open it again for writing, but the seal prevents all changes.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let again = std::fs::File::options()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        assert_eq!(rustix::io::pwrite(&again, &[1], 0), Err(Errno::PERM));
        assert_eq!(
            map(&again.into(), ProtFlags::READ | ProtFlags::WRITE),
            Err(Errno::PERM)
        );
        // SAFETY: as above.
        unsafe { region.address().as_ptr().write(8) };
        rustix::io::pread(&file, &mut byte, 0).unwrap();
        assert_eq!(byte, [8]);
    }

    #[test]
    fn private_region_is_not_shared() {
        let region = Region::host(4096, HostOptions::default()).unwrap();
        assert!(matches!(region.share(), Err(ShareError::Private)));
    }
}
