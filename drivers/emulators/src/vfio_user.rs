//! Serves an emulated device over a vfio-user socket, to one client at a time.
//!
//! ```text
//!   client ──messages──▶ Session ──▶ Endpoint ──▶ device
//!              memory and events (as file descriptors)
//!          ◀── reads and writes of memory that was mapped without a file ──┘
//! ```
//! When a client disconnects for any reason, its memory is unmapped before the connection is closed. The device is then
//! reset to its state after power-on for the next client.

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

/// Maximum time for a client to accept a reply.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of messages that are handled between two steps of the device.
const MESSAGES: u32 = 64;

/// Error: a device cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Another process serves a device at this path.
    #[error("{}: another process already serves a device at this path; choose another path, or stop that process", .0.display())]
    Live(PathBuf),
    /// The path exists but is not a socket.
    #[error("{}: not a socket; choose another path", .0.display())]
    NoSocket(PathBuf),
    /// The socket cannot be created, or has failed.
    #[error("{}: {action}: {source}", path.display())]
    System {
        /// The path of the socket.
        path: PathBuf,
        /// The action that failed.
        action: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
}

// Limits on log messages that clients can cause.
static LEFT: LogLimit = LogLimit::new();
static BROKEN: LogLimit = LogLimit::new();
static FAULTS: LogLimit = LogLimit::new();
static REJECTED: LogLimit = LogLimit::new();
static REFUSED: LogLimit = LogLimit::new();

/// A socket at which a device is served. The socket file is removed on drop.
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
            .map_err(failed("making the socket non-blocking"))?;
        Ok(Self {
            listener,
            path: path.to_owned(),
        })
    }

    /// Serves `card` to one client after another until `stop` is readable, or only to a single client.
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
            // Detach before the connection is closed, because a client may free its memory once the connection is
            // closed.
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
                    tracing::warn!(
                        "the emulated device had {faults} DMA faults on this connection{suppressed}"
                    );
                });
            }
            if is_once && was_user {
                return Ok(());
            }
        }
    }
}

/// Creates a socket at `path` that only this user can access. The access rights apply from the creation of the socket.
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

/// Serves one connection until the client disconnects, the client violates the protocol, or `stop` becomes readable. A
/// readable `stop` is not an error. Returns whether the client used the protocol, and how the connection ended. When
/// this function returns, the client's mappings still exist. Other connections to `others` are rejected immediately.
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

/// The session of one client.
struct Session<'a> {
    endpoint: &'a mut Endpoint,
    stream: &'a UnixStream,
    channel: Arc<Channel>,
    has_version: bool,
    /// Data of the current reply.
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

    /// Serves the client until the client disconnects or `stop` becomes readable. A readable `stop` is not an error.
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
                // Without a listener, `stop` is polled twice.
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

    /// Rejects another connection, unless the current client has already disconnected, because the device is then free.
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

    /// Handles a message and sends the reply.
    fn answer(&mut self, message: Message) -> Result<(), ConnectionError> {
        let Message {
            header,
            payload,
            files,
        } = message;
        if !header.is_request() {
            // A reply without a matching request is ignored.
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

    /// Executes a request. Returns the payload of the reply, which is followed by `self.data`.
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
                    // A client that lets its event counter overflow must not block the device.
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

    /// Returns the part of a region that an access affects, as an offset and a number of bytes.
    fn inside(&self, access: Access) -> Result<(usize, usize), u32> {
        let bytes = self.region_bytes(access.region).ok_or(errno::INVALID)?;
        let end = access.offset.checked_add(access.count.into());
        let is_inside = end.is_some_and(|end| end <= bytes);
        // Registers are accessed as words, the configuration space as bytes.
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

/// Waits until one of `fds` is ready or `limit` has passed.
fn wait(fds: &mut [PollFd<'_>], limit: Option<Duration>) -> Result<(), Errno> {
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    match poll(fds, limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Converts a system error to an error number of the protocol.
fn number(errno: Errno) -> u32 {
    errno.raw_os_error().unsigned_abs()
}
