//! Tests of an emulated device whose client maps memory without a file descriptor and serves reads and writes of that
//! memory by messages.
//!
//! The client is written from the vfio-user specification and shares no code with the server.

use daq_drivers::fpga::transports::emulated::EmulatedOptions;
use daq_emulators::build;
use daq_emulators::pattern::{Pattern, verify};
use daq_emulators::vfio_user::Server;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Numbers of the commands.
mod command {
    pub const VERSION: u16 = 1;
    pub const DMA_MAP: u16 = 2;
    pub const REGION_READ: u16 = 9;
    pub const REGION_WRITE: u16 = 10;
    pub const DMA_READ: u16 = 11;
    pub const DMA_WRITE: u16 = 12;
}

/// Device address and size in bytes of the client's memory.
const BASE: u64 = 0x10_0000;
const BYTES: usize = 0x2_0000;
/// Maximum number of bytes per access, as announced by the client.
const MAX_DATA: usize = 4096;
/// Offsets in the client's memory: results, the count that is written back, slots. The descriptors are at offset 0.
const RESULTS: usize = 0x1000;
const COUNT: usize = 0x2000;
const SLOTS: usize = 0x1_0000;
const SLOT: usize = 16 << 10;

/// A client with its own memory.
struct Client {
    stream: UnixStream,
    memory: Vec<u8>,
    reads: usize,
    writes: usize,
    next: u16,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

impl Client {
    fn send(&mut self, id: u16, command: u16, flags: u32, payload: &[u8]) {
        let mut message = Vec::new();
        message.extend(id.to_le_bytes());
        message.extend(command.to_le_bytes());
        message.extend(u32::try_from(16 + payload.len()).unwrap().to_le_bytes());
        message.extend(flags.to_le_bytes());
        message.extend(0_u32.to_le_bytes());
        message.extend(payload);
        self.stream.write_all(&message).unwrap();
    }

    /// Receives a message: id, command, flags, error, payload.
    fn receive(&mut self) -> (u16, u16, u32, u32, Vec<u8>) {
        let mut header = [0; 16];
        self.stream.read_exact(&mut header).unwrap();
        let mut payload = vec![0; word(&header, 4) as usize - 16];
        self.stream.read_exact(&mut payload).unwrap();
        let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let (flags, error) = (word(&header, 8), word(&header, 12));
        (half(0), half(2), flags, error, payload)
    }

    /// Sends a request and serves requests of the device until the reply arrives. Returns the payload of the reply, or
    /// the error number in the reply.
    fn ask(&mut self, command: u16, payload: &[u8]) -> Result<Vec<u8>, u32> {
        // Masks of the header flags: the message type (0 is a command), and whether a reply is an error.
        const KIND: u32 = 15;
        const ERROR: u32 = 32;
        self.next += 1;
        let id = self.next;
        self.send(id, command, 0, payload);
        loop {
            let (of, asked, flags, error, payload) = self.receive();
            if flags & KIND == 0 {
                self.serve(of, asked, &payload);
                continue;
            }
            assert_eq!((of, asked), (id, command));
            return if flags & ERROR == 0 {
                Ok(payload)
            } else {
                Err(error)
            };
        }
    }

    /// Replies to a request of the device.
    fn serve(&mut self, id: u16, command: u16, payload: &[u8]) {
        let (address, count) = (long(payload, 0), long(payload, 8));
        let at = usize::try_from(address - BASE).unwrap();
        let count = usize::try_from(count).unwrap();
        assert!(count > 0 && count <= MAX_DATA && at + count <= BYTES);
        let mut reply = payload[..16].to_vec();
        match command {
            command::DMA_READ => {
                reply.extend(&self.memory[at..at + count]);
                self.reads += 1;
            }
            command::DMA_WRITE => {
                self.memory[at..at + count].copy_from_slice(&payload[16..]);
                self.writes += 1;
            }
            command => panic!("the card sent the unexpected command {command}"),
        }
        self.send(id, command, 1, &reply);
    }

    fn write_region(&mut self, region: u32, offset: u64, bytes: &[u8]) {
        let mut payload = offset.to_le_bytes().to_vec();
        payload.extend(region.to_le_bytes());
        payload.extend(u32::try_from(bytes.len()).unwrap().to_le_bytes());
        payload.extend(bytes);
        self.ask(command::REGION_WRITE, &payload).unwrap();
    }

    /// Enables memory accesses and bus mastering in the configuration space.
    fn enable(&mut self) {
        const CONFIG: u32 = 7;
        self.write_region(CONFIG, 4, &[6, 0]);
    }

    fn write(&mut self, offset: u64, value: u32) {
        self.write_region(1, offset, &value.to_le_bytes());
    }

    fn read(&mut self, offset: u64) -> u32 {
        let mut payload = offset.to_le_bytes().to_vec();
        payload.extend(1_u32.to_le_bytes());
        payload.extend(4_u32.to_le_bytes());
        word(&self.ask(command::REGION_READ, &payload).unwrap(), 16)
    }

