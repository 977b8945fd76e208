//! Checks of the files that a configuration refers to.

use crate::config::{Diagnostic, Problem};
use crate::gpu::Dispatch;
use crate::layout::Layout;
use rustix::fs::{Access, AtFlags, CWD, FsWord, accessat, statfs};
use rustix::io::Errno;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum length of a file or directory name in bytes.
const MAX_NAME: usize = 255;
/// Maximum length of a path in bytes.
const MAX_PATH: usize = 4095;

/// Types of file systems that contain no data files: procfs, sysfs and cgroup2. Source: `linux/magic.h`.
const VIRTUAL: [FsWord; 3] = [0x9fa0, 0x6265_6572, 0x6367_7270];

/// How a component uses a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileUse {
    /// The component reads the path, which must be a file.
    Reads,
    /// The component reads the file at the path, or the files in the directory at the path.
    ReadsAny,
    /// The component runs the program. A name without `/` is searched in `PATH`.
    Runs,
    /// The component writes the file at the path. The directory of the file must exist.
    Writes,
    /// The component writes files into this directory, which is created if it does not exist.
    WritesInto,
}

/// Checks the content of a file. The error is the message, with the fix after the last `: `.
pub type ContentCheck = Arc<dyn Fn(&[u8]) -> Result<(), String> + Send + Sync>;

/// A file or directory that a component's configuration refers to.
#[derive(Clone)]
pub struct NamedFile {
    /// The configuration key that contains the path, such as `path` or `path.1`.
    pub key: String,
    /// The path as written in the configuration.
    pub path: PathBuf,
    /// How the component uses the file.
    pub purpose: FileUse,
    content: Option<ContentCheck>,
}

impl fmt::Debug for NamedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedFile")
            .field("key", &self.key)
            .field("path", &self.path)
            .field("purpose", &self.purpose)
            .finish_non_exhaustive()
    }
}

/// Two descriptions are equal if they have the same key, path and use.
impl PartialEq for NamedFile {
    fn eq(&self, other: &Self) -> bool {
        (&self.key, &self.path, self.purpose) == (&other.key, &other.path, other.purpose)
    }
}

impl Eq for NamedFile {}

impl NamedFile {
    /// Creates a description of the file that `key` refers to.
    pub fn new(key: impl Into<String>, path: impl Into<PathBuf>, purpose: FileUse) -> Self {
        Self {
            key: key.into(),
            path: path.into(),
            purpose,
            content: None,
        }
    }

    /// Adds a check of the content of a file that the component reads.
    #[must_use]
    pub fn with_content(self, check: ContentCheck) -> Self {
        Self {
            content: Some(check),
            ..self
        }
    }

    /// Checks the name only, without accessing the file system.
    pub fn check_name(&self) -> Result<(), Problem> {
        let text = self.path.to_string_lossy();
        let longest = self
            .path
            .components()
            .map(|part| part.as_os_str().len())
            .max();
        if let Some(bytes) = longest.filter(|bytes| *bytes > MAX_NAME) {
            let message = format!(
                "the file or directory name has {bytes} bytes, but at most {MAX_NAME} are allowed"
            );
            return Err(Problem::at(&self.key, message).help("shorten the name"));
        }
        let Some((scheme, rest)) = text
            .split_once("://")
            .filter(|(scheme, _)| is_scheme(scheme))
        else {
            return Ok(());
        };
        let help = if scheme.eq_ignore_ascii_case("file") && rest.starts_with('/') {
            format!("write only the path: {rest:?}")
        } else {
            "write the path of a local file or directory; remote storage must be mounted first"
                .to_owned()
        };
        Err(Problem::at(&self.key, format!("{text} is a URL, not a path")).help(help))
    }

