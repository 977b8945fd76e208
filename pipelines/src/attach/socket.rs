//! The Unix socket: its path, its permissions, and packets with file descriptors.

use super::AttachError;
use daq_sinks::lock::{LockError, StemLock};
use rustix::cmsg_space;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::fs::DirBuilder;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Maximum size of a packet in bytes.
pub(crate) const MAX_PACKET: usize = 65536;
/// End of the names of socket files.
const SUFFIX: &str = ".attach";
/// Maximum length of a socket's path in bytes (`sun_path` without the final zero).
const MAX_PATH: usize = 107;
/// Number of connections that wait to be accepted.
const BACKLOG: i32 = 256;

/// Returns the directories that can contain sockets: the state directory, and `daq` in `$XDG_RUNTIME_DIR`.
pub fn directories(state: Option<&Path>) -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty());
    let runtime = runtime.map(|path| PathBuf::from(path).join("daq"));
    state
        .map(Path::to_owned)
        .into_iter()
        .chain(runtime)
        .collect()
}

/// Returns the sockets in `directories`, sorted by path, each once.
pub fn sockets(directories: &[PathBuf]) -> Vec<PathBuf> {
    let entries = directories.iter().filter_map(|path| path.read_dir().ok());
    let entries = entries.flatten().filter_map(Result::ok);
    let sockets = entries.filter(|entry| {
        let is_named = entry.file_name().as_bytes().ends_with(SUFFIX.as_bytes());
        is_named && entry.file_type().is_ok_and(|kind| kind.is_socket())
    });
    let mut paths: Vec<_> = sockets.map(|entry| entry.path()).collect();
    paths.sort();
    paths.dedup();
    paths
}

/// Returns the path of the socket of `pipeline`: in the first of `directories` in which the path is not too long.
pub(super) fn path(directories: &[PathBuf], pipeline: &str) -> Result<PathBuf, AttachError> {
    let paths = directories
        .iter()
        .map(|directory| directory.join(format!("{pipeline}{SUFFIX}")));
    let mut too_long = None;
    for path in paths {
        if path.as_os_str().len() <= MAX_PATH {
            return Ok(path);
        }
        too_long = Some(path);
    }
    Err(match too_long {
        Some(path) => AttachError::PathTooLong { path },
        None => AttachError::NoDirectory,
    })
}

/// The file of a socket, which is removed when this value is dropped.
///
/// While this value exists, the process holds a lock, so that no other process creates or removes a socket at this path.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode of the file.
    identity: Option<(u64, u64)>,
    #[expect(dead_code, reason = "released after the file was removed")]
    lock: StemLock,
}

