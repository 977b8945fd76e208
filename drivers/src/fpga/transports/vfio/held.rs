//! What keeps a GPU's memory: the descriptors that its mapping was made through.

use crate::sys::vfio as sys;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// A GPU's memory and its way through the BAR live as long as one of these is open: those of NVIDIA's driver, of
/// GDRCopy's, and exported memory.
const GPU_FILES: [&str; 3] = ["/dev/nvidia", "/dev/gdrdrv", "/dmabuf:"];

/// What is there where NVIDIA's driver is.
const DRIVER: &str = "/dev/nvidiactl";

/// Duplicates of all descriptors of this process that keep a GPU's memory.
pub fn gpu_descriptors() -> io::Result<Vec<OwnedFd>> {
    opened(&GPU_FILES)
}

/// Whether memory of a GPU that nothing of `held` keeps may be given to somebody else under the device.
pub fn lacks_descriptor(held: &[OwnedFd]) -> bool {
    held.is_empty() && Path::new(DRIVER).exists()
}

/// Duplicates of the descriptors of what begins with one of `names`.
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
        // The folder is read while duplicates come into it.
        let is_ours = found.iter().any(|copy| copy.as_raw_fd() == number);
        // Another thread may close it at any time, and open something else: what was duplicated is looked at.
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
                        "{error}; if descriptors have run out, raise LimitNOFILE= in the unit, or ulimit -n"
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
