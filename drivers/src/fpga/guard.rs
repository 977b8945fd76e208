//! The guard: a small process that outlives a daemon which is killed, and stops its device.
//!
//! ```text
//!   daemon ── descriptors of device, container, GPU; each map before it is made ──▶ guard (asleep)
//!     │ SIGKILL                                                                        │ end of the connection
//!     ▼                                                                                ▼
//!   its memory goes ──── the guard still holds the GPU's ──── bus mastering off, reset, unmap, close
//! ```
//! The kernel does not hold the memory of another device that it has mapped for DMA: were the GPU's memory given back
//! while the device still wrote, its next holder would be written over. What the guard holds keeps it.
//!
//! It is this same program, run again with the hidden command [`COMMAND`], its end of the connection as standard input.

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

/// The hidden command of the program by which it becomes an guard.
pub const COMMAND: &str = "fpga-guard";

/// Of the protocol, so that a program that was replaced under a running daemon is noticed.
const VERSION: u64 = 1;
/// The kernel passes at most 253 descriptors with a message.
const MAX_DESCRIPTORS: usize = 253;
/// How long an reply may take; the guard does nothing else, so this passes only if it does not run at all.
const TIMEOUT: Duration = Duration::from_mins(1);
/// Bytes of a message: its kind and three numbers.
const MESSAGE_BYTES: usize = 32;
/// Most bytes of an reply: the message itself, or why it was refused.
const MAX_REPLY_BYTES: usize = 256;
/// `PCI_COMMAND` in a configuration space, and its bit that lets the device write and read memory.
pub(super) const PCI_COMMAND: u64 = 4;
pub(super) const BUS_MASTER: u16 = 1 << 2;

/// What the daemon tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    /// The first one, with the descriptors of the container and the device: where in the latter its configuration space is.
    Open { version: u64, config: u64 },
    /// Descriptors that belong to the next [`Message::Map`].
    Descriptors,
    /// A map is about to be made.
    Map { address: u64, bytes: u64 },
    /// It is no more.
    Unmap { address: u64 },
    /// The device is quiet, the end is in order.
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

/// Why an guard was not told something.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// It said why not.
    #[error("it refused: {0}")]
    Refused(String),
    /// Nobody knows what it has heard, and it is told nothing more: a late reply would be taken for that to another message.
    #[error("{0}")]
    Lost(io::Error),
}

impl From<Errno> for GuardError {
    fn from(errno: Errno) -> Self {
        Self::Lost(errno.into())
    }
}

/// The daemon's side.
#[derive(Debug)]
pub struct DeviceGuard {
    socket: OwnedFd,
    child: Child,
    /// An reply did not come.
    is_lost: bool,
}

impl DeviceGuard {
    /// Starts the guard of the device `name`, whose configuration space lies at `config` of its descriptor.
    ///
    /// `program` is an executable that becomes an guard by [`COMMAND`]: this one.
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
                    "the process that stops the device if this one is killed cannot be had: {why}; without it \
                     nothing is done, since the device might write where it must not. {} {COMMAND} must be this \
                     version of the program",
                    program.display()
                ),
            )
        };
        let (ours, theirs) =
            connection().map_err(|error| cannot(format!("no socket pair: {error}")))?;
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
                // It holds nothing yet, or is no guard at all.
                let _ = guard.child.kill();
                let _ = guard.child.wait();
                Err(cannot(error.to_string()))
            }
        }
    }

    /// Tells of a map that is about to be made; `held` is kept open until it is unmapped.
    pub fn map(&mut self, address: u64, bytes: u64, held: &[OwnedFd]) -> Result<(), GuardError> {
        self.unless_lost(|socket| request_map(socket, address, bytes, held))
    }

    /// Tells that a map is no more.
    pub fn unmap(&mut self, address: u64) -> Result<(), GuardError> {
        self.request(Message::Unmap { address }, &[])
    }

    /// Ends the guard: the device is quiet.
    pub fn finish(mut self) -> Result<(), GuardError> {
        self.request(Message::Finish, &[])?;
        self.child.wait().map_err(GuardError::Lost)?;
        Ok(())
    }

    /// The guard's process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn request(&mut self, message: Message, fds: &[BorrowedFd<'_>]) -> Result<(), GuardError> {
        self.unless_lost(|socket| request(socket, message, fds))
    }

    /// Tells unless an reply did not come before.
    fn unless_lost(
        &mut self,
        request: impl FnOnce(&OwnedFd) -> Result<(), GuardError>,
    ) -> Result<(), GuardError> {
        if self.is_lost {
            let why =
                "it did not reply before; stop this program, and look whether its process is there";
            return Err(GuardError::Lost(io::Error::other(why)));
        }
        let told = request(&self.socket);
        self.is_lost = matches!(told, Err(GuardError::Lost(_)));
        told
    }
}

