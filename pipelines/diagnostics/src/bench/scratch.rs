//! Creates a temporary directory for one measurement.

use super::BenchError;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A directory for kernel source files, which is removed on drop.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Creates a directory with a file `name`. The file contains `code`, or a copy of `file` if given.
    pub(crate) fn new(name: &str, code: &str, file: Option<&Path>) -> Result<Self, BenchError> {
        let nanos = SystemTime::UNIX_EPOCH
            .elapsed()
            .map_or(0, |time| time.as_nanos());
        let directory = format!("daq-bench-{}-{nanos:x}", std::process::id());
        let path = std::env::temp_dir().join(directory);
        let failed = |error: std::io::Error| {
            BenchError::Thread(format!(
                "cannot copy the kernel file to {}: {error}; check `--file`, or set TMPDIR to a writable directory",
                path.display()
            ))
        };
        // Creating fails if the directory exists, so this process runs and removes only its own files.
        let mut directory = std::fs::DirBuilder::new();
        directory.mode(0o700).create(&path).map_err(failed)?;
        let scratch = Self(path.clone());
        let code = file.map_or_else(|| Ok(code.to_owned()), std::fs::read_to_string);
        code.and_then(|code| std::fs::write(path.join(name), code))
            .map_err(failed)?;
        Ok(scratch)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_directory_is_private_to_user() {
        use std::os::unix::fs::PermissionsExt;
        let scratch = |file| Scratch::new("a.cu", "", file);
        let (one, other) = (scratch(None).unwrap(), scratch(None).unwrap());
        assert_ne!(one.0, other.0);
        let mode = std::fs::metadata(&one.0).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let path = one.0.clone();
        drop(one);
        assert!(!path.exists());
        let missing = scratch(Some(Path::new("/nonexistent.cu")));
        assert!(missing.is_err());
    }
}
