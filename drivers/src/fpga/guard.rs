//! The guard: a small process that outlives a killed daemon and stops its device.
//!
//! ```text
//!   daemon ── descriptors of device, container, GPU; each mapping before it is made ──▶ guard (asleep)
//!     │ SIGKILL                                                                            │ connection closed
//!     ▼                                                                                    ▼
//!   host memory freed ── the guard keeps the GPU memory ── bus mastering off, reset, unmap, close
//! ```
//! Linux does not pin the memory of another device that is mapped for DMA. If the GPU memory were freed while the device
//! still writes, the device would overwrite its next user. The descriptors in the guard keep that memory allocated.
//!
//! The guard is this program, started with the hidden command [`COMMAND`]. Its standard input is the connection.

use super::device::DeviceError;
use crate::sys::vfio as sys;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sockopt,
};
use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The hidden command that starts the guard.
pub const COMMAND: &str = "fpga-guard";

/// Version of the protocol. It detects a program file that was replaced while the daemon runs.
const VERSION: u64 = 1;
/// Maximum number of descriptors that Linux passes with a message.
const MAX_DESCRIPTORS: usize = 253;
/// Timeout for a reply of the guard. The guard only handles messages, so a timeout means that the guard process does not run.
const TIMEOUT: Duration = Duration::from_mins(1);
/// Size of a message in bytes: its type and three numbers.
const MESSAGE_BYTES: usize = 32;
/// Maximum bytes of a reply: a copy of the message, or the reason of a refusal.
const MAX_REPLY_BYTES: usize = 256;
/// `PCI_COMMAND` in a configuration space, and its bit that lets the device write and read memory.
pub(super) const PCI_COMMAND: u64 = 4;
pub(super) const BUS_MASTER: u16 = 1 << 2;

/// A message from the daemon to the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    /// The first message, with the descriptors of the container and the device. `config` is the offset of the
    /// configuration space in the device descriptor.
    Open { version: u64, config: u64 },
    /// Descriptors that belong to the next [`Message::Map`].
    Descriptors,
    /// The daemon is about to map memory.
    Map { address: u64, bytes: u64 },
    /// The mapping no longer exists.
    Unmap { address: u64 },
    /// The device is stopped, and the guard can exit.
    Finish,
}

impl Message {
    fn bytes(self) -> [u8; MESSAGE_BYTES] {
        let numbers = match self {
            Self::Open { version, config } => [1, version, config, 0],
            Self::Descriptors => [2, 0, 0, 0],
            Self::Map { address, bytes } => [3, address, bytes, 0],
            Self::Unmap { address } => [4, address, 0, 0],
            Self::Finish => [5, 0, 0, 0],
        };
        let mut message = [0; MESSAGE_BYTES];
        for (place, number) in message.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_ne_bytes());
        }
        message
    }

    fn read(message: [u8; MESSAGE_BYTES]) -> Option<Self> {
        let mut numbers = [0; 4];
        for (number, place) in numbers.iter_mut().zip(message.as_chunks().0) {
            *number = u64::from_ne_bytes(*place);
        }
        Some(match numbers {
            [1, version, config, _] => Self::Open { version, config },
            [2, ..] => Self::Descriptors,
            [3, address, bytes, _] => Self::Map { address, bytes },
            [4, address, ..] => Self::Unmap { address },
            [5, ..] => Self::Finish,
            _ => return None,
        })
    }
}

/// Error: the guard did not accept a message.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// The guard replied with a reason.
    #[error("refused: {0}")]
    Refused(String),
    /// The reply did not arrive, so the state of the guard is unknown. No more messages are sent, because a late reply
    /// would be mistaken for the reply to another message.
    #[error("{0}")]
    Lost(io::Error),
}

impl From<Errno> for GuardError {
    fn from(errno: Errno) -> Self {
        Self::Lost(errno.into())
    }
}

/// The daemon's connection to the guard process.
#[derive(Debug)]
pub struct DeviceGuard {
    socket: OwnedFd,
    child: Child,
    /// True if a reply did not arrive.
    is_lost: bool,
}