/// The two ends of a connection that keeps messages apart.
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

/// Sends a map with all that keeps its memory, in as many messages as that takes.
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

/// Sends a message with descriptors and waits until it is taken.
fn request(socket: &OwnedFd, message: Message, fds: &[BorrowedFd<'_>]) -> Result<(), GuardError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(GuardError::Refused(format!(
            "{} descriptors are too many for a message",
            fds.len()
        )));
    }
    let message = message.bytes();
    // A socket with a time limit is not asked again by the kernel after a signal.
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
        0 => Err(GuardError::Lost(io::Error::other("it has ended"))),
        MESSAGE_BYTES if reply[..MESSAGE_BYTES] == message => Ok(()),
        _ => {
            let why = String::from_utf8_lossy(&reply[..bytes]);
            Err(GuardError::Refused(why.into_owned()))
        }
    }
}

/// What an guard does to a device; a trait so that the protocol can be tried on what is none.
trait GuardedDevice {
    /// Stops all DMA and ends the maps; returns what could not be done.
    fn disable_and_reset(&mut self, maps: &BTreeMap<u64, Map>) -> Vec<String>;
}

/// A map that the daemon told of.
#[derive(Debug)]
struct Map {
    bytes: u64,
    /// What keeps its memory.
    _descriptors: Vec<OwnedFd>,
}

/// How an guard ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// Told to.
    Finished,
    /// The daemon had gone without a message, with so many maps; what could not be done about it.
    Orphaned(usize, Vec<String>),
}

/// The guard's whole life: sleeps on `socket`, does what it is told, and cuts off what `open` made of the first
/// descriptors if the other end goes without a message.
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
                    None => Err("the connection ended before it began".to_owned()),
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
                Some(format!("protocol {version}, not {VERSION}"))
            }
            (Message::Open { config, .. }, 2) => match (open.take(), fds.pop(), fds.pop()) {
                (Some(open), Some(second), Some(first)) => {
                    device = Some(open(first, second, config));
                    None
                }
                _ => Some("it has a device".to_owned()),
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
                // Closed before it is answered, so that the daemon can rely on it.
                drop((device, maps, next));
                reply(socket, &message.bytes());
                return Ok(End::Finished);
            }
            (message, count) => Some(format!("{message:?} with {count} descriptors")),
        };
        match refusal {
            None => reply(socket, &message.bytes()),
            Some(refusal) => reply(socket, refusal.as_bytes()),
        }
    }
}

/// The next message with its descriptors; `None` at the end of the connection; what is wrong with it.
fn receive(socket: BorrowedFd<'_>) -> Result<Option<(Message, Vec<OwnedFd>)>, String> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut message = [0; MESSAGE_BYTES];
    let received = loop {
        let mut parts = [IoSliceMut::new(&mut message)];
        match rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            // A connection that fails has ended.
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
        return Err("out of descriptors; raise LimitNOFILE= in the unit, or ulimit -n".to_owned());
    }
    match Message::read(message) {
        Some(message) if received.bytes == MESSAGE_BYTES => Ok(Some((message, fds))),
        _ => Err(format!("a message of {} bytes", received.bytes)),
    }
}

fn reply(socket: BorrowedFd<'_>, bytes: &[u8]) {
    // Where nobody hears it any more the next receive says so.
    let _ = rustix::net::send(
        socket,
        &bytes[..bytes.len().min(MAX_REPLY_BYTES)],
        SendFlags::NOSIGNAL,
    );
}

/// The real thing.
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
                    "unmap {:#x} bytes at {address:#x}: {error}",
                    map.bytes
                ));
            }
        }
        failed
    }
}

/// Bus mastering off, then a reset where the kernel has one for the device, and bus mastering stays off.
pub(super) fn disable_and_reset(device: BorrowedFd<'_>, config: u64) -> Result<(), String> {
    let told = |error: io::Error| format!("bus mastering cannot be switched off: {error}");
    set_bus_master(device, config, false).map_err(told)?;
    match sys::can_reset(device) {
        Ok(true) => {
            sys::reset(device).map_err(|error| format!("reset: {error}"))?;
            // The kernel puts back what the configuration space held.
            set_bus_master(device, config, false).map_err(told)
        }
        // Nothing that it sends leaves it.
        Ok(false) => Ok(()),
        Err(error) => Err(format!("its abilities cannot be read: {error}")),
    }
}

/// Sets or clears the bus-master bit; the read that checks it also waits for all writes that are under way from the device.
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
            "its command register reads {is:#06x} after {wanted:#06x} was written"
        )));
    }
    Ok(())
}

