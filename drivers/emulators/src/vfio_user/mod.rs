//! A card behind a vfio-user socket, for one user after the other.
//!
//! ```text
//!   user ──messages──▶ Session ──▶ Endpoint ──▶ card
//!            memory, events (as files)
//!        ◀── reads and writes of memory that was mapped without a file ──┘
//! ```
//! When a user leaves, however it does, nothing of it is left: its memory is unmapped before its connection is closed, and
//! the card is as after power-on for the next one.

mod channel;

use crate::endpoint::Endpoint;
use crate::sys::memory::{MapError, PAGE, Piece};
use crate::{BARS, EmulatedDevice, Step, config_space};
use channel::{Channel, Message};
use daq_core::log_limit::LogLimit;
use daq_drivers::fpga::transports::vfio_user::socket::{ConnectionError, send};
use daq_drivers::fpga::transports::vfio_user::wire::{
    Access, CONFIG_REGION, DEVICE_FLAGS, IRQ_DATA_BOOL, IRQ_DATA_EVENT, IRQ_DATA_NONE, IRQ_FLAGS,
    IRQ_TRIGGER, IRQS, MAX_DATA, MAX_FILES, MAX_MAPS, MAY_READ, MAY_WRITE, MSI, MSIX,
    REGION_READ_WRITE, REGIONS, Request, UNMAP_ALL, VERSION, errno, long_words, words,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long a user may take to accept an answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Messages that are handled between two steps of the card.
const MESSAGES: u32 = 64;

/// Why a card cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Another process serves at this path.
    #[error("{}: another process serves at this path; choose another path, or stop it", .0.display())]
    Live(PathBuf),
    /// Something else is there.
    #[error("{}: not a socket; choose another path", .0.display())]
    NoSocket(PathBuf),
    /// The socket could not be made, or failed.
    #[error("{}: {action}: {source}", path.display())]
    System {
        /// Where.
        path: PathBuf,
        /// What was done.
        action: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

// Limits on log messages that clients can cause.
static LEFT: LogLimit = LogLimit::new();
static BROKEN: LogLimit = LogLimit::new();
static FAULTS: LogLimit = LogLimit::new();
static REJECTED: LogLimit = LogLimit::new();
static REFUSED: LogLimit = LogLimit::new();

/// A socket that a card is served at; removed when this is dropped.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
}

impl Server {
    /// Listens at `path` and replaces a stale socket. Only this user may connect.
    pub fn bind(path: &Path) -> Result<Self, ServerError> {
        let failed = |action| {
            move |source| ServerError::System {
                path: path.to_owned(),
                action,
                source,
            }
        };
        if let Ok(found) = path.symlink_metadata() {
            if !found.file_type().is_socket() {
                return Err(ServerError::NoSocket(path.to_owned()));
            }
            match UnixStream::connect(path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                _ => return Err(ServerError::Live(path.to_owned())),
            }
            std::fs::remove_file(path).map_err(failed("removing an old socket"))?;
        }
        let listener = private(path).map_err(|errno| failed("listening")(errno.into()))?;
        listener
            .set_nonblocking(true)
            .map_err(failed("listening without waiting"))?;
        Ok(Self {
            listener,
            path: path.to_owned(),
        })
    }

    /// Serves `card` to one user after the other until `stop` can be read, or to one alone.
    pub fn serve(
        &self,
        card: Box<dyn EmulatedDevice>,
        stop: BorrowedFd<'_>,
        is_once: bool,
    ) -> Result<(), ServerError> {
        let failed = |action| {
            move |source| ServerError::System {
                path: self.path.clone(),
                action,
                source,
            }
        };
        let mut endpoint = Endpoint::new(card);
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(stop, PollFlags::IN),
                PollFd::new(&self.listener, PollFlags::IN),
            ];
            wait(&mut fds, None).map_err(|errno| failed("waiting")(errno.into()))?;
            if !fds[0].revents().is_empty() {
                return Ok(());
            }
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted
                    ) =>
                {
                    continue;
                }
                Err(error) => return Err(failed("accepting a connection")(error)),
            };
            stream
                .set_nonblocking(false)
                .and_then(|()| stream.set_write_timeout(Some(TIMEOUT)))
                .map_err(failed("setting up a connection"))?;
            let (was_user, ended) =
                serve_connection(&mut endpoint, &stream, stop, Some(&self.listener));
            let faults = endpoint.faults();
            // Before the connection is closed: a user that finds it closed may free its memory.
            endpoint.detach();
            drop(stream);
            match ended {
                Ok(()) => return Ok(()),
                Err(ConnectionError::Closed) if !was_user => continue,
                Err(ConnectionError::Closed) => LEFT.run(|suppressed| {
                    tracing::info!("client disconnected{suppressed}");
                }),
                Err(broken) => BROKEN.run(|suppressed| {
                    tracing::warn!("{broken}; the connection is closed{suppressed}");
                }),
            }
            if faults > 0 {
                FAULTS.run(|suppressed| {
                    tracing::warn!("{faults} DMA faults of the emulated device{suppressed}");
                });
            }
            if is_once && was_user {
                return Ok(());
            }
        }
    }
}