impl DeviceGuard {
    /// Starts the guard of the device `name`, whose configuration space is at offset `config` of its descriptor.
    ///
    /// `program` is the executable to run with [`COMMAND`].
    pub fn start(
        program: &Path,
        name: &str,
        container: BorrowedFd<'_>,
        device: BorrowedFd<'_>,
        config: u64,
    ) -> Result<Self, DeviceError> {
        let cannot = |why: String| {
            DeviceError::new(
                name,
                format!(
                    "cannot start the process that stops the device if daq is killed: {why}; without it the device could \
                     keep writing to freed memory. Check that `{} {COMMAND}` runs the same version of daq",
                    program.display()
                ),
            )
        };
        let (ours, theirs) = connection()
            .map_err(|error| cannot(format!("cannot create a socket pair: {error}")))?;
        let child = Command::new(program)
            .arg0("daq")
            .args([COMMAND, name])
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| cannot(error.to_string()))?;
        let mut guard = Self {
            socket: ours,
            child,
            is_lost: false,
        };
        let take = Message::Open {
            version: VERSION,
            config,
        };
        match guard.request(take, &[container, device]) {
            Ok(()) => Ok(guard),
            Err(error) => {
                // The guard has no descriptors yet, or the program is not a guard.
                let _ = guard.child.kill();
                let _ = guard.child.wait();
                Err(cannot(error.to_string()))
            }
        }
    }

    /// Reports a mapping to the guard before the mapping is made. The guard keeps the descriptors `held` open until the memory
    /// is unmapped.
    pub fn map(&mut self, address: u64, bytes: u64, held: &[OwnedFd]) -> Result<(), GuardError> {
        self.unless_lost(|socket| request_map(socket, address, bytes, held))
    }

    /// Reports to the guard that a mapping was removed.
    pub fn unmap(&mut self, address: u64) -> Result<(), GuardError> {
        self.request(Message::Unmap { address }, &[])
    }

    /// Ends the guard after the device was stopped.
    pub fn finish(mut self) -> Result<(), GuardError> {
        self.request(Message::Finish, &[])?;
        self.child.wait().map_err(GuardError::Lost)?;
        Ok(())
    }

    /// Returns the process ID of the guard.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn request(&mut self, message: Message, fds: &[BorrowedFd<'_>]) -> Result<(), GuardError> {
        self.unless_lost(|socket| request(socket, message, fds))
    }

    /// Sends a message, unless an earlier reply did not arrive.
    fn unless_lost(
        &mut self,
        request: impl FnOnce(&OwnedFd) -> Result<(), GuardError>,
    ) -> Result<(), GuardError> {
        if self.is_lost {
            let why = "an earlier reply of the guard process did not arrive; stop daq and check whether the process still runs";
            return Err(GuardError::Lost(io::Error::other(why)));
        }
        let result = request(&self.socket);
        self.is_lost = matches!(result, Err(GuardError::Lost(_)));
        result
    }
}

/// Creates a connected pair of sockets that preserve message boundaries.
fn connection() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    sockopt::set_socket_timeout(&ours, sockopt::Timeout::Recv, Some(TIMEOUT))?;
    Ok((ours, theirs))
}

/// Reports a mapping to the guard, with the file descriptors that keep its memory allocated. Splits the descriptors over
/// several messages if necessary.
fn request_map(
    socket: &OwnedFd,
    address: u64,
    bytes: u64,
    held: &[OwnedFd],
) -> Result<(), GuardError> {
    for some in held.chunks(MAX_DESCRIPTORS) {
        let some: Vec<_> = some.iter().map(AsFd::as_fd).collect();
        request(socket, Message::Descriptors, &some)?;
    }
    request(socket, Message::Map { address, bytes }, &[])
}

/// Sends a message with descriptors and waits for the reply.
fn request(socket: &OwnedFd, message: Message, fds: &[BorrowedFd<'_>]) -> Result<(), GuardError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(GuardError::Refused(format!(
            "a message cannot carry {} file descriptors",
            fds.len()
        )));
    }
    let message = message.bytes();
    // Linux does not restart a call with a timeout after a signal.
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(
            socket,
            &[IoSlice::new(&message)],
            &mut control,
            SendFlags::NOSIGNAL,
        )
    })?;
    let mut reply = [0; MAX_REPLY_BYTES];
    let (bytes, _) =
        rustix::io::retry_on_intr(|| rustix::net::recv(socket, &mut reply, RecvFlags::empty()))?;
    match bytes {
        0 => Err(GuardError::Lost(io::Error::other(
            "the guard process exited",
        ))),
        MESSAGE_BYTES if reply[..MESSAGE_BYTES] == message => Ok(()),
        _ => {
            let why = String::from_utf8_lossy(&reply[..bytes]);
            Err(GuardError::Refused(why.into_owned()))
        }
    }
}

