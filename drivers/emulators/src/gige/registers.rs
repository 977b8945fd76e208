//! The register memory of a camera: bootstrap registers, the camera's own registers, and its description file.

use super::Options;
use daq_drivers::sys::interface::netmask;
use std::net::{Ipv4Addr, SocketAddrV4};

/// The description file, which contains the addresses of the camera's own registers.
const DESCRIPTION: &[u8] = include_bytes!("camera.xml");
/// Address of the description file.
const DESCRIPTION_AT: usize = 0x1_0000;

/// The supported and the current ways in which the camera gets its IP address.
const IP_SUPPORTED: u32 = 0x10;
const IP_CURRENT: u32 = 0x14;
/// The address is stored in the camera.
const PERSISTENT_IP: u32 = 1;
pub(super) const HEARTBEAT: u32 = 0x938;
pub(super) const CCP: u32 = 0xa00;
pub(super) const SCP: u32 = 0xd00;
pub(super) const SCPS: u32 = 0xd04;
pub(super) const SCDA: u32 = 0xd18;
pub(super) const WIDTH: u32 = 0xe000;
pub(super) const HEIGHT: u32 = 0xe004;
pub(super) const FORMAT: u32 = 0xe008;
pub(super) const ACQUISITION: u32 = 0xe00c;
const MODE: u32 = 0xe010;
const PAYLOAD: u32 = 0xe014;
/// Packet delay, configuration of the stream channel, event and message channels.
const OTHERS: [u32; 4] = [0xd08, 0xd24, 0xb00, 0xb10];

const BAD_ADDRESS: u16 = 0x8003;
const READ_ONLY: u16 = 0x8004;

/// The register memory, big-endian.
#[derive(Clone, Debug)]
pub(super) struct Registers(Vec<u8>);

impl Registers {
    /// Returns the state after power-on.
    pub(super) fn new(options: &Options, address: SocketAddrV4) -> Self {
        let bytes = (DESCRIPTION_AT + DESCRIPTION.len()).next_multiple_of(4);
        let mut registers = Self(vec![0; bytes]);
        let [a, b, c, d] = address.ip().octets();
        let [high, low] = [[2, 0].as_slice(), &[a, b, c, d]];
        for (at, text) in [
            (0x0a, high),
            (0x0c, low),
            (0x48, b"daq"),
            (0x68, b"EmulatedCamera"),
            (0x88, b"1"),
            (0xd8, options.serial.as_bytes()),
            (0x200, Self::url().as_bytes()),
            (DESCRIPTION_AT, DESCRIPTION),
        ] {
            registers.0[at..][..text.len()].copy_from_slice(text);
        }
        for (at, value) in [
            (0x0, 0x0002_0000),
            (0x4, 0x8000_0001),
            (IP_SUPPORTED, PERSISTENT_IP),
            (IP_CURRENT, PERSISTENT_IP),
            (0x24, address.ip().to_bits()),
            (0x34, netmask(*address.ip()).map_or(0, Ipv4Addr::to_bits)),
            (0x904, 1),
            (0x934, if options.resend { 0b100 } else { 0 }),
            (HEARTBEAT, options.heartbeat_ms),
            (0x940, options.tick_rate),
            (SCPS, 1500),
            (WIDTH, options.width),
            (HEIGHT, options.height),
            (FORMAT, options.pixel_format),
            (MODE, 1),
        ] {
            registers.set(at, value);
        }
        registers.update();
        registers
    }

    fn url() -> String {
        format!(
            "Local:camera.xml;{DESCRIPTION_AT:x};{:x}",
            DESCRIPTION.len()
        )
    }

    /// Returns `bytes` bytes at `address`.
    pub(super) fn memory(&self, address: u32, bytes: usize) -> Result<&[u8], u16> {
        let start = usize::try_from(address).map_err(|_| BAD_ADDRESS)?;
        let memory = self.0.get(start..).and_then(|rest| rest.get(..bytes));
        memory.ok_or(BAD_ADDRESS)
    }

    pub(super) fn read(&self, address: u32) -> Result<u32, u16> {
        let memory = self.memory(address, 4)?;
        let word = memory.first_chunk().ok_or(BAD_ADDRESS)?;
        if address.is_multiple_of(4) {
            Ok(u32::from_be_bytes(*word))
        } else {
            Err(BAD_ADDRESS)
        }
    }

    /// Returns a register that exists.
    pub(super) fn get(&self, address: u32) -> u32 {
        self.read(address).unwrap_or(0)
    }

    pub(super) fn write(&mut self, address: u32, value: u32) -> Result<(), u16> {
        self.read(address)?;
        let writable = [
            HEARTBEAT,
            CCP,
            SCP,
            SCPS,
            SCDA,
            WIDTH,
            HEIGHT,
            FORMAT,
            ACQUISITION,
            MODE,
        ];
        if !writable.contains(&address) && !OTHERS.contains(&address) {
            return Err(READ_ONLY);
        }
        self.set(address, value);
        self.update();
        Ok(())
    }

    fn set(&mut self, address: u32, value: u32) {
        self.0[address as usize..][..4].copy_from_slice(&value.to_be_bytes());
    }

    /// Returns the size of an image in bytes.
    pub(super) fn payload(&self) -> u32 {
        let pixels = self.get(WIDTH).saturating_mul(self.get(HEIGHT));
        pixels.saturating_mul(self.get(FORMAT) >> 16 & 0xff) / 8
    }

    fn update(&mut self) {
        self.set(PAYLOAD, self.payload());
    }
}
