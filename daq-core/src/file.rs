//! Opens files that must be regular files.
//!
//! Anyone with write access to a directory can create a FIFO in it. Opening a FIFO blocks until another process opens
//! the other end of the FIFO. Therefore files are opened without blocking, and anything but a regular file is rejected.

use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Whether the last component of a path may be a symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Symbolic links are followed.
    Follow,
    /// A symbolic link is an error. Used for files that daq itself creates, which are never links.
    Refuse,
}

/// Opens the regular file `path` with `options`; never blocks.
///
/// `options` must not truncate, because `path` may exist and not be a regular file.
pub(crate) fn open_with(options: &OpenOptions, path: &Path, links: Links) -> io::Result<File> {
    let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    if links == Links::Refuse {
        flags |= OFlags::NOFOLLOW;
    }
    let flags = i32::try_from(flags.bits()).unwrap_or(0);
    let opened = options.clone().custom_flags(flags).open(path);
    let file = opened.map_err(|error| match rustix::io::Errno::from_io_error(&error) {
        // The path is a FIFO that no process reads, or a socket.
        Some(rustix::io::Errno::NXIO) => irregular(),
        Some(rustix::io::Errno::LOOP) => io::Error::other(
            "the path is a symbolic link, which daq does not follow; remove the link",
        ),
        _ => error,
    })?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(irregular())
    }
}

/// Opens the regular file `path` for reading; never blocks.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(OpenOptions::new().read(true), path, Links::Follow)
}

/// Reads the regular file `path`; never blocks.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Creates the file `path`, or truncates an existing regular file. Never blocks and does not follow a symbolic link.
pub fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    let file = open_with(&options, path, Links::Refuse)?;
    file.set_len(0)?;
    Ok(file)
}

/// Replaces the file `path` with `bytes`. Until then, `temporary`, a path in the same directory, contains them. A failure
/// leaves `path` as it was, and removes `temporary`.
pub fn replace(path: &Path, temporary: &Path, bytes: &[u8]) -> io::Result<()> {
    let write = || {
        let mut file = create(temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(temporary, path)
    };
    write().inspect_err(|_| drop(std::fs::remove_file(temporary)))
}

/// Returns whether only a change of the path, of the file or of its permissions resolves the error of a file. Other errors,
/// such as too many open files, can be temporary.
pub fn is_configuration(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    // `irregular` has the kind `InvalidInput`. Callers use `InvalidData` for a file with invalid content.
    matches!(
        error.kind(),
        Kind::NotFound
            | Kind::NotADirectory
            | Kind::PermissionDenied
            | Kind::InvalidInput
            | Kind::InvalidData
    )
}

fn irregular() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "the path is a FIFO, a socket, a device or a directory, not a regular file",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    #[test]
    fn file_is_replaced_or_left_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let (path, temporary) = (dir.path().join("file"), dir.path().join("file.tmp"));
        replace(&path, &temporary, b"old").unwrap();
        replace(&path, &temporary, b"new").unwrap();
        assert_eq!(read(&path).unwrap(), b"new");
        std::fs::create_dir(dir.path().join("folder")).unwrap();
        replace(&dir.path().join("folder"), &temporary, b"new").unwrap_err();
        assert!(!temporary.exists());
    }

    #[test]
    fn fifos_and_directories_are_rejected_without_blocking() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for path in [fifo.as_path(), dir.path()] {
            for error in [read(path).unwrap_err(), open(path).unwrap_err()] {
                assert!(error.to_string().contains("not a regular file"), "{error}");
                assert!(is_configuration(&error), "{error}");
            }
            create(path).unwrap_err();
        }
        assert!(is_configuration(
            &read(&dir.path().join("absent")).unwrap_err()
        ));
        for temporary in [rustix::io::Errno::MFILE, rustix::io::Errno::IO] {
            assert!(!is_configuration(&temporary.into()));
        }
        let reader = File::from(rustix::fs::open(&fifo, OFlags::RDWR, Mode::empty()).unwrap());
        let error = create(&fifo).unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
        drop(reader);
    }

    #[test]
    fn symlinks_are_followed_only_if_allowed() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&file, "text").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(read(&link).unwrap(), b"text");
        let error = create(&link).unwrap_err();
        assert!(error.to_string().contains("symbolic link"), "{error}");
        assert_eq!(read(&file).unwrap(), b"text");
        create(&file).unwrap();
        assert_eq!(read(&file).unwrap(), b"");
    }
}
