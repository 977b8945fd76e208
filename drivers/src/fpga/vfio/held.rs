//! What keeps a GPU's memory: the descriptors that its mapping was made through.

use crate::sys::vfio as sys;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// A GPU's memory and its way through the BAR live as long as one of these is open: those of NVIDIA's driver, of
/// GDRCopy's, and exported memory.
const KEEPERS: [&str; 3] = ["/dev/nvidia", "/dev/gdrdrv", "/dmabuf:"];

/// Duplicates of all descriptors of this process that keep a GPU's memory.
pub fn keepers() -> io::Result<Vec<OwnedFd>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let Some(number) = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        // Another thread may close it at any time, and open something else: what was duplicated is looked at.
        if is_keeper(number)
            && let Ok(copy) = sys::duplicate(number)
            && is_keeper(copy.as_raw_fd())
        {
            found.push(copy);
        }
    }
    Ok(found)
}

fn is_keeper(number: i32) -> bool {
    let link = Path::new("/proc/self/fd").join(number.to_string());
    fs::read_link(link).is_ok_and(|target| {
        let target = target.as_os_str().as_encoded_bytes();
        KEEPERS
            .iter()
            .any(|keeper| target.starts_with(keeper.as_bytes()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_files_keep_no_gpu() {
        let _file = fs::File::open("/dev/null").unwrap();
        let found = keepers().unwrap();
        for fd in &found {
            assert!(is_keeper(fd.as_raw_fd()));
        }
        assert!(!is_keeper(_file.as_raw_fd()));
    }
}