/// The actions of the guard on its device. This is a trait so that the protocol can be tested without a device.
trait GuardedDevice {
    /// Stops all DMA and removes the mappings. Returns the failures.
    fn disable_and_reset(&mut self, maps: &BTreeMap<u64, Map>) -> Vec<String>;
}

/// A mapping that the daemon reported.
#[derive(Debug)]
struct Map {
    bytes: u64,
    /// The descriptors that keep the memory allocated.
    _descriptors: Vec<OwnedFd>,
}

/// The reason why the guard ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The daemon sent [`Message::Finish`].
    Finished,
    /// The daemon died. Contains the number of its mappings and the failures of the cleanup.
    Orphaned(usize, Vec<String>),
}

/// Handles messages from `socket` until the daemon finishes. If the connection closes first, stops the device: disables
/// bus mastering and resets it. `open` creates the device from the two file descriptors of the `Open` message.
fn serve<H: GuardedDevice>(
    socket: BorrowedFd<'_>,
    open: impl FnOnce(OwnedFd, OwnedFd, u64) -> H,
) -> Result<End, String> {
    let mut open = Some(open);
    let mut device = None;
    let mut maps = BTreeMap::new();
    let mut next = Vec::new();
    loop {
        let (message, mut fds) = match receive(socket) {
            Ok(Some(message)) => message,
            Ok(None) => {
                return match device {
                    None => Err("the connection was closed before the first message".to_owned()),
                    Some(mut device) => {
                        let failed = GuardedDevice::disable_and_reset(&mut device, &maps);
                        Ok(End::Orphaned(maps.len(), failed))
                    }
                };
            }
            Err(refusal) => {
                reply(socket, refusal.as_bytes());
                continue;
            }
        };
        let refusal = match (message, fds.len()) {
            (Message::Open { version, .. }, _) if version != VERSION => {
                Some(format!("protocol version is {version}, expected {VERSION}"))
            }
            (Message::Open { config, .. }, 2) => match (open.take(), fds.pop(), fds.pop()) {
                (Some(open), Some(second), Some(first)) => {
                    device = Some(open(first, second, config));
                    None
                }
                _ => Some("the guard already has a device".to_owned()),
            },
            (Message::Descriptors, _) => {
                next.append(&mut fds);
                None
            }
            (Message::Map { address, bytes }, 0) => {
                let map = Map {
                    bytes,
                    _descriptors: std::mem::take(&mut next),
                };
                maps.insert(address, map);
                None
            }
            (Message::Unmap { address }, 0) => {
                maps.remove(&address);
                None
            }
            (Message::Finish, 0) => {
                // Closes the descriptors before the reply, so that the daemon can rely on it.
                drop((device, maps, next));
                reply(socket, &message.bytes());
                return Ok(End::Finished);
            }
            (message, count) => Some(format!(
                "unexpected message {message:?} with {count} file descriptors"
            )),
        };
        match refusal {
            None => reply(socket, &message.bytes()),
            Some(refusal) => reply(socket, refusal.as_bytes()),
        }
    }
}

/// Receives the next message with its descriptors. Returns `None` if the connection is closed.
fn receive(socket: BorrowedFd<'_>) -> Result<Option<(Message, Vec<OwnedFd>)>, String> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut message = [0; MESSAGE_BYTES];
    let received = loop {
        let mut parts = [IoSliceMut::new(&mut message)];
        match rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            // A failed connection is treated as closed.
            Err(_) => return Ok(None),
            Ok(received) => break received,
        }
    };
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = part {
            fds.extend(some);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(
            "out of file descriptors; raise LimitNOFILE= in the systemd unit, or ulimit -n"
                .to_owned(),
        );
    }
    match Message::read(message) {
        Some(message) if received.bytes == MESSAGE_BYTES => Ok(Some((message, fds))),
        _ => Err(format!("invalid message of {} bytes", received.bytes)),
    }
}

