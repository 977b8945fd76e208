//! A device in another process, reached by the vfio-user protocol.
//!
//! Its server is given our memory as files and our events for its interrupts; everything else are messages. Writes to
//! registers are posted: they are not answered, and a read is answered after them. A connection that is closed is a device
//! that is gone.

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

/// How long a server may take to reply: far longer than one that is well does.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Messages that may come before an reply: the numbers of what was posted before it, of 16 bits, are used up by then.
const MAX_UNRELATED_MESSAGES: u32 = 1 << 16;
/// Error numbers that Linux has.
const ERRORS: std::ops::RangeInclusive<i32> = 1..=4095;

/// Configuration space: the command register, and its bits for memory and bus mastering.
const COMMAND: u64 = 0x04;
const MEMORY_AND_MASTER: [u8; 2] = [0x06, 0x00];
const MEMORY_ALONE: [u8; 2] = [0x02, 0x00];

/// Why something that was asked of the server was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Failure {
    /// It answered with an error.
    #[error("the server refused: {0}")]
    Refused(Errno),
    /// It answered what the protocol does not foresee.
    #[error("the server's reply is not understood: {0}")]
    InvalidReply(&'static str),
    /// It cannot be asked any more.
    #[error("{0}")]
    ConnectionError(#[from] ConnectionError),
}

/// The connection and what is asked through it.
struct Connection {
    name: String,
    state: Mutex<State>,
}

struct State {
    stream: UnixStream,
    receiver: Receiver,
    next: u16,
    /// Why nothing can be asked any more.
    broken: Option<ConnectionError>,
}

/// The device.
struct VfioUserDevice {
    connection: Arc<Connection>,
    identity: Identity,
    sizes: [u64; BARS],
    /// The kind of interrupts that is used, and how many there are.
    vectors: (u32, u32),
    /// Events that the server takes in one message.
    max_files: usize,
    iovas: Mutex<IovaAllocator>,
}

/// One base address register.
struct Bar {
    connection: Arc<Connection>,
    region: u32,
    bytes: u64,
}

/// Connects with the server at `path`, and enables memory and bus mastering.
pub fn open(path: &Path) -> Result<Arc<dyn Device>, DeviceError> {
    let name = format!("vfio-user:{}", path.display());
    let error = |why: String| DeviceError::new(&*name, why);
    let stream = UnixStream::connect(path).map_err(|source| {
        error(format!(
            "{source}: no card is served there; start its server, for a card of software: daq emulate xdma --socket {}",
            path.display()
        ))
    })?;
    stream
        .set_read_timeout(Some(TIMEOUT))
        .and_then(|()| stream.set_write_timeout(Some(TIMEOUT)))
        .map_err(|source| error(format!("setting up the connection: {source}")))?;
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

    /// Asks, waits for the reply and has `read` understand it.
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
            // Whoever is at the other end learns that this is over.
            let _ = state.stream.shutdown(std::net::Shutdown::Both);
            return Err(broken.into());
        }
        if let Some(error) = state.receiver.header().refused() {
            return Err(match i32::try_from(error) {
                Ok(error) if ERRORS.contains(&error) => {
                    Failure::Refused(Errno::from_raw_os_error(error))
                }
                _ => Failure::InvalidReply("it is an error without a number"),
            });
        }
        read(&mut Fields(state.receiver.payload())).ok_or(Failure::InvalidReply("it is too short"))
    }

    /// Tells without waiting; a connection that fails is noticed by whoever asks next.
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

    /// Bytes of a region.
    fn region_bytes(&self, region: u32) -> Result<u64, Failure> {
        let asked = long_words([32, 0], [region.into(), 0, 0]);
        self.request(Command::RegionInfo, &[&asked], &[], |fields| {
            fields.skip(16)?;
            fields.u64()
        })
    }

    /// Interrupts of a kind.
    fn vectors(&self, kind: u32) -> Result<u32, Failure> {
        let asked = words([16, 0, kind, 0]);
        self.request(Command::IrqInfo, &[&asked], &[], |fields| {
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
            // All memory is mapped with a file, so a server has no reason to request for it by messages.
            if reply.is_request() && reply.wants_reply() {
                send(&self.stream, reply.refusal(errno::NOT_SUPPORTED), &[], &[])?;
            }
            // A server that answers what was posted is let.
            foreign += 1;
        }
        Err(ConnectionError::Silent)
    }

    /// Waits until something can be received, `deadline` at the latest.
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
            // Servers have one user at a time and turn others away without a word.
            Failure::ConnectionError(ConnectionError::Closed) => DeviceError::new(
                &*connection.name,
                "the card is in use by another process, or its server is about to end: it closed the connection at \
                 once; stop the other process, or serve a card of its own",
            ),
            failure => failed("agreeing on a version")(failure),
        })?;
        let mut header = [0; 64];
        connection
            .read_region(CONFIG_REGION, 0, &mut header)
            .map_err(failed("reading its configuration space"))?;
        let mut sizes = [0; BARS];
        for (region, bytes) in (0..).zip(&mut sizes) {
            *bytes = connection
                .region_bytes(region)
                .map_err(failed("asking for its registers"))?;
        }
        let mut vectors = (MSIX, connection.vectors(MSIX).unwrap_or(0));
        if vectors.1 == 0 {
            vectors = (MSI, connection.vectors(MSI).unwrap_or(0));
        }
        connection
            .write_config(COMMAND, &MEMORY_AND_MASTER)
            .map_err(failed("enabling its bus mastering"))?;
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