    /// Checks the file. `directory` is the base directory of relative paths.
    pub fn check_file(&self, directory: &Path) -> Result<(), Problem> {
        if self.purpose == FileUse::Runs {
            return self.check_program(directory);
        }
        let path = directory.join(&self.path);
        let wrong = |message: String, help: String| Err(Problem::at(&self.key, message).help(help));
        let shown = path.display();
        if self.purpose == FileUse::WritesInto {
            let bytes = path.as_os_str().len();
            // Leave room for the names of the files in the directory.
            if bytes + 1 + MAX_NAME > MAX_PATH {
                return wrong(
                    format!(
                        "the path has {bytes} bytes, but at most {} are allowed",
                        MAX_PATH - MAX_NAME - 1
                    ),
                    "choose a directory with a shorter path".to_owned(),
                );
            }
            return match path.ancestors().find(|ancestor| ancestor.exists()) {
                Some(ancestor) if !ancestor.is_dir() => wrong(
                    format!("{} is a file, not a directory", ancestor.display()),
                    "choose another `path`, or move that file away".to_owned(),
                ),
                Some(ancestor) => self.check_writable(ancestor),
                None => Ok(()),
            };
        }
        if self.purpose == FileUse::Writes {
            if path.is_dir() {
                return wrong(
                    format!("{shown} is a directory, not a file"),
                    "add a file name".to_owned(),
                );
            }
            return match path.parent() {
                Some(parent) if !parent.is_dir() => wrong(
                    format!("there is no directory {}", parent.display()),
                    format!("create it: mkdir -p {}", parent.display()),
                ),
                // An existing file is replaced or changed.
                Some(_) if path.exists() => self.check_writable(&path),
                Some(parent) => self.check_writable(parent),
                None => Ok(()),
            };
        }
        match std::fs::metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => wrong(
                format!("{shown} does not exist"),
                if self.path.is_absolute() {
                    "check the name".to_owned()
                } else {
                    "check the name; relative paths start from the working directory".to_owned()
                },
            ),
            Err(error) => wrong(
                format!("cannot read {shown}: {error}"),
                format!("check the read permissions: ls -l {shown}"),
            ),
            Ok(found) if found.is_dir() && self.purpose == FileUse::Reads => wrong(
                format!("{shown} is a directory, not a file"),
                "write the path of a file in this directory".to_owned(),
            ),
            // Opening a FIFO would block until another process writes to it.
            Ok(found) if !found.is_dir() && !found.is_file() => wrong(
                format!("{shown} is a FIFO, a socket or a device, not a regular file"),
                "write the path of a regular file".to_owned(),
            ),
            Ok(_) => match std::fs::File::open(&path) {
                Ok(_) => self.check_content(&path),
                Err(error) => wrong(
                    format!("cannot read {shown}: {error}"),
                    format!("check the read permissions: ls -l {shown}"),
                ),
            },
        }
    }
}

impl NamedFile {
    /// Checks the content of the file at `path`.
    fn check_content(&self, path: &Path) -> Result<(), Problem> {
        let Some(check) = &self.content else {
            return Ok(());
        };
        let shown = path.display();
        let checked = crate::file::read(path)
            .map_err(|error| error.to_string())
            .and_then(|bytes| check(&bytes));
        checked.map_err(|why| {
            let (message, help) = why.rsplit_once(": ").unwrap_or((&why, "correct the file"));
            Problem::at(&self.key, format!("{shown}: {message}")).help(help)
        })
    }

    /// Checks whether the program exists and this process may run it.
    fn check_program(&self, directory: &Path) -> Result<(), Problem> {
        let can_run = |path: &Path| {
            path.is_file() && accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
        };
        let name = &self.path;
        let wrong = |message: String, help: String| Err(Problem::at(&self.key, message).help(help));
        if name.components().count() > 1 || name.is_absolute() {
            let path = directory.join(name);
            let shown = path.display();
            return if can_run(&path) {
                Ok(())
            } else if path.is_file() {
                wrong(
                    format!("{shown} is not executable"),
                    format!("permit it: chmod +x {shown}"),
                )
            } else {
                wrong(
                    format!("there is no program {shown}"),
                    "correct the path; relative paths start from the working directory".to_owned(),
                )
            };
        }
        let folders = std::env::var_os("PATH").unwrap_or_default();
        if std::env::split_paths(&folders).any(|folder| can_run(&folder.join(name))) {
            return Ok(());
        }
        let shown = name.display();
        wrong(
            format!("there is no program `{shown}` in the directories of PATH"),
            format!("install it, or write a path such as \"./{shown}\""),
        )
    }