fn reply(socket: BorrowedFd<'_>, bytes: &[u8]) {
    // If the connection is closed, the next receive reports it.
    let _ = rustix::net::send(
        socket,
        &bytes[..bytes.len().min(MAX_REPLY_BYTES)],
        SendFlags::NOSIGNAL,
    );
}

/// A device in a VFIO container.
struct VfioGuarded {
    container: OwnedFd,
    device: OwnedFd,
    config: u64,
}

impl GuardedDevice for VfioGuarded {
    fn disable_and_reset(&mut self, maps: &BTreeMap<u64, Map>) -> Vec<String> {
        let mut failed = Vec::new();
        if let Err(error) = disable_and_reset(self.device.as_fd(), self.config) {
            failed.push(error);
        }
        for (address, map) in maps {
            if let Err(error) = sys::unmap(self.container.as_fd(), *address, map.bytes) {
                failed.push(format!(
                    "cannot unmap {:#x} bytes at {address:#x}: {error}",
                    map.bytes
                ));
            }
        }
        failed
    }
}

/// Disables bus mastering, resets the device if Linux can reset it, and keeps bus mastering disabled.
pub(super) fn disable_and_reset(device: BorrowedFd<'_>, config: u64) -> Result<(), String> {
    let failed = |error: io::Error| format!("cannot disable bus mastering: {error}");
    set_bus_master(device, config, false).map_err(failed)?;
    match sys::can_reset(device) {
        Ok(true) => {
            sys::reset(device).map_err(|error| format!("reset: {error}"))?;
            // The reset restores the configuration space, and with it bus mastering.
            set_bus_master(device, config, false).map_err(failed)
        }
        // Without bus mastering no write leaves the device.
        Ok(false) => Ok(()),
        Err(error) => Err(format!("cannot read the device information: {error}")),
    }
}

/// Sets or clears the bus-master bit. The read-back also waits until all writes from the device have arrived.
pub(super) fn set_bus_master(device: BorrowedFd<'_>, config: u64, on: bool) -> io::Result<()> {
    let command = read_config(device, config + PCI_COMMAND)?;
    if command == u16::MAX {
        return Err(io::Error::from(Errno::NODEV));
    }
    let wanted = if on {
        command | BUS_MASTER
    } else {
        command & !BUS_MASTER
    };
    rustix::io::pwrite(device, &wanted.to_le_bytes(), config + PCI_COMMAND)?;
    let is = read_config(device, config + PCI_COMMAND)?;
    if is & BUS_MASTER != wanted & BUS_MASTER {
        return Err(io::Error::other(format!(
            "the PCI command register reads {is:#06x} after {wanted:#06x} was written"
        )));
    }
    Ok(())
}

/// Reads 16 bits of the configuration space.
pub(super) fn read_config(device: BorrowedFd<'_>, offset: u64) -> io::Result<u16> {
    let mut bytes = [0; 2];
    match rustix::io::pread(device, &mut bytes, offset)? {
        2 => Ok(u16::from_le_bytes(bytes)),
        n => Err(io::Error::other(format!(
            "read only {n} of 2 bytes of the configuration space"
        ))),
    }
}

