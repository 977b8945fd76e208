//! The file descriptors that keep GPU memory allocated.

use crate::sys::vfio as sys;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// Files whose descriptors keep GPU memory and its BAR mapping alive: NVIDIA driver, GDRCopy, dma-buf.
const GPU_FILES: [&str; 3] = ["/dev/nvidia", "/dev/gdrdrv", "/dmabuf:"];

/// This file exists if the NVIDIA driver is loaded.
const DRIVER: &str = "/dev/nvidiactl";

/// Duplicates all descriptors of this process that keep GPU memory allocated.
pub(super) fn gpu_descriptors() -> io::Result<Vec<OwnedFd>> {
    opened(&GPU_FILES)
}

/// Returns true if GPU memory could be freed and reused while the device still writes, because `held` is empty.
pub(super) fn lacks_descriptor(held: &[OwnedFd]) -> bool {
    held.is_empty() && Path::new(DRIVER).exists()
}

/// Duplicates the descriptors of files whose path starts with one of `names`.
fn opened(names: &[&str]) -> io::Result<Vec<OwnedFd>> {
    let mut found: Vec<OwnedFd> = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let Some(number) = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        // The duplicates appear in the directory while it is read.
        let is_ours = found.iter().any(|copy| copy.as_raw_fd() == number);
        // Another thread may close the descriptor and open another file, so the duplicate is checked again.
        if is_ours || !is_named(number, names) {
            continue;
        }
        match sys::duplicate(number) {
            Ok(copy) if is_named(copy.as_raw_fd(), names) => found.push(copy),
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => {}
            Err(error) => {
                return Err(io::Error::new(
                    error.kind(),
                    format!(
                        "{error}; if the process is out of file descriptors, raise LimitNOFILE= in the systemd unit, or ulimit -n"
                    ),
                ));
            }
        }
    }
    Ok(found)
}

fn is_named(number: i32, names: &[&str]) -> bool {
    let link = Path::new("/proc/self/fd").join(number.to_string());
    fs::read_link(link).is_ok_and(|target| {
        let target = target.as_os_str().as_encoded_bytes();
        names.iter().any(|name| target.starts_with(name.as_bytes()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_descriptor_is_duplicated_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("nvidia");
        let name = name.to_str().unwrap();
        let files = ["0", "ctl"].map(|end| fs::File::create(format!("{name}{end}")).unwrap());
        let other = fs::File::create(folder.path().join("null")).unwrap();
        let found = opened(&["/dev/none", name]).unwrap();
        let id = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_ino;
        let mut found: Vec<_> = found.iter().map(id).collect();
        let mut expected: Vec<_> = files.map(|file| id(&file.into())).into();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected);
        assert!(!is_named(other.as_raw_fd(), &[name]));
    }
}