/// Agrees on the version; returns how many events the server takes in one message.
fn negotiate(connection: &Connection) -> Result<usize, Failure> {
    let mut payload = [VERSION.0.to_le_bytes(), VERSION.1.to_le_bytes()].concat();
    let capabilities = serde_json::json!({ "capabilities": { "max_msg_fds": MAX_FILES } });
    payload.extend(capabilities.to_string().bytes());
    payload.push(0);
    let (major, told) = connection.request(Command::Version, &[&payload], &[], |fields| {
        let major = fields.u16()?;
        fields.u16()?;
        Some((major, fields.0.to_vec()))
    })?;
    if major != VERSION.0 {
        return Err(Failure::InvalidReply("it speaks another version"));
    }
    let text = told.split(|byte| *byte == 0).next().unwrap_or(&[]);
    let told: serde_json::Value = serde_json::from_slice(text).unwrap_or_default();
    // The protocol's value where nothing is told.
    let most = told["capabilities"]["max_msg_fds"].as_u64().unwrap_or(1);
    Ok(usize::try_from(most).unwrap_or(1).clamp(1, MAX_FILES))
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
                why: "its server is another process, which can be given files alone, and this memory is none; use host memory that is shared".to_owned(),
            });
        };
        let bytes = region.bytes() as u64;
        let action = || format!("{} for it", memory());
        let address = self
            .iovas()
            .allocate(bytes)
            .ok_or_else(|| DmaError::Refused {
                device: self.connection.name.clone(),
                action: action(),
                why: "no addresses are left; map less".to_owned(),
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
            // A server that has ended, or has left us, has no memory of ours any more: a process that ends loses its memory
            // before its sockets are closed.
            Err(Failure::ConnectionError(ConnectionError::Closed)) => Ok(()),
            Err(failure) => Err(self.dma_error(
                format!("taking {bytes} bytes at {address:#x} from it"),
                &failure,
            )),
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
            // A reset takes the registers away, too, and they are still to tell how it is.
            .and_then(|()| self.connection.write_config(COMMAND, &MEMORY_ALONE));
        match done {
            // A device that was pulled out of its server, or with it, writes nothing any more.
            Ok(())
            | Err(
                Failure::ConnectionError(ConnectionError::Closed) | Failure::Refused(Errno::NODEV),
            ) => Ok(()),
            Err(failure) => Err(self.dma_error("cutting it off the bus".to_owned(), &failure)),
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
            _ => Err(self.error(format!("it has no base address register {bar}"))),
        }
    }

    fn interrupts(&self, count: usize) -> Result<Vec<Interrupt>, DeviceError> {
        let (kind, most) = self.vectors;
        if count > most as usize {
            return Err(self.error(format!(
                "{count} interrupt vectors were asked for, and it has {most}"
            )));
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let events: Vec<OwnedFd> = (0..count)
            .map(|_| eventfd(0, flags))
            .collect::<Result<_, _>>()
            .map_err(|errno| self.error(format!("an event for an interrupt: {errno}")))?;
        let mut start = 0;
        for events in events.chunks(self.max_files) {
            let events: Vec<_> = events.iter().map(AsFd::as_fd).collect();
            let count = u32::try_from(events.len()).unwrap_or(0);
            let payload = words([20, IRQ_TRIGGER | IRQ_DATA_EVENT, kind, start, count]);
            self.connection
                .request(Command::SetIrqs, &[&payload], &events, |_| Some(()))
                .map_err(|failure| {
                    self.error(format!("connecting {count} interrupt vectors: {failure}"))
                })?;
            start += count;
        }
        Ok(events.into_iter().map(Interrupt::new).collect())
    }

    fn reset(&self) -> Result<(), DeviceError> {
        self.connection
            .request(Command::Reset, &[], &[], |_| Some(()))
            .and_then(|()| self.connection.write_config(COMMAND, &MEMORY_AND_MASTER))
            .map_err(|failure| self.error(format!("resetting it: {failure}")))
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
                            "{}: reading {offset:#x} of base address register {}: {failure}{suppressed}",
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
