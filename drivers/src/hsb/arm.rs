//! Making a sensor send, and making it stop.
//!
//! A sensor is sent to a host by a *virtual port* of the device, whose registers say where to. The ports of a plane share
//! its host interface, which has a bit for each that sends. While the bit is set the registers are in use: it is cleared
//! first and set last, and to stop all is undone in reverse, unless another has taken the sensor over meanwhile.
//!
//! Between the two the plane's packet size and source port are written before the sensor's registers, and the host's port is
//! written last: the vendor's software keeps this order, and the vendor's emulator begins to send when the host's port is
//! set, so that without a packet size it sends empty packets without end.
//!
//! The bits of the mask can only be changed together, by reading and writing them. Sources of one process take turns; of
//! two processes that arm or stop sensors of one plane in the same moment, one can undo the other's bit. Arming reads it
//! back, so that it fails rather than waits for a sensor that does not send; who is undone later sees silence.

use super::ecb::{Ecb, EcbError};
use super::pages::{GRAIN, Pages};
use daq_core::ledger::Counter;
use std::net::SocketAddrV4;
use std::sync::{Arc, Mutex, PoisonError};

/// Host interface of plane 0.
const HOST_INTERFACE: u32 = 0x0200_0300;
/// From one plane's host interface to the next.
const HOST_INTERFACE_STEP: u32 = 0x0001_0000;
/// Host interface: payload bytes of a packet / 128.
const PACKET: u32 = 0x04;
/// Host interface: the UDP port that packets come from.
const SOURCE_PORT: u32 = 0x08;
/// Host interface: the virtual ports that send, a bit each.
const MASK: u32 = 0x0c;

/// Virtual port of sensor 0.
const VIRTUAL_PORT: u32 = 0x1000;
/// From one sensor's virtual port to the next.
const VIRTUAL_PORT_STEP: u32 = 0x40;
/// Virtual port: queue pair.
const QUEUE_PAIR: u32 = 0x00;
/// Virtual port: key of the memory.
const RKEY: u32 = 0x04;
/// Virtual port: address of page 0, its lower word.
const PAGE_LOW: u32 = 0x08;
/// Virtual port: address of page 0, its upper word.
const PAGE_HIGH: u32 = 0x0c;
/// Virtual port: bytes from page to page / 128.
const PAGE_STEP: u32 = 0x10;
/// Virtual port: the last page.
const LAST_PAGE: u32 = 0x14;
/// Virtual port: bytes of a frame.
const FRAME: u32 = 0x18;
/// Virtual port: the host's MAC address, its last four bytes.
const MAC_LOW: u32 = 0x20;
/// Virtual port: the host's MAC address, its first two bytes.
const MAC_HIGH: u32 = 0x24;
/// Virtual port: the host's IPv4 address.
const HOST: u32 = 0x28;
/// Virtual port: the host's UDP port.
const HOST_PORT: u32 = 0x2c;

/// The UDP port that sensors send from.
pub const SENSOR_PORT: u32 = 12_288;
/// Sensors of a device, at most: bits of the mask.
pub const MAX_SENSORS: u32 = 32;
/// Planes of a device, at most.
pub const MAX_PLANES: u32 = 32;

/// Why a sensor could not be armed.
#[derive(Debug, thiserror::Error)]
pub enum ArmError {
    /// A register could not be read or written.
    #[error(transparent)]
    Ecb(#[from] EcbError),
    /// Other sensors of the plane send packets of another size.
    #[error(
        "other sensors of plane {plane} send packets of {theirs} bytes, and a plane has one size: set \
         `packet = \"{theirs} B\"`, or stop them"
    )]
    PacketSize {
        /// The plane.
        plane: u32,
        /// Their size.
        theirs: u64,
    },
    /// It did not take effect.
    #[error(
        "sensor {sensor} does not send although it was told to (mask {mask:#010x}): does the device have so many?"
    )]
    NotSending {
        /// The sensor.
        sensor: u32,
        /// What the register says.
        mask: u32,
    },
}