/// 16 bits of the configuration space.
pub(super) fn read_config(device: BorrowedFd<'_>, offset: u64) -> io::Result<u16> {
    let mut bytes = [0; 2];
    match rustix::io::pread(device, &mut bytes, offset)? {
        2 => Ok(u16::from_le_bytes(bytes)),
        n => Err(io::Error::other(format!(
            "{n} bytes of 2 of the configuration space"
        ))),
    }
}

/// The life of the process that was started with [`COMMAND`]; `name` is its device's, for messages. The exit code.
pub fn main(name: &str) -> u8 {
    sys::ignore_signals();
    // Away from the terminal; it fails where that is so already.
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"daq-fpga-guard");
    // Under want of memory the daemon has to go first; without the right to ask for that it is left to the kernel.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    let socket = io::stdin();
    let end = serve(socket.as_fd(), |container, device, config| VfioGuarded {
        container,
        device,
        config,
    });
    // A standard error that is closed is no reason to stop.
    let say = |text: String| {
        let _ = writeln!(io::stderr(), "daq {COMMAND} {name}: {text}");
    };
    match end {
        Ok(End::Finished) => 0,
        Ok(End::Orphaned(maps, failed)) if failed.is_empty() => {
            say(format!(
                "the daemon has gone without a message: the device was stopped, {maps} maps ended"
            ));
            0
        }
        Ok(End::Orphaned(_, failed)) => {
            say(format!(
                "the daemon has gone without a message, and the device could not be stopped in every way: {}",
                failed.join("; ")
            ));
            1
        }
        Err(error) => {
            say(format!("{error}; this command is for daq itself"));
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

    /// What stands for a device: tells what it was made of and what it was cut off with.
    struct Recorder {
        fds: [OwnedFd; 2],
        told: Sender<Vec<(u64, u64)>>,
        waits: Receiver<()>,
    }

    impl GuardedDevice for Recorder {
        fn disable_and_reset(&mut self, maps: &BTreeMap<u64, Map>) -> Vec<String> {
            for fd in &self.fds {
                assert!(rustix::fs::fstat(fd).is_ok());
            }
            let maps = maps.iter().map(|(address, map)| (*address, map.bytes));
            self.told.send(maps.collect()).unwrap();
            self.waits.recv().unwrap();
            vec!["as asked".to_owned()]
        }
    }

    struct Bench {
        socket: OwnedFd,
        guard: JoinHandle<Result<End, String>>,
        told: Receiver<Vec<(u64, u64)>>,
        go_on: Sender<()>,
    }

    /// An guard in a thread that has taken two ordinary files for a device.
    fn bench() -> Bench {
        let (socket, theirs) = connection().unwrap();
        let (tell_test, told) = channel();
        let (go_on, waits) = channel();
        let guard = std::thread::spawn(move || {
            serve(theirs.as_fd(), |first, second, config| {
                assert_eq!(config, 7 << 40);
                Recorder {
                    fds: [first, second],
                    told: tell_test,
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
            told,
            go_on,
        }
    }

    fn map(address: u64) -> Message {
        let bytes = 4096;
        Message::Map { address, bytes }
    }

    /// Whether anybody still has the other end of a pipe.
    fn is_held(end: &std::io::PipeReader) -> bool {
        is_held_for(end, Duration::ZERO)
    }

    /// The same once `limit` has passed; a child that another test starts has it until it runs its program.
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
        assert_eq!(bench.told.recv().unwrap(), [(0x10_0000, 4096)]);
        assert!(
            is_held(&end),
            "the GPU's memory is kept until the device is cut off"
        );
        bench.go_on.send(()).unwrap();
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
        assert!(bench.told.try_recv().is_err(), "it was not cut off");
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
        assert_eq!(&reply[..bytes], b"a message of 11 bytes");
        let version = VERSION + 1;
        let config = 0;
        let file = std::fs::File::open("/dev/null").unwrap();
        for (message, fds, why) in [
            (Message::Open { version, config }, 2, "protocol 2, not 1"),
            (
                Message::Open {
                    version: VERSION,
                    config,
                },
                2,
                "it has a device",
            ),
            (map(0), 1, "with 1 descriptors"),
        ] {
            let fds = vec![file.as_fd(); fds];
            let told = request(&bench.socket, message, &fds)
                .unwrap_err()
                .to_string();
            assert!(told.contains(why), "{told}");
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
        assert!(is_held(&end), "those of the other map");
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
        assert!(end.unwrap_err().contains("before it began"));
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
        let told = error.to_string();
        assert!(
            told.contains("0000:3b:00.0: the process that stops the device"),
            "{told}"
        );
        assert!(told.contains("/bin/true fpga-guard"), "{told}");
    }
}