/// A socket at `path` of which this user alone has the rights, from its first moment on: those of the socket that is bound.
fn private(path: &Path) -> rustix::io::Result<UnixListener> {
    let address = SocketAddrUnix::new(path)?;
    let kind = (
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
    );
    let socket = rustix::net::socket_with(kind.0, kind.1, kind.2, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, 128)?;
    Ok(socket.into())
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Serves one connection until the user leaves or breaks the protocol, or until `stop` can be read, which alone is no
/// error. Returns whether the client spoke the protocol, and how the connection ended. The mappings of the client still
/// exist. Other connections to `others` are rejected at once.
pub fn serve_connection(
    endpoint: &mut Endpoint,
    stream: &UnixStream,
    stop: BorrowedFd<'_>,
    others: Option<&UnixListener>,
) -> (bool, Result<(), ConnectionError>) {
    let mut session = match Session::new(endpoint, stream) {
        Ok(session) => session,
        Err(broken) => return (false, Err(broken)),
    };
    let ended = session.run(stop, others);
    (session.has_version, ended)
}

/// One user.
struct Session<'a> {
    endpoint: &'a mut Endpoint,
    stream: &'a UnixStream,
    channel: Arc<Channel>,
    has_version: bool,
    /// Data of the answer in work.
    data: Vec<u8>,
}

impl<'a> Session<'a> {
    fn new(endpoint: &'a mut Endpoint, stream: &'a UnixStream) -> Result<Self, ConnectionError> {
        Ok(Self {
            endpoint,
            channel: Arc::new(Channel::new(stream)?),
            stream,
            has_version: false,
            data: Vec::new(),
        })
    }

    /// Serves until the user leaves, or until `stop` can be read, which alone is no error.
    fn run(
        &mut self,
        stop: BorrowedFd<'_>,
        others: Option<&UnixListener>,
    ) -> Result<(), ConnectionError> {
        loop {
            let step = self.endpoint.step();
            let has_pending = self.channel.has_pending();
            let limit = match step {
                _ if has_pending => Some(Duration::ZERO),
                Step::Busy => Some(Duration::ZERO),
                Step::After(time) => Some(time),
                Step::Idle | Step::Removed => None,
            };
            let others = others.filter(|_| self.has_version);
            let mut fds = [
                PollFd::from_borrowed_fd(stop, PollFlags::IN),
                PollFd::new(self.stream, PollFlags::IN),
                // Without a listener, polls `stop` twice.
                PollFd::from_borrowed_fd(others.map_or(stop, AsFd::as_fd), PollFlags::IN),
            ];
            wait(&mut fds, limit)?;
            if !fds[0].revents().is_empty() {
                return Ok(());
            }
            if fds[1].revents().is_empty() && !has_pending {
                if let Some(others) = others.filter(|_| !fds[2].revents().is_empty()) {
                    self.reject_connection(others)?;
                }
                continue;
            }
            for _ in 0..MESSAGES {
                match self.channel.next()? {
                    Some(message) => self.answer(message)?,
                    None => break,
                }
            }
        }
    }

    /// Rejects another connection, unless the client disconnected before it: then the device is free.
    fn reject_connection(&self, others: &UnixListener) -> Result<(), ConnectionError> {
        let mut fds = [PollFd::new(self.stream, PollFlags::IN)];
        wait(&mut fds, Some(Duration::ZERO))?;
        if fds[0].revents().is_empty() && others.accept().is_ok() {
            REJECTED.run(|suppressed| {
                tracing::warn!(
                    "rejected connection: the card serves one client at a time{suppressed}"
                );
            });
        }
        Ok(())
    }

    /// Answers a message.
    fn answer(&mut self, message: Message) -> Result<(), ConnectionError> {
        let Message {
            header,
            payload,
            files,
        } = message;
        if !header.is_request() {
            // An answer to nothing that was asked.
            return Ok(());
        }
        let done = Request::parse(header.command, &payload)
            .and_then(|request| self.execute(request, files));
        match done {
            _ if !header.wants_reply() => Ok(()),
            Ok(payload) => {
                let (head, data) = (payload.as_slice(), self.data.as_slice());
                let reply = header.reply(head.len() + data.len());
                send(self.stream, reply, &[head, data], &[])
            }
            Err(error) => send(self.stream, header.refusal(error), &[], &[]),
        }
    }