/// What a sensor is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orders {
    /// The sensor.
    pub sensor: u32,
    /// The plane that it sends through.
    pub plane: u32,
    /// Where to write, and under which names.
    pub pages: Pages,
    /// The host.
    pub host: SocketAddrV4,
    /// The host's MAC address.
    pub mac: [u8; 6],
}

impl Orders {
    const fn interface(&self, register: u32) -> u32 {
        HOST_INTERFACE + HOST_INTERFACE_STEP * self.plane + register
    }

    const fn port(&self, register: u32) -> u32 {
        VIRTUAL_PORT + VIRTUAL_PORT_STEP * self.sensor + register
    }

    const fn bit(&self) -> u32 {
        1 << self.sensor
    }

    /// The words that go to its virtual port, in order: the host's port last.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "halves of an address; the others are checked to fit"
    )]
    fn words(&self) -> [(u32, u32); 11] {
        let Pages {
            base,
            stride,
            count,
            frame,
            queue_pair,
            rkey,
            ..
        } = self.pages;
        let [m0, m1, m2, m3, m4, m5] = self.mac;
        [
            (QUEUE_PAIR, queue_pair),
            (RKEY, rkey),
            (PAGE_LOW, base as u32),
            (PAGE_HIGH, (base >> 32) as u32),
            (PAGE_STEP, (stride / GRAIN as u64) as u32),
            (LAST_PAGE, count - 1),
            (FRAME, frame as u32),
            (MAC_LOW, u32::from_be_bytes([m2, m3, m4, m5])),
            (MAC_HIGH, u32::from_be_bytes([0, 0, m0, m1])),
            (HOST, self.host.ip().to_bits()),
            (HOST_PORT, self.host.port().into()),
        ]
    }
}

/// What a sensor's registers say of an arming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registers {
    /// Everything is as it was written.
    Kept,
    /// The sensor does not send, or not as it was armed: its device has restarted, or another process cleared its bit.
    Lost,
    /// The sensor sends to another host, or with another host's key.
    TakenOver(SocketAddrV4),
}

/// A sensor that sends, until this is dropped.
#[derive(Debug)]
pub struct Armed {
    ecb: Arc<Mutex<Ecb>>,
    orders: Orders,
    /// Whether there is something to undo.
    is_begun: bool,
    /// Whether it was told everything, so that who has it is seen from its registers.
    is_told: bool,
    errors: Counter,
}

impl Armed {
    /// Has the sensor send as `orders` say. Where it fails, the sensor is stopped as far as it can be. Requests that are not
    /// answered in time, or refused, now and when it is stopped, are added to `errors`.
    pub fn arm(ecb: Arc<Mutex<Ecb>>, orders: Orders, errors: Counter) -> Result<Self, ArmError> {
        let mut armed = Self {
            ecb,
            orders,
            is_begun: true,
            is_told: false,
            errors,
        };
        // A device that does not answer is not asked again to undo what was not begun.
        if let Err(error) = armed.ask(|_, ecb| ecb.read_version()) {
            armed.forget();
            return Err(error.into());
        }
        // From here on, whatever happens, what was begun is undone when `armed` is dropped.
        armed.ask(Self::start)?;
        armed.is_told = true;
        Ok(armed)
    }

    /// Leaves the sensor as it is: its device has lost this arming, or cannot be reached.
    pub fn forget(mut self) {
        self.is_begun = false;
    }

    /// How the sensor was armed.
    pub const fn orders(&self) -> &Orders {
        &self.orders
    }

    /// Reads back what was written.
    pub fn check(&self) -> Result<Registers, EcbError> {
        self.ask(Self::read_back)
    }

