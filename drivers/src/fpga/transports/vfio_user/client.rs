//! A device in another process, accessed over the vfio-user protocol.
//!
//! The server receives memory and interrupt eventfds as file descriptors; everything else is sent as messages. Register
//! writes are posted: they have no reply, and the reply to a later read follows them. A closed connection means that the
//! device was removed.

use super::socket::{ConnectionError, Received, Receiver, send};
use super::wire::{
    Access, CONFIG_REGION, Command, Fields, Header, IRQ_DATA_EVENT, IRQ_TRIGGER, MAX_FILES,
    MAY_READ, MAY_WRITE, MSI, MSIX, VERSION, errno, long_words, words,
};
use crate::fpga::device::BARS;
use crate::fpga::device::{Device, DeviceError, GONE, Identity, Interrupt, Registers};
use crate::fpga::transports::iova::IovaAllocator;
use daq_core::dma::{DmaDevice, DmaError};
use daq_core::log_limit::LogLimit;
use daq_core::region::Region;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Timeout of a reply.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of messages before a reply. After that the 16-bit IDs of posted messages are exhausted.
const MAX_UNRELATED_MESSAGES: u32 = 1 << 16;
/// Valid Linux error numbers.
const ERRORS: std::ops::RangeInclusive<i32> = 1..=4095;

/// Configuration space: the command register, and its bits for memory and bus mastering.
const COMMAND: u64 = 0x04;
const MEMORY_AND_MASTER: [u8; 2] = [0x06, 0x00];
const MEMORY_ALONE: [u8; 2] = [0x02, 0x00];