impl SocketFile {
    fn new(path: &Path, lock: StemLock) -> Self {
        Self {
            path: path.to_owned(),
            identity: identity(path),
            lock,
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // If a user has removed the file, the path can name the file of another process.
        if self.identity.is_some() && identity(&self.path) == self.identity {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns device and inode of a file; `None` if the file does not exist.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = path.symlink_metadata().ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// Obtains the right to create a socket at `path`, whose directory must exist.
fn lock(path: &Path) -> Result<StemLock, AttachError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    StemLock::take(path.parent().unwrap_or(path), &name).map_err(|error| match error {
        LockError::Held { .. } => AttachError::InUse {
            path: path.to_owned(),
        },
        error => AttachError::Lock(error),
    })
}

/// Creates the listening socket at `path`, to which members of `group` may connect too. Replaces the file of a daemon that
/// was killed.
pub(super) fn listen(
    path: &Path,
    group: Option<&Group>,
) -> Result<(OwnedFd, SocketFile), AttachError> {
    let fail = |source: Errno| AttachError::Socket {
        path: path.to_owned(),
        source: source.into(),
    };
    if let Some(directory) = path.parent() {
        // The directory in `$XDG_RUNTIME_DIR` does not exist yet.
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory);
        made.map_err(|source| AttachError::Socket {
            path: path.to_owned(),
            source,
        })?;
    }
    // Two daemons that start at the same time must not remove each other's file.
    let lock = lock(path)?;
    let address = SocketAddrUnix::new(path).map_err(fail)?;
    match connect_to(&address, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Err(Errno::NOENT) => {}
        // The process that created the file has ended.
        Err(Errno::CONNREFUSED) => rustix::fs::unlink(path).map_err(fail)?,
        Ok(_) | Err(Errno::AGAIN | Errno::ACCESS) => {
            return Err(AttachError::InUse {
                path: path.to_owned(),
            });
        }
        Err(error) => return Err(fail(error)),
    }
    let socket = new_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).map_err(fail)?;
    rustix::net::bind(&socket, &address).map_err(fail)?;
    let file = SocketFile::new(path, lock);
    // No process can connect before `listen`, so no process connects while the mode is more permissive.
    let mut mode = Mode::RUSR | Mode::WUSR;
    if let Some(group) = group {
        group.own(path)?;
        mode |= Mode::RGRP | Mode::WGRP;
    }
    rustix::fs::chmod(path, mode).map_err(fail)?;
    rustix::net::listen(&socket, BACKLOG).map_err(fail)?;
    Ok((socket, file))
}

fn new_socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn connect_to(address: &SocketAddrUnix, flags: SocketFlags) -> Result<OwnedFd, Errno> {
    let socket = new_socket(flags)?;
    rustix::net::connect(&socket, address)?;
    Ok(socket)
}

/// Connects to the socket at `path`. The returned socket blocks.
pub(super) fn connect(path: &Path) -> Result<OwnedFd, Errno> {
    connect_to(&SocketAddrUnix::new(path)?, SocketFlags::CLOEXEC)
}

/// A group whose members may attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    name: String,
    number: u32,
}

impl Group {
    /// Finds the group `name`.
    pub(super) fn find(name: &str) -> Result<Self, AttachError> {
        let fail = |why: String| AttachError::Group {
            name: name.to_owned(),
            why,
        };
        match crate::sys::group::number(name) {
            Ok(Some(number)) => Ok(Self {
                name: name.to_owned(),
                number,
            }),
            Ok(None) => Err(fail(format!(
                "this machine has no such group; create it: sudo groupadd --system {name}"
            ))),
            Err(error) => Err(fail(error.to_string())),
        }
    }

    /// Gives the file `path` to the group. Logs a warning if the group cannot enter the directory.
    fn own(&self, path: &Path) -> Result<(), AttachError> {
        // A service whose group this is may not call `chown`, and need not.
        let is_owner = path
            .metadata()
            .is_ok_and(|metadata| metadata.gid() == self.number);
        let group = rustix::fs::Gid::from_raw(self.number);
        if !is_owner && let Err(error) = rustix::fs::chown(path, None, Some(group)) {
            return Err(AttachError::Group {
                name: self.name.clone(),
                why: format!(
                    "cannot give {} to the group: {error}; add the user who runs the pipeline to the group, or set Group={} \
                     in the unit",
                    path.display(),
                    self.name
                ),
            });
        }
        let closed = path
            .ancestors()
            .skip(1)
            .find(|directory| !self.can_enter(directory));
        if let Some(directory) = closed {
            tracing::warn!(
                "attach: group {0} cannot enter {1}, so its members cannot attach; run: chgrp {0} {1} && chmod g+x {1}; or use \
                 another directory: --state-dir",
                self.name,
                directory.display(),
            );
        }
        Ok(())
    }

    /// Returns whether members of the group can enter `directory`, or whether this is unknown.
    fn can_enter(&self, directory: &Path) -> bool {
        directory.metadata().map_or(true, |metadata| {
            metadata.mode() & 0o001 != 0
                || (metadata.gid() == self.number && metadata.mode() & 0o010 != 0)
        })
    }

    /// Returns whether a process with these groups is a member.
    fn has(&self, primary: u32, others: &[u32]) -> bool {
        self.number == primary || others.contains(&self.number)
    }
}

/// Returns whether a process of `user` may attach to a pipeline that runs as `owner`. `is_member` is called for other users.
fn may_attach(user: u32, owner: u32, is_member: impl FnOnce() -> bool) -> bool {
    user == 0 || user == owner || is_member()
}