    /// Checks whether this process may write the file `path`, or create files in the directory `path`.
    fn check_writable(&self, path: &Path) -> Result<(), Problem> {
        let shown = path.display();
        let is_virtual = statfs(path).is_ok_and(|found| VIRTUAL.contains(&found.f_type));
        if is_virtual {
            let message = format!(
                "{shown} is a virtual file system of Linux, which cannot contain data files"
            );
            let help = format!("choose a `{}` on a disk", self.key);
            return Err(Problem::at(&self.key, message).help(help));
        }
        let access = if path.is_dir() {
            Access::WRITE_OK | Access::EXEC_OK
        } else {
            Access::WRITE_OK
        };
        let (message, help) = match accessat(CWD, path, access, AtFlags::EACCESS) {
            Err(Errno::ROFS) => (
                format!("{shown} is on a read-only file system"),
                format!("remount it, or choose another `{}`", self.key),
            ),
            Err(Errno::ACCESS | Errno::PERM) => (
                format!("cannot write to {shown}: permission denied"),
                format!(
                    "choose another `{}`, permit it (ls -ld {shown}), or check as the user that runs daq",
                    self.key
                ),
            ),
            // Other errors, such as those of a network file system, are not final.
            Err(_) | Ok(()) => return Ok(()),
        };
        Err(Problem::at(&self.key, message).help(help))
    }
}

/// Whether `text` is a valid URL scheme, the part before `://`.
fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

/// Parameters for checking a kernel's code.
#[derive(Clone, Copy, Debug)]
pub struct CheckContext<'a> {
    /// The base directory of relative paths.
    pub directory: &'a Path,
    /// How bursts will be submitted to the kernel.
    pub dispatch: Dispatch,
    /// The layout of the kernel's input; `None` if the configuration has errors, so that the layout is not known.
    pub input: Option<&'a Layout>,
}

/// Errors in a file that the configuration refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFindings {
    /// The file's name in messages.
    pub name: String,
    /// The file's text.
    pub text: String,
    /// The errors, whose spans are relative to the start of `text`.
    pub diagnostics: Vec<Diagnostic>,
}