    /// Does what is asked for; returns the answer's payload, behind which comes `self.data`.
    fn execute(&mut self, request: Request<'_>, files: Vec<OwnedFd>) -> Result<Vec<u8>, u32> {
        self.data.clear();
        match request {
            Request::Version(major, minor, capabilities) => {
                self.version(major, minor, capabilities)
            }
            _ if !self.has_version => Err(errno::INVALID),
            Request::DmaMap {
                flags,
                offset,
                address,
                bytes,
            } => self
                .map(flags, offset, (address, bytes), &files)
                .map(|()| Vec::new()),
            Request::DmaUnmap {
                flags,
                address,
                bytes,
            } => self.unmap(flags, address, bytes),
            Request::DeviceInfo => Ok(words([16, DEVICE_FLAGS, REGIONS, IRQS])),
            Request::RegionInfo(region) => {
                let bytes = self.region_bytes(region).ok_or(errno::INVALID)?;
                let flags = if bytes == 0 { 0 } else { REGION_READ_WRITE };
                Ok(long_words([32, flags], [region.into(), bytes, 0]))
            }
            Request::IrqInfo(kind) if kind < IRQS => {
                Ok(words([16, IRQ_FLAGS, kind, self.vectors(kind)]))
            }
            Request::IrqInfo(_) => Err(errno::INVALID),
            Request::SetIrqs {
                flags,
                index,
                start,
                count,
                data,
            } => self
                .set_irqs(flags, index, (start, count), data, files)
                .map(|()| Vec::new()),
            Request::Read(access) => self.read(access),
            Request::Write(access, data) => self.write(access, data),
            Request::Reset if self.endpoint.is_removed() => Err(errno::NO_DEVICE),
            Request::Reset => {
                self.endpoint.reset();
                Ok(Vec::new())
            }
        }
    }

    fn version(&mut self, major: u16, minor: u16, capabilities: &[u8]) -> Result<Vec<u8>, u32> {
        if major != VERSION.0 {
            return Err(errno::NOT_SUPPORTED);
        }
        let text = capabilities.split(|byte| *byte == 0).next().unwrap_or(&[]);
        let capabilities: serde_json::Value = serde_json::from_slice(text).unwrap_or_default();
        if let Some(bytes) = capabilities["capabilities"]["max_data_xfer_size"].as_u64() {
            self.channel.set_max_data(bytes);
        }
        self.has_version = true;
        let minor = minor.min(VERSION.1);
        let mut payload = [major.to_le_bytes(), minor.to_le_bytes()].concat();
        let capabilities = serde_json::json!({ "capabilities": {
            "max_msg_fds": MAX_FILES,
            "max_data_xfer_size": MAX_DATA,
            "max_dma_maps": MAX_MAPS,
            "pgsizes": 4096,
        }});
        payload.extend(capabilities.to_string().bytes());
        payload.push(0);
        Ok(payload)
    }

    fn map(
        &mut self,
        flags: u32,
        offset: u64,
        (address, bytes): (u64, u64),
        files: &[OwnedFd],
    ) -> Result<(), u32> {
        if self.endpoint.memory().len() >= MAX_MAPS {
            return Err(errno::NO_SPACE);
        }
        if [address, bytes, offset]
            .iter()
            .any(|value| !value.is_multiple_of(PAGE))
        {
            REFUSED.run(|suppressed| {
                tracing::warn!(
                    "refused to map {bytes} bytes at {address:#x}, offset {offset:#x}: all three must be multiples of \
                     {PAGE}{suppressed}"
                );
            });
            return Err(errno::INVALID);
        }
        let access = (flags & MAY_READ != 0, flags & MAY_WRITE != 0);
        let piece = match files {
            [file] => Piece::of_file(file.as_fd(), offset, bytes, access),
            [] => Ok(Piece::of_remote(self.channel.clone(), bytes, access)),
            _ => return Err(errno::INVALID),
        };
        let given = piece.and_then(|piece| self.endpoint.memory().map(address, piece));
        given.map_err(|error| {
            REFUSED.run(|suppressed| {
                tracing::warn!("cannot map {bytes} bytes for {address:#x}: {error}{suppressed}");
            });
            match error {
                MapError::System(errno) => number(errno),
                MapError::InvalidRange { .. }
                    if bytes > 0 && address.checked_add(bytes).is_some() =>
                {
                    errno::EXISTS
                }
                _ => errno::INVALID,
            }
        })
    }

    fn unmap(&mut self, flags: u32, address: u64, bytes: u64) -> Result<Vec<u8>, u32> {
        let memory = self.endpoint.memory();
        match flags {
            UNMAP_ALL if address == 0 && bytes == 0 => memory.clear(),
            0 if memory.unmap(address, bytes) => {}
            0 => return Err(errno::NOT_THERE),
            _ => return Err(errno::INVALID),
        }
        Ok(long_words([24, flags], [address, bytes]))
    }