/// Reason why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Failure {
    /// The server replied with an error.
    #[error("the server refused: {0}")]
    Refused(Errno),
    /// The reply violates the protocol.
    #[error("invalid reply from the server: {0}")]
    InvalidReply(&'static str),
    /// The connection failed.
    #[error("{0}")]
    ConnectionError(#[from] ConnectionError),
}

/// The connection to the server.
struct Connection {
    name: String,
    state: Mutex<State>,
}

struct State {
    stream: UnixStream,
    receiver: Receiver,
    next: u16,
    /// The error that ended the connection, or `None` while the connection works.
    broken: Option<ConnectionError>,
}

/// A device in another process.
struct VfioUserDevice {
    connection: Arc<Connection>,
    identity: Identity,
    sizes: [u64; BARS],
    /// Type and number of the interrupts in use.
    vectors: (u32, u32),
    /// Maximum number of descriptors in one message.
    max_files: usize,
    iovas: Mutex<IovaAllocator>,
}

/// The registers in a base address register (BAR) of the device.
struct Bar {
    connection: Arc<Connection>,
    region: u32,
    bytes: u64,
}

/// Connects to the server at `path` and enables memory space and bus mastering.
pub fn open(path: &Path) -> Result<Arc<dyn Device>, DeviceError> {
    let name = format!("vfio-user:{}", path.display());
    let error = |why: String| DeviceError::new(&*name, why);
    let stream = UnixStream::connect(path).map_err(|source| {
        error(format!(
            "cannot connect: {source}; start the server; for an emulated card, run: daq emulate xdma --socket {}",
            path.display()
        ))
    })?;
    stream
        .set_read_timeout(Some(TIMEOUT))
        .and_then(|()| stream.set_write_timeout(Some(TIMEOUT)))
        .map_err(|source| error(format!("cannot configure the connection: {source}")))?;
    let connection = Arc::new(Connection {
        name: name.clone(),
        state: Mutex::new(State {
            stream,
            receiver: Receiver::default(),
            next: 0,
            broken: None,
        }),
    });
    VfioUserDevice::new(connection).map(|remote| Arc::new(remote) as Arc<dyn Device>)
}

impl Connection {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request, waits for the reply and decodes it with `read`.
    fn request<R>(
        &self,
        command: Command,
        payload: &[&[u8]],
        files: &[BorrowedFd<'_>],
        read: impl FnOnce(&mut Fields<'_>) -> Option<R>,
    ) -> Result<R, Failure> {
        let mut state = self.lock();
        let state = &mut *state;
        let reply = state.reply(command, payload, files);
        if let Err(broken) = reply {
            state.broken = Some(broken);
            // The server detects the closed connection.
            let _ = state.stream.shutdown(std::net::Shutdown::Both);
            return Err(broken.into());
        }
        if let Some(error) = state.receiver.header().refused() {
            return Err(match i32::try_from(error) {
                Ok(error) if ERRORS.contains(&error) => {
                    Failure::Refused(Errno::from_raw_os_error(error))
                }
                _ => Failure::InvalidReply("an error without a valid error number"),
            });
        }
        read(&mut Fields(state.receiver.payload()))
            .ok_or(Failure::InvalidReply("the payload is too short"))
    }

    /// Sends a message without waiting for a reply. The next request reports a failed connection.
    fn post(&self, command: Command, payload: &[&[u8]]) {
        let mut state = self.lock();
        if state.broken.is_some() {
            return;
        }
        let bytes = payload.iter().map(|part| part.len()).sum();
        let header = Header::post(state.id(), command, bytes);
        if let Err(broken) = send(&state.stream, header, payload, &[]) {
            state.broken = Some(broken);
        }
    }

    fn read_region(&self, region: u32, offset: u64, bytes: &mut [u8]) -> Result<(), Failure> {
        let access = Access {
            offset,
            region,
            count: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        };
        let reply = |fields: &mut Fields<'_>| {
            fields.skip(Access::BYTES)?;
            bytes.copy_from_slice(fields.0.get(..bytes.len())?);
            Some(())
        };
        self.request(Command::RegionRead, &[&access.to_bytes()], &[], reply)
    }

    fn write_config(&self, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        let access = Access {
            offset,
            region: CONFIG_REGION,
            count: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        };
        let payload = [&access.to_bytes()[..], bytes];
        self.request(Command::RegionWrite, &payload, &[], |_| Some(()))
    }

    /// Returns the size of a region in bytes.
    fn region_bytes(&self, region: u32) -> Result<u64, Failure> {
        let requested = long_words([32, 0], [region.into(), 0, 0]);
        self.request(Command::RegionInfo, &[&requested], &[], |fields| {
            fields.skip(16)?;
            fields.u64()
        })
    }

    /// Returns the number of interrupts of a type.
    fn vectors(&self, kind: u32) -> Result<u32, Failure> {
        let requested = words([16, 0, kind, 0]);
        self.request(Command::IrqInfo, &[&requested], &[], |fields| {
            fields.skip(12)?;
            fields.u32()
        })
    }

    fn broken(&self) -> Option<ConnectionError> {
        self.lock().broken
    }
}

impl State {
    fn id(&mut self) -> u16 {
        self.next = self.next.wrapping_add(1);
        self.next
    }

    fn reply(
        &mut self,
        command: Command,
        payload: &[&[u8]],
        files: &[BorrowedFd<'_>],
    ) -> Result<(), ConnectionError> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        let bytes = payload.iter().map(|part| part.len()).sum();
        let header = Header::request(self.id(), command, bytes);
        send(&self.stream, header, payload, files)?;
        let deadline = Instant::now() + TIMEOUT;
        let mut foreign = 0;
        while foreign < MAX_UNRELATED_MESSAGES {
            self.wait(deadline)?;
            let received = self.receiver.receive(&self.stream, RecvFlags::DONTWAIT)?;
            if received == Received::Nothing {
                continue;
            }
            let reply = self.receiver.header();
            if reply.is_reply() && reply.id == header.id {
                return Ok(());
            }
            // All memory is mapped with a descriptor, so the server need not access it by messages.
            if reply.is_request() && reply.wants_reply() {
                send(&self.stream, reply.refusal(errno::NOT_SUPPORTED), &[], &[])?;
            }
            // Replies to posted messages are ignored.
            foreign += 1;
        }
        Err(ConnectionError::Silent)
    }

    /// Waits until the stream is readable, at the latest until `deadline`.
    fn wait(&self, deadline: Instant) -> Result<(), ConnectionError> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).ok();
            let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
            match poll(&mut fds, left.as_ref()) {
                Ok(0) => return Err(ConnectionError::Silent),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl VfioUserDevice {
    fn new(connection: Arc<Connection>) -> Result<Self, DeviceError> {
        let failed = |what: &'static str| {
            let name = &*connection.name;
            move |failure: Failure| DeviceError::new(name, format!("{what}: {failure}"))
        };
        let max_files = negotiate(&connection).map_err(|failure| match failure {
            // A server accepts one client at a time and closes other connections without a message.
            Failure::ConnectionError(ConnectionError::Closed) => DeviceError::new(
                &*connection.name,
                "the server closed the connection: another process uses the card, or the server is exiting; stop the other \
                 process, or start another server",
            ),
            failure => failed("cannot negotiate the protocol version")(failure),
        })?;
        let mut header = [0; 64];
        connection
            .read_region(CONFIG_REGION, 0, &mut header)
            .map_err(failed("cannot read the configuration space"))?;
        let mut sizes = [0; BARS];
        for (region, bytes) in (0..).zip(&mut sizes) {
            *bytes = connection
                .region_bytes(region)
                .map_err(failed("cannot read the sizes of the BARs"))?;
        }
        let mut vectors = (MSIX, connection.vectors(MSIX).unwrap_or(0));
        if vectors.1 == 0 {
            vectors = (MSI, connection.vectors(MSI).unwrap_or(0));
        }
        connection
            .write_config(COMMAND, &MEMORY_AND_MASTER)
            .map_err(failed("cannot enable bus mastering"))?;
        let half = |place: usize| u16::from_le_bytes([header[place], header[place + 1]]);
        Ok(Self {
            identity: Identity {
                vendor: half(0),
                device: half(2),
                class: u32::from_le_bytes([header[9], header[10], header[11], 0]),
            },
            sizes,
            vectors,
            max_files,
            iovas: Mutex::default(),
            connection,
        })
    }

    fn iovas(&self) -> MutexGuard<'_, IovaAllocator> {
        self.iovas.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, why: impl Into<String>) -> DeviceError {
        DeviceError::new(&*self.connection.name, why)
    }

    fn dma_error(&self, action: String, failure: &Failure) -> DmaError {
        let device = self.connection.name.clone();
        match failure {
            Failure::ConnectionError(ConnectionError::Closed) => DmaError::Gone { device },
            failure => DmaError::Refused {
                device,
                action,
                why: failure.to_string(),
            },
        }
    }
}

/// Negotiates the protocol version. Returns the maximum number of descriptors in one message.
fn negotiate(connection: &Connection) -> Result<usize, Failure> {
    let mut payload = [VERSION.0.to_le_bytes(), VERSION.1.to_le_bytes()].concat();
    let capabilities = serde_json::json!({ "capabilities": { "max_msg_fds": MAX_FILES } });
    payload.extend(capabilities.to_string().bytes());
    payload.push(0);
    let (major, capabilities) =
        connection.request(Command::Version, &[&payload], &[], |fields| {
            let major = fields.u16()?;
            fields.u16()?;
            Some((major, fields.0.to_vec()))
        })?;
    if major != VERSION.0 {
        return Err(Failure::InvalidReply("unsupported protocol version"));
    }
    let text = capabilities.split(|byte| *byte == 0).next().unwrap_or(&[]);
    let capabilities: serde_json::Value = serde_json::from_slice(text).unwrap_or_default();
    // The default of the protocol applies if the server does not announce a number.
    let max = capabilities["capabilities"]["max_msg_fds"]
        .as_u64()
        .unwrap_or(1);
    Ok(usize::try_from(max).unwrap_or(1).clamp(1, MAX_FILES))
}

impl DmaDevice for VfioUserDevice {
    fn name(&self) -> &str {
        &self.connection.name
    }

    fn map(&self, region: &Arc<Region>) -> Result<u64, DmaError> {
        let memory = || format!("{} bytes of {} memory", region.bytes(), region.placement());
        let Some(file) = region.file() else {
            return Err(DmaError::Unreachable {
                device: self.connection.name.clone(),
                memory: memory(),
                why: "the server is another process, which can map only memory with a file descriptor; use shared host memory".to_owned(),
            });
        };
        let bytes = region.bytes() as u64;
        let action = || format!("mapping {}", memory());
        let address = self
            .iovas()
            .allocate(bytes)
            .ok_or_else(|| DmaError::Refused {
                device: self.connection.name.clone(),
                action: action(),
                why: "no free addresses are left; lower `slots` or `slot` of the ring".to_owned(),
            })?;
        let payload = long_words([32, MAY_READ | MAY_WRITE], [0, address, bytes]);
        self.connection
            .request(Command::DmaMap, &[&payload], &[file], |_| Some(address))
            .map_err(|failure| {
                self.iovas().free(address);
                self.dma_error(action(), &failure)
            })
    }

    fn unmap(&self, address: u64, bytes: usize) -> Result<(), DmaError> {
        let payload = long_words([24, 0], [address, bytes as u64]);
        match self
            .connection
            .request(Command::DmaUnmap, &[&payload], &[], |_| Some(()))
        {
            Ok(()) => {
                self.iovas().free(address);
                Ok(())
            }
            // A server that has exited or closed the connection no longer maps the memory, because Linux unmaps the
            // memory of a process before it closes its sockets.
            Err(Failure::ConnectionError(ConnectionError::Closed)) => Ok(()),
            Err(failure) => {
                Err(self.dma_error(format!("unmapping {bytes} bytes at {address:#x}"), &failure))
            }
        }
    }

    fn disable_and_reset(&self) -> Result<(), DmaError> {
        let done = self
            .connection
            .write_config(COMMAND, &MEMORY_ALONE)
            .and_then(|()| {
                self.connection
                    .request(Command::Reset, &[], &[], |_| Some(()))
            })
            // The reset disables the memory space, but the registers are still read afterwards.
            .and_then(|()| self.connection.write_config(COMMAND, &MEMORY_ALONE));
        match done {
            // A removed device no longer writes.
            Ok(())
            | Err(
                Failure::ConnectionError(ConnectionError::Closed) | Failure::Refused(Errno::NODEV),
            ) => Ok(()),
            Err(failure) => Err(self.dma_error(
                "disabling bus mastering and resetting the device".to_owned(),
                &failure,
            )),
        }
    }
}

impl Device for VfioUserDevice {
    fn identity(&self) -> Identity {
        self.identity
    }

    fn registers(&self, bar: usize) -> Result<Arc<dyn Registers>, DeviceError> {
        let bytes = self.sizes.get(bar).copied().unwrap_or(0);
        match u32::try_from(bar) {
            Ok(region) if bytes > 0 => Ok(Arc::new(Bar {
                connection: self.connection.clone(),
                region,
                bytes,
            })),
            _ => Err(self.error(format!("the device has no BAR {bar}"))),
        }
    }

    fn interrupts(&self, count: usize) -> Result<Vec<Interrupt>, DeviceError> {
        let (kind, max) = self.vectors;
        if count > max as usize {
            return Err(self.error(format!(
                "{count} interrupt vectors are needed, but the device has {max}"
            )));
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let events: Vec<OwnedFd> = (0..count)
            .map(|_| eventfd(0, flags))
            .collect::<Result<_, _>>()
            .map_err(|errno| {
                self.error(format!(
                    "cannot create an eventfd for an interrupt: {errno}"
                ))
            })?;
        let mut start = 0;
        for events in events.chunks(self.max_files) {
            let events: Vec<_> = events.iter().map(AsFd::as_fd).collect();
            let count = u32::try_from(events.len()).unwrap_or(0);
            let payload = words([20, IRQ_TRIGGER | IRQ_DATA_EVENT, kind, start, count]);
            self.connection
                .request(Command::SetIrqs, &[&payload], &events, |_| Some(()))
                .map_err(|failure| {
                    self.error(format!(
                        "cannot connect {count} interrupt vectors: {failure}"
                    ))
                })?;
            start += count;
        }
        Ok(events.into_iter().map(Interrupt::new).collect())
    }

    fn reset(&self) -> Result<(), DeviceError> {
        self.connection
            .request(Command::Reset, &[], &[], |_| Some(()))
            .and_then(|()| self.connection.write_config(COMMAND, &MEMORY_AND_MASTER))
            .map_err(|failure| self.error(format!("cannot reset the device: {failure}")))
    }

    fn as_dma(self: Arc<Self>) -> Arc<dyn DmaDevice> {
        self
    }
}

impl Registers for Bar {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64) -> u32 {
        let mut word = [0; 4];
        match self.connection.read_region(self.region, offset, &mut word) {
            Ok(()) => u32::from_le_bytes(word),
            Err(failure) => {
                if self.connection.broken().is_none() {
                    static LIMIT: LogLimit = LogLimit::new();
                    LIMIT.run(|suppressed| {
                        tracing::warn!(
                            "{}: cannot read offset {offset:#x} of BAR {}: {failure}{suppressed}",
                            self.connection.name,
                            self.region
                        );
                    });
                }
                GONE
            }
        }
    }

    fn write(&self, offset: u64, value: u32) {
        let access = Access {
            offset,
            region: self.region,
            count: 4,
        };
        let payload: [&[u8]; 2] = [&access.to_bytes(), &value.to_le_bytes()];
        self.connection.post(Command::RegionWrite, &payload);
    }
}

impl fmt::Debug for VfioUserDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VfioUserDevice")
            .field("name", &self.connection.name)
            .finish_non_exhaustive()
    }
}