/// Runs the guard process of the device `name` and returns the exit code.
pub fn main(name: &str) -> u8 {
    sys::ignore_signals();
    // Detaches from the terminal. Fails if the process is detached already.
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"daq-fpga-guard");
    // If memory runs out, Linux must kill the daemon first. Without the permission, the default applies.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    let socket = io::stdin();
    let end = serve(socket.as_fd(), |container, device, config| VfioGuarded {
        container,
        device,
        config,
    });
    // A closed standard error is ignored.
    let say = |text: String| {
        let _ = writeln!(io::stderr(), "daq {COMMAND} {name}: {text}");
    };
    match end {
        Ok(End::Finished) => 0,
        Ok(End::Orphaned(maps, failed)) if failed.is_empty() => {
            say(format!(
                "daq was killed: stopped the device and removed {maps} mappings"
            ));
            0
        }
        Ok(End::Orphaned(_, failed)) => {
            say(format!(
                "daq was killed, and stopping the device failed: {}",
                failed.join("; ")
            ));
            1
        }
        Err(error) => {
            say(format!("{error}; only daq itself can use this command"));
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::JoinHandle;

    /// A device for tests that records the mappings when it is stopped.
    struct Recorder {
        fds: [OwnedFd; 2],
        recorded: Sender<Vec<(u64, u64)>>,
        waits: Receiver<()>,
    }

    impl GuardedDevice for Recorder {
        fn disable_and_reset(&mut self, maps: &BTreeMap<u64, Map>) -> Vec<String> {
            for fd in &self.fds {
                assert!(rustix::fs::fstat(fd).is_ok());
            }
            let maps = maps.iter().map(|(address, map)| (*address, map.bytes));
            self.recorded.send(maps.collect()).unwrap();
            self.waits.recv().unwrap();
            vec!["as asked".to_owned()]
        }
    }

    struct Bench {
        socket: OwnedFd,
        guard: JoinHandle<Result<End, String>>,
        recorded: Receiver<Vec<(u64, u64)>>,
        resume: Sender<()>,
    }

    /// A guard in a thread, with two ordinary files as the device.
    fn bench() -> Bench {
        let (socket, theirs) = connection().unwrap();
        let (record, recorded) = channel();
        let (resume, waits) = channel();
        let guard = std::thread::spawn(move || {
            serve(theirs.as_fd(), |first, second, config| {
                assert_eq!(config, 7 << 40);
                Recorder {
                    fds: [first, second],
                    recorded: record,
                    waits,
                }
            })
        });
        let files = [0; 2].map(|_| std::fs::File::open("/dev/null").unwrap());
        let files = files.each_ref().map(AsFd::as_fd);
        let take = Message::Open {
            version: VERSION,
            config: 7 << 40,
        };
        request(&socket, take, &files).unwrap();
        Bench {
            socket,
            guard,
            recorded,
            resume,
        }
    }

    fn map(address: u64) -> Message {
        let bytes = 4096;
        Message::Map { address, bytes }
    }

    /// Returns true if the other end of a pipe is still open.
    fn is_held(end: &std::io::PipeReader) -> bool {
        is_held_for(end, Duration::ZERO)
    }

    /// Calls [`is_held`] after waiting at most `limit`. A child process of another test inherits the descriptor until
    /// it executes its program.
    fn is_held_for(end: &std::io::PipeReader, limit: Duration) -> bool {
        let limit = Timespec::try_from(limit).unwrap();
        let mut fds = [PollFd::new(end, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&limit)).unwrap();
        !fds[0].revents().contains(PollFlags::HUP)
    }

    #[test]
    fn guard_messages_round_trip() {
        let config = 3;
        let version = 2;
        for message in [
            Message::Open { version, config },
            Message::Descriptors,
            map(u64::MAX),
            Message::Unmap { address: 9 },
            Message::Finish,
        ] {
            assert_eq!(Message::read(message.bytes()), Some(message));
        }
        assert_eq!(Message::read([9; MESSAGE_BYTES]), None);
    }

    #[test]
    fn guard_orphaned_disables_device_before_unmapping() {
        let bench = bench();
        let (end, held) = std::io::pipe().unwrap();
        request(&bench.socket, Message::Descriptors, &[held.as_fd()]).unwrap();
        drop(held);
        request(&bench.socket, map(0x10_0000), &[]).unwrap();
        request(&bench.socket, map(0x20_0000), &[]).unwrap();
        request(&bench.socket, Message::Unmap { address: 0x20_0000 }, &[]).unwrap();
        drop(bench.socket);
        assert_eq!(bench.recorded.recv().unwrap(), [(0x10_0000, 4096)]);
        assert!(
            is_held(&end),
            "the GPU memory is kept until the device is stopped"
        );
        bench.resume.send(()).unwrap();
        let ended = bench.guard.join().unwrap().unwrap();
        assert_eq!(ended, End::Orphaned(1, vec!["as asked".to_owned()]));
        assert!(!is_held_for(&end, TIMEOUT));
    }

    #[test]
    fn guard_keeps_memory_until_its_mapping_ends() {
        let bench = bench();
        let (end, held) = std::io::pipe().unwrap();
        request(&bench.socket, Message::Descriptors, &[held.as_fd()]).unwrap();
        drop(held);
        request(&bench.socket, map(0x10_0000), &[]).unwrap();
        assert!(is_held(&end));
        request(&bench.socket, Message::Unmap { address: 0x10_0000 }, &[]).unwrap();
        assert!(!is_held_for(&end, TIMEOUT));
        request(&bench.socket, Message::Finish, &[]).unwrap();
        assert_eq!(bench.guard.join().unwrap(), Ok(End::Finished));
        assert!(
            bench.recorded.try_recv().is_err(),
            "the device was stopped by the daemon"
        );
    }

    #[test]
    fn guard_clean_end_is_reported_after_close() {
        let bench = bench();
        let (end, held) = std::io::pipe().unwrap();
        request(&bench.socket, Message::Descriptors, &[held.as_fd()]).unwrap();
        drop(held);
        request(&bench.socket, map(0x10_0000), &[]).unwrap();
        request(&bench.socket, Message::Finish, &[]).unwrap();
        assert!(!is_held_for(&end, TIMEOUT));
        assert_eq!(bench.guard.join().unwrap(), Ok(End::Finished));
    }

    #[test]
    fn guard_invalid_message_is_rejected() {
        let bench = bench();
        rustix::net::send(&bench.socket, b"who are you", SendFlags::NOSIGNAL).unwrap();
        let mut reply = [0; MAX_REPLY_BYTES];
        let (bytes, _) = rustix::net::recv(&bench.socket, &mut reply, RecvFlags::empty()).unwrap();
        assert_eq!(&reply[..bytes], b"invalid message of 11 bytes");
        let version = VERSION + 1;
        let config = 0;
        let file = std::fs::File::open("/dev/null").unwrap();
        for (message, fds, why) in [
            (
                Message::Open { version, config },
                2,
                "protocol version is 2, expected 1",
            ),
            (
                Message::Open {
                    version: VERSION,
                    config,
                },
                2,
                "already has a device",
            ),
            (map(0), 1, "with 1 file descriptors"),
        ] {
            let fds = vec![file.as_fd(); fds];
            let recorded = request(&bench.socket, message, &fds)
                .unwrap_err()
                .to_string();
            assert!(recorded.contains(why), "{recorded}");
        }
        request(&bench.socket, Message::Finish, &[]).unwrap();
        assert_eq!(bench.guard.join().unwrap(), Ok(End::Finished));
    }

    #[test]
    fn guard_many_descriptors_use_several_messages() {
        let (end, writer) = std::io::pipe().unwrap();
        let held: Vec<OwnedFd> = (0..MAX_DESCRIPTORS + 3)
            .map(|_| writer.try_clone().unwrap().into())
            .collect();
        drop(writer);
        let bench = bench();
        request_map(&bench.socket, 0x10_0000, 4096, &held[..MAX_DESCRIPTORS]).unwrap();
        request_map(&bench.socket, 0x20_0000, 4096, &held).unwrap();
        drop(held);
        request(&bench.socket, Message::Unmap { address: 0x20_0000 }, &[]).unwrap();
        assert!(
            is_held(&end),
            "the descriptors of the other mapping must stay open"
        );
        request(&bench.socket, Message::Unmap { address: 0x10_0000 }, &[]).unwrap();
        assert!(!is_held_for(&end, TIMEOUT));
        request(&bench.socket, Message::Finish, &[]).unwrap();
        assert_eq!(bench.guard.join().unwrap(), Ok(End::Finished));
    }

    #[test]
    fn guard_connection_closed_early_is_error() {
        let (ours, theirs) = connection().unwrap();
        drop(ours);
        let end = serve(theirs.as_fd(), |_, _, _| -> Recorder { unreachable!() });
        assert!(end.unwrap_err().contains("before the first message"));
    }

    #[test]
    fn guard_foreign_program_is_reported() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let program = Path::new("/bin/true");
        if !program.exists() {
            eprintln!("skipped: there is no /bin/true");
            return;
        }
        let error =
            DeviceGuard::start(program, "0000:3b:00.0", file.as_fd(), file.as_fd(), 0).unwrap_err();
        let recorded = error.to_string();
        assert!(
            recorded.contains("0000:3b:00.0: cannot start the process that stops the device"),
            "{recorded}"
        );
        assert!(recorded.contains("/bin/true fpga-guard"), "{recorded}");
    }
}