    fn region_bytes(&self, region: u32) -> Option<u64> {
        let sizes = self.endpoint.sizes();
        match usize::try_from(region) {
            Ok(bar @ 0..BARS) => Some(sizes[bar].into()),
            _ if region == CONFIG_REGION => Some(config_space::BYTES as u64),
            _ => (region < REGIONS).then_some(0),
        }
    }

    fn vectors(&self, kind: u32) -> u32 {
        let vectors = u32::from(self.endpoint.identity().vectors);
        match kind {
            MSIX => vectors,
            MSI if vectors > 0 => vectors.next_power_of_two(),
            _ => 0,
        }
    }

    fn set_irqs(
        &mut self,
        flags: u32,
        kind: u32,
        (start, count): (u32, u32),
        data: &[u8],
        files: Vec<OwnedFd>,
    ) -> Result<(), u32> {
        let end = start.checked_add(count).ok_or(errno::INVALID)?;
        if kind >= IRQS || end > self.vectors(kind) {
            return Err(errno::INVALID);
        }
        let range = start..end;
        let data_flags = IRQ_DATA_NONE | IRQ_DATA_BOOL | IRQ_DATA_EVENT;
        if flags & !data_flags != IRQ_TRIGGER {
            return Err(errno::NOT_SUPPORTED);
        }
        match flags & data_flags {
            IRQ_DATA_NONE if count == 0 => {
                for vector in 0..usize::from(self.endpoint.identity().vectors) {
                    self.endpoint.connect(vector, None);
                }
            }
            IRQ_DATA_EVENT if files.len() == count as usize => {
                for (vector, file) in range.zip(files) {
                    // A user that fills its event up must not hold the card.
                    let flags = rustix::fs::fcntl_getfl(&file).map_err(number)?;
                    rustix::fs::fcntl_setfl(&file, flags | rustix::fs::OFlags::NONBLOCK)
                        .map_err(number)?;
                    self.endpoint.connect(vector as usize, Some(file));
                }
            }
            IRQ_DATA_NONE => {
                for vector in range {
                    self.trigger(vector);
                }
            }
            IRQ_DATA_BOOL if data.len() == count as usize => {
                for (vector, byte) in range.zip(data) {
                    if *byte != 0 {
                        self.trigger(vector);
                    }
                }
            }
            _ => return Err(errno::INVALID),
        }
        Ok(())
    }

    fn trigger(&self, vector: u32) {
        if let Ok(vector) = u16::try_from(vector) {
            self.endpoint.trigger(vector);
        }
    }

    /// The bytes of a region that an access is to, as an offset and a count.
    fn inside(&self, access: Access) -> Result<(usize, usize), u32> {
        let bytes = self.region_bytes(access.region).ok_or(errno::INVALID)?;
        let end = access.offset.checked_add(access.count.into());
        let is_inside = end.is_some_and(|end| end <= bytes);
        // Registers are words; the configuration space is bytes.
        let is_whole = access.region == CONFIG_REGION
            || (access.offset | u64::from(access.count)).is_multiple_of(4);
        let offset = usize::try_from(access.offset).ok();
        offset
            .filter(|_| is_inside && is_whole)
            .map(|offset| (offset, access.count as usize))
            .ok_or(errno::INVALID)
    }

    fn read(&mut self, access: Access) -> Result<Vec<u8>, u32> {
        let (offset, count) = self.inside(access)?;
        self.data.resize(count, 0);
        if access.region == CONFIG_REGION {
            self.endpoint.config_read(offset, &mut self.data);
        } else {
            let (words, _) = self.data.as_chunks_mut::<4>();
            for (place, word) in (access.offset..).step_by(4).zip(words) {
                *word = self
                    .endpoint
                    .read(access.region as usize, place)
                    .to_le_bytes();
            }
        }
        Ok(access.to_bytes().to_vec())
    }

    fn write(&mut self, access: Access, data: &[u8]) -> Result<Vec<u8>, u32> {
        let (offset, _) = self.inside(access)?;
        if access.region == CONFIG_REGION {
            self.endpoint.config_write(offset, data);
        } else {
            let (words, _) = data.as_chunks::<4>();
            for (place, word) in (access.offset..).step_by(4).zip(words) {
                let value = u32::from_le_bytes(*word);
                self.endpoint.write(access.region as usize, place, value);
            }
        }
        Ok(access.to_bytes().to_vec())
    }
}

/// Waits until one of `fds` has something, or `limit` has passed.
fn wait(fds: &mut [PollFd<'_>], limit: Option<Duration>) -> Result<(), Errno> {
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    match poll(fds, limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// An error of the system as the protocol carries it.
fn number(errno: Errno) -> u32 {
    errno.raw_os_error().unsigned_abs()
}