    fn map(&mut self, address: u64, offset: u64, bytes: u64) -> Result<Vec<u8>, u32> {
        let mut payload = Vec::new();
        payload.extend(32_u32.to_le_bytes());
        payload.extend(3_u32.to_le_bytes());
        for value in [offset, address, bytes] {
            payload.extend(value.to_le_bytes());
        }
        self.ask(command::DMA_MAP, &payload)
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// Starts a thread that serves a device, and calls `check` with a connected client.
fn with_card(check: impl FnOnce(&mut Client)) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("card.sock");
    let (mut stop, signal) = UnixStream::pair().unwrap();
    let server = Server::bind(&path).unwrap();
    let card = build("xdma", &EmulatedOptions::default()).unwrap();
    let thread = std::thread::spawn(move || server.serve(card, signal.as_fd(), false));
    let stream = UnixStream::connect(&path).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_mins(1)))
        .unwrap();
    let mut client = Client {
        stream,
        memory: vec![0; BYTES],
        reads: 0,
        writes: 0,
        next: 0,
    };
    let capabilities = format!("{{\"capabilities\":{{\"max_data_xfer_size\":{MAX_DATA}}}}}\0");
    let mut version = vec![0, 0, 1, 0];
    version.extend(capabilities.bytes());
    client.ask(command::VERSION, &version).unwrap();
    check(&mut client);
    drop(client);
    stop.write_all(&[0]).unwrap();
    thread.join().unwrap().unwrap();
}

#[test]
fn memory_without_descriptor_is_accessed_by_messages() {
    with_card(|client| {
        client.map(BASE, 0, BYTES as u64).unwrap();
        // Enables memory accesses and bus mastering.
        client.enable();
        for slot in 0..4 {
            let at = 32 * slot;
            let next = BASE + 32 * ((slot + 1) % 4) as u64;
            client.put(at, &0xad4b_0002_u32.to_le_bytes());
            client.put(at + 4, &u32::try_from(SLOT).unwrap().to_le_bytes());
            let result = BASE + (RESULTS + 32 * slot) as u64;
            client.put(at + 8, &result.to_le_bytes());
            let to = BASE + (SLOTS + SLOT * slot) as u64;
            client.put(at + 16, &to.to_le_bytes());
            client.put(at + 24, &next.to_le_bytes());
        }
        let count = u32::try_from(BASE).unwrap() + u32::try_from(COUNT).unwrap();
        for (offset, value) in [
            (0x6024, 1 << 16),
            (0x1088, count),
            (0x108c, 0),
            (0x5080, u32::try_from(BASE).unwrap()),
            (0x5084, 0),
            (0x5088, 0),
            (0x1004, 1 | 0x00f8_3e7e | 1 << 26),
            (0x508c, 4),
        ] {
            client.write(offset, value);
        }
        let deadline = Instant::now() + Duration::from_mins(1);
        while word(&client.memory, COUNT) & 0xff_ffff < 4 {
            assert!(
                Instant::now() < deadline,
                "the device has not written 4 completed descriptors within a minute"
            );
            // The device may access memory at any time, so requests in both directions overlap.
            assert_eq!(client.read(0x1000) >> 16, 0x1fc1);
        }
        for slot in 0..4 {
            let result = long(&client.memory, RESULTS + 32 * slot);
            assert_eq!(result >> 32, SLOT as u64);
            let bytes = &client.memory[SLOTS + SLOT * slot..][..SLOT];
            let at = (SLOT * slot) as u64;
            assert_eq!(verify(Pattern::Counter, 4096, at, bytes), None);
        }
        assert!(client.reads > 0 && client.writes >= 4 * SLOT / MAX_DATA);
    });
}

#[test]
fn unaligned_mapping_is_rejected() {
    const EINVAL: u32 = 22;
    const EEXIST: u32 = 17;
    with_card(|client| {
        for (address, offset, bytes) in [
            (BASE + 8, 0, 4096),
            (BASE, 8, 4096),
            (BASE, 0, 4100),
            (BASE, 0, 0),
            (u64::MAX - 4095, 0, 8192),
        ] {
            let refused = client.map(address, offset, bytes);
            assert_eq!(refused, Err(EINVAL), "{address:#x} {offset:#x} {bytes}");
        }
        client.map(BASE, 0, 8192).unwrap();
        assert_eq!(client.map(BASE + 4096, 0, 4096), Err(EEXIST));
    });
}

/// If a client does not reply, the device counts a fault and continues.
#[test]
fn client_disconnect_ends_only_its_connection() {
    with_card(|client| {
        client.map(BASE, 0, BYTES as u64).unwrap();
        client.enable();
        client.write(0x5080, u32::try_from(BASE).unwrap());
        client.write(0x1004, 1);
        let (_, command, flags, _, _) = client.receive();
        assert_eq!((command, flags & 15), (command::DMA_READ, 0));
    });
}