/// Result of checking a component's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Problems with values of the component's section.
    pub problems: Vec<Problem>,
    /// Errors in files.
    pub files: Vec<FileFindings>,
    /// Checks that were skipped, each with the reason.
    pub unchecked: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(result: Result<(), Problem>) -> String {
        result
            .err()
            .map_or_else(String::new, |problem| problem.to_string())
    }

    #[test]
    fn fifos_and_devices_are_rejected_without_opening_them() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo.npy");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for purpose in [FileUse::Reads, FileUse::ReadsAny] {
            for name in ["fifo.npy", "/dev/null"] {
                let error = output(NamedFile::new("weights", name, purpose).check_file(dir.path()));
                assert!(error.contains("not a regular file"), "{error}");
            }
        }
    }

    #[test]
    fn url_as_path_is_rejected() {
        let name =
            |path: &str| output(NamedFile::new("path", path, FileUse::WritesInto).check_name());
        for path in [
            "out",
            "/data/out",
            "a:b/c",
            "C:/x",
            "://x",
            "1://x",
            "a b://c",
        ] {
            assert_eq!(name(path), "", "{path}");
        }
        assert_eq!(
            name("s3://bucket/x"),
            "`path`: s3://bucket/x is a URL, not a path; write the path of a local file or directory; remote storage must \
             be mounted first"
        );
        assert!(name("file:///data/x").ends_with("write only the path: \"/data/x\""));
    }

    #[test]
    fn impossible_file_names_are_rejected() {
        let file = |path: &str| NamedFile::new("path", path, FileUse::WritesInto);
        let long = "n".repeat(255);
        assert_eq!(output(file(&format!("out/{long}")).check_name()), "");
        let longer = output(file(&format!("{long}ä/out")).check_name());
        assert!(longer.contains("257 bytes, but at most 255"), "{longer}");
        let deep = format!("{}out", "directory/".repeat(384));
        assert_eq!(output(file(&deep).check_name()), "");
        let refused = output(file(&deep).check_file(Path::new("/")));
        assert!(refused.contains("at most 3839"), "{refused}");
    }

    #[test]
    fn directories_that_cannot_be_written_are_reported() {
        let file = |path: &str, purpose| {
            output(NamedFile::new("path", path, purpose).check_file(Path::new("/")))
        };
        for (path, purpose) in [
            ("/proc/daq/out", FileUse::WritesInto),
            ("/sys/out", FileUse::WritesInto),
            ("/proc/out", FileUse::Writes),
        ] {
            let refused = file(path, purpose);
            assert!(refused.contains("virtual file system"), "{path}: {refused}");
        }
        assert_eq!(file("/dev/null", FileUse::Writes), "");
        let directory = tempfile::tempdir().unwrap();
        let closed = directory.path().join("closed");
        std::fs::create_dir(&closed).unwrap();
        let read_only = std::os::unix::fs::PermissionsExt::from_mode(0o555);
        std::fs::set_permissions(&closed, read_only).unwrap();
        if rustix::process::geteuid().is_root() {
            // root may write everywhere.
            return;
        }
        let closed = closed.join("new/out").display().to_string();
        let refused = file(&closed, FileUse::WritesInto);
        assert!(refused.contains("closed: permission denied"), "{refused}");
        let refused = file(&closed.replace("/new/out", "/file"), FileUse::Writes);
        assert!(refused.contains("closed: permission denied"), "{refused}");
    }

    #[test]
    fn missing_and_unusable_files_are_named() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a.pcap"), "").unwrap();
        let file = |path: &str, purpose| {
            output(NamedFile::new("path", path, purpose).check_file(directory.path()))
        };
        for purpose in [FileUse::Reads, FileUse::ReadsAny] {
            assert_eq!(file("a.pcap", purpose), "");
            let missing = file("b.pcap", purpose);
            assert!(
                missing.contains("b.pcap does not exist") && missing.contains("working directory"),
                "{missing}"
            );
        }
        assert!(file(".", FileUse::Reads).contains("is a directory"));
        assert_eq!(file(".", FileUse::ReadsAny), "");
        assert_eq!(file("new/deep", FileUse::WritesInto), "");
        assert_eq!(file("new", FileUse::Writes), "");
        assert_eq!(file("a.pcap", FileUse::Writes), "");
        assert!(file(".", FileUse::Writes).contains("is a directory, not a file"));
        assert!(file("new/deep", FileUse::Writes).contains("create it: mkdir -p "));
        assert!(
            file("a.pcap/out", FileUse::WritesInto).contains("a.pcap is a file, not a directory")
        );
    }

    #[test]
    fn programs_are_searched_and_must_be_executable() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let check = |name: &str| {
            output(NamedFile::new("command", name, FileUse::Runs).check_file(directory.path()))
        };
        assert_eq!(check("sh"), "");
        assert!(check("no-such-program-of-daq").contains("directories of PATH"));
        assert!(check("./start").contains("there is no program"));
        let path = directory.path().join("start");
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(check("./start").contains("not executable"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(check("./start"), "");
        assert_eq!(check(path.to_str().unwrap()), "");
    }

    #[test]
    fn content_of_file_is_checked() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("table"), "junk").unwrap();
        let check: ContentCheck = Arc::new(|bytes| match bytes {
            b"junk" => Err("the file is junk: write another".to_owned()),
            _ => Ok(()),
        });
        let file = NamedFile::new("table", "table", FileUse::Reads).with_content(check);
        let problem = file.check_file(directory.path()).unwrap_err();
        assert!(
            problem.message.ends_with("table: the file is junk"),
            "{problem}"
        );
        assert_eq!(problem.help.as_deref(), Some("write another"));
        std::fs::write(directory.path().join("table"), "good").unwrap();
        assert_eq!(file.check_file(directory.path()), Ok(()));
    }
}