    fn read_back(&self, ecb: &mut Ecb) -> Result<Registers, EcbError> {
        let orders = &self.orders;
        let is_sending = ecb.read(orders.interface(MASK))? & orders.bit() != 0;
        let mut is_kept = is_sending;
        for (register, word) in orders.words() {
            is_kept &= ecb.read(orders.port(register))? == word;
        }
        if is_kept {
            return Ok(Registers::Kept);
        }
        let host = ecb.read(orders.port(HOST))?;
        let port = ecb.read(orders.port(HOST_PORT))?;
        let is_others = is_sending && host != 0 && port != 0 && !self.is_ours(ecb)?;
        Ok(match u16::try_from(port) {
            Ok(port) if is_others => Registers::TakenOver(SocketAddrV4::new(host.into(), port)),
            _ => Registers::Lost,
        })
    }

    /// Has `talk` ask what it will, and counts what fails: the device's registers are those of other sensors too.
    fn ask<T>(&self, talk: impl FnOnce(&Self, &mut Ecb) -> T) -> T {
        let mut ecb = self.ecb.lock().unwrap_or_else(PoisonError::into_inner);
        let before = ecb.failures();
        let result = talk(self, &mut ecb);
        self.errors.add_shared(ecb.failures() - before);
        result
    }

    fn start(&self, ecb: &mut Ecb) -> Result<(), ArmError> {
        let orders = &self.orders;
        let mask = ecb.read(orders.interface(MASK))?;
        if mask & orders.bit() != 0 {
            tracing::warn!(
                "sensor {} of {} sends already, for another host or a process that was killed: it is taken over",
                orders.sensor,
                ecb.device()
            );
        }
        let others = mask & !orders.bit();
        ecb.write(orders.interface(MASK), others)?;
        let packet = u32::try_from(orders.pages.packet / GRAIN).unwrap_or(u32::MAX);
        let theirs = ecb.read(orders.interface(PACKET))?;
        if others != 0 && theirs != packet {
            return Err(ArmError::PacketSize {
                plane: orders.plane,
                theirs: u64::from(theirs) * GRAIN as u64,
            });
        }
        ecb.write(orders.interface(PACKET), packet)?;
        ecb.write(orders.interface(SOURCE_PORT), SENSOR_PORT)?;
        for (register, word) in orders.words() {
            ecb.write(orders.port(register), word)?;
        }
        ecb.write(orders.interface(MASK), others | orders.bit())?;
        let mask = ecb.read(orders.interface(MASK))?;
        if mask & orders.bit() == 0 {
            let sensor = orders.sensor;
            return Err(ArmError::NotSending { sensor, mask });
        }
        Ok(())
    }

    /// Whether the sensor is still the one that [`start`](Self::start) told.
    fn is_ours(&self, ecb: &mut Ecb) -> Result<bool, EcbError> {
        let words = self.orders.words();
        let of_ours = |(register, _): &&(u32, u32)| [RKEY, HOST, HOST_PORT].contains(register);
        for (register, word) in words.iter().filter(of_ours) {
            if ecb.read(self.orders.port(*register))? != *word {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn stop(&self, ecb: &mut Ecb) -> Result<(), EcbError> {
        let orders = &self.orders;
        if self.is_told && !self.is_ours(ecb)? {
            tracing::warn!(
                "sensor {} of {} has another's key and host now: it was taken over, and is left as it is",
                orders.sensor,
                ecb.device()
            );
            return Ok(());
        }
        let mask = ecb.read(orders.interface(MASK))?;
        ecb.write(orders.interface(MASK), mask & !orders.bit())?;
        // What comes nevertheless has nowhere to go. The host interface is the other sensors' as well.
        for (register, _) in orders.words().iter().rev() {
            ecb.write(orders.port(*register), 0)?;
        }
        Ok(())
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        if self.is_begun
            && let Err(error) = self.ask(Self::stop)
        {
            tracing::warn!(
                "sensor {} may go on sending to {}: {error}",
                self.orders.sensor,
                self.orders.host
            );
        }
    }
}