/// A process at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    /// The process ID; 0 if the process is in another PID namespace.
    pub(super) process: u32,
    /// The name of the program.
    pub(super) program: String,
}

/// Returns the process that has connected, if it may attach: it has the user of this process or of root, or is a member of
/// `group`. Otherwise returns its user.
pub(super) fn peer(socket: impl AsFd, group: Option<&Group>) -> Result<Peer, u32> {
    let socket = socket.as_fd();
    let credentials = crate::sys::peer::credentials(socket);
    let (process, user, primary) = credentials.unwrap_or((0, u32::MAX, u32::MAX));
    let is_member = || {
        group.is_some_and(|group| {
            group.has(
                primary,
                &crate::sys::peer::groups(socket).unwrap_or_default(),
            )
        })
    };
    if !may_attach(user, rustix::process::geteuid().as_raw(), is_member) {
        return Err(user);
    }
    let program = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    let program: String = program
        .trim_end()
        .chars()
        .map(|letter| match letter {
            '[' | ']' => '_',
            letter if letter.is_control() => '_',
            letter => letter,
        })
        .collect();
    let program = if program.is_empty() {
        "process".to_owned()
    } else {
        program
    };
    Ok(Peer { process, program })
}

/// A packet that was received.
#[derive(Debug)]
pub(super) struct Received {
    /// Number of bytes; 0 if the other end has closed the connection.
    pub(super) length: usize,
    /// Whether the packet is longer than the buffer.
    pub(super) is_truncated: bool,
    /// Descriptors that came with the packet; further ones were closed.
    pub(super) files: Vec<OwnedFd>,
}

/// Receives a packet into `buffer`.
pub(super) fn receive(socket: impl AsFd, buffer: &mut [u8]) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let message = loop {
        match rustix::net::recvmsg(&socket, &mut parts, &mut control, flags) {
            Err(Errno::INTR) => {}
            result => break result?,
        }
    };
    let mut files = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = part {
            files.extend(descriptors);
        }
    }
    Ok(Received {
        length: message.bytes,
        is_truncated: message.flags.contains(ReturnFlags::TRUNC),
        files,
    })
}

/// Sends a packet with descriptors, at most 2. Does not wait if `waits` is false.
pub(super) fn send(
    socket: impl AsFd,
    packet: &[u8],
    files: &[BorrowedFd<'_>],
    waits: bool,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(Errno::INVAL);
    }
    let mut flags = SendFlags::NOSIGNAL;
    if !waits {
        flags |= SendFlags::DONTWAIT;
    }
    loop {
        match rustix::net::sendmsg(&socket, &[IoSlice::new(packet)], &mut control, flags) {
            Err(Errno::INTR) => {}
            result => return result.map(|_| ()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_of_killed_daemon_is_replaced_and_live_one_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = path(&[directory.path().to_owned()], "telescope").unwrap();
        let (socket, file) = listen(&path, None).unwrap();
        let error = listen(&path, None).unwrap_err();
        assert!(matches!(error, AttachError::InUse { .. }), "{error}");
        // A killed process leaves its file behind, but not its lock.
        drop(socket);
        let killed = directory.path().join("killed");
        std::fs::rename(&path, &killed).unwrap();
        drop(file);
        std::fs::rename(&killed, &path).unwrap();
        let (_socket, replaced) = listen(&path, None).unwrap();
        assert_eq!(sockets(&[directory.path().to_owned()]), [&*path]);
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(replaced);
        assert!(!path.exists());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn socket_of_another_process_is_not_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("telescope.attach");
        let (_socket, file) = listen(&path, None).unwrap();
        std::fs::remove_file(&path).unwrap();
        let other = new_socket(SocketFlags::CLOEXEC).unwrap();
        rustix::net::bind(&other, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        drop(file);
        assert!(path.exists());
    }

    #[test]
    fn one_of_several_daemons_that_start_together_creates_the_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("telescope.attach");
        for round in 0..50 {
            if round % 2 == 1 {
                // The file of a killed process.
                let killed = new_socket(SocketFlags::CLOEXEC).unwrap();
                rustix::net::bind(&killed, &SocketAddrUnix::new(&path).unwrap()).unwrap();
            }
            let barrier = std::sync::Barrier::new(4);
            let start = || {
                barrier.wait();
                listen(&path, None)
            };
            let created: Vec<_> = std::thread::scope(|scope| {
                let threads = [(); 4].map(|()| scope.spawn(start));
                threads.map(|thread| thread.join().unwrap()).into()
            });
            for error in created.iter().filter_map(|result| result.as_ref().err()) {
                assert!(matches!(error, AttachError::InUse { .. }), "{error}");
            }
            assert_eq!(created.iter().filter(|result| result.is_ok()).count(), 1);
            connect(&path).unwrap();
            drop(created);
            assert!(!path.exists());
        }
    }

    #[test]
    fn long_paths_use_the_next_directory() {
        let long = PathBuf::from("/").join("x".repeat(100));
        let short = PathBuf::from("/run/user/1000/daq");
        let found = path(&[long.clone(), short.clone()], "telescope").unwrap();
        assert_eq!(found, short.join("telescope.attach"));
        let error = path(&[long], "telescope").unwrap_err();
        assert!(matches!(error, AttachError::PathTooLong { .. }), "{error}");
        let error = path(&[], "telescope").unwrap_err();
        assert!(matches!(error, AttachError::NoDirectory), "{error}");
    }

    #[test]
    fn packets_carry_descriptors() {
        let (left, right) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        send(&left, b"hello", &[left.as_fd(), right.as_fd()], true).unwrap();
        let mut buffer = [0; 3];
        let received = receive(&right, &mut buffer).unwrap();
        assert_eq!((received.length, received.is_truncated), (3, true));
        assert_eq!(received.files.len(), 2);
        drop(received);
        drop(left);
        assert_eq!(receive(&right, &mut buffer).unwrap().length, 0);
    }

    #[test]
    fn members_of_a_group_can_attach() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("telescope.attach");
        assert!(matches!(
            Group::find("no such group"),
            Err(AttachError::Group { .. })
        ));
        let group = Group {
            name: "own".to_owned(),
            number: rustix::process::getegid().as_raw(),
        };
        let (socket, _file) = listen(&path, Some(&group)).unwrap();
        let metadata = std::fs::metadata(&path).unwrap();
        assert_eq!(
            (metadata.mode() & 0o777, metadata.gid()),
            (0o660, group.number)
        );
        let client = connect(&path).unwrap();
        let accepted = rustix::net::accept(&socket).unwrap();
        assert!(peer(&accepted, Some(&group)).is_ok());
        let own = crate::sys::peer::groups(client.as_fd()).unwrap();
        let all = rustix::process::getgroups().unwrap();
        let all: Vec<_> = all.iter().map(|group| group.as_raw()).collect();
        assert_eq!(own, all);
    }

    #[test]
    fn other_users_can_attach_only_as_members() {
        let group = Group {
            name: "daq".to_owned(),
            number: 990,
        };
        let allowed =
            |user, primary, others: &[u32]| may_attach(user, 1000, || group.has(primary, others));
        assert!(allowed(0, 0, &[]) && allowed(1000, 1000, &[]));
        assert!(allowed(1001, 990, &[]) && allowed(1001, 1001, &[27, 990]));
        assert!(!allowed(1001, 1001, &[27, 1000]));
        // A process in another user namespace has an unknown user.
        assert!(!may_attach(u32::MAX, 1000, || false));
    }

    #[test]
    fn every_directory_must_let_members_in() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        let set = |path: &Path, mode| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(path, mode).unwrap();
        };
        set(&inner, 0o710);
        let group = |number| Group {
            name: "daq".to_owned(),
            number,
        };
        let own = std::fs::metadata(&inner).unwrap().gid();
        assert!(group(own).can_enter(&inner) && !group(own + 1).can_enter(&inner));
        set(&inner, 0o701);
        assert!(group(own + 1).can_enter(&inner));
        set(&inner, 0o700);
        assert!(!group(own).can_enter(&inner));
    }
}
