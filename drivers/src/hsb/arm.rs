//! Arms a sensor, so that it sends, and disarms it.
//!
//! The *virtual port* of a sensor sends its packets; the registers of the port hold the destination. The virtual ports of a
//! plane share its host interface, which has one enable bit per port. The registers must not change while the bit is set, so
//! arming clears the bit first and sets it last. Disarming reverses these steps, unless another host has armed the sensor
//! meanwhile.
//!
//! In between, the plane's packet size and source port are written before the sensor's registers, and the host's port is
//! written last. The vendor's software uses this order. The vendor's emulator starts to send as soon as the host's port is
//! set; without a packet size it would send empty packets forever.
//!
//! The enable bits can only be changed by reading and writing the whole mask. Sources of one process use a lock. If two
//! processes arm or disarm sensors of one plane at the same moment, one can overwrite the other's bit. Arming reads the mask
//! back and fails if its bit is not set; if the bit is cleared later, the supervisor detects the silence.

use super::ecb::{Ecb, EcbError};
use super::pages::{ALIGNMENT, Pages};
use daq_core::ledger::Counter;
use std::net::SocketAddrV4;
use std::sync::{Arc, Mutex, PoisonError};

/// Host interface of plane 0.
const HOST_INTERFACE: u32 = 0x0200_0300;
/// Distance between the host interfaces of two planes.
const HOST_INTERFACE_STEP: u32 = 0x0001_0000;
/// Host interface: payload bytes per packet, divided by 128.
const PACKET: u32 = 0x04;
/// Host interface: source UDP port of the packets.
const SOURCE_PORT: u32 = 0x08;
/// Host interface: enable mask of the virtual ports, one bit each.
const MASK: u32 = 0x0c;

/// Virtual port of sensor 0.
const VIRTUAL_PORT: u32 = 0x1000;
/// Distance between the virtual ports of two sensors.
const VIRTUAL_PORT_STEP: u32 = 0x40;
/// Virtual port: queue pair.
const QUEUE_PAIR: u32 = 0x00;
/// Virtual port: memory key (rkey).
const RKEY: u32 = 0x04;
/// Virtual port: lower word of the address of page 0.
const PAGE_LOW: u32 = 0x08;
/// Virtual port: upper word of the address of page 0.
const PAGE_HIGH: u32 = 0x0c;
/// Virtual port: distance in bytes between two pages, divided by 128.
const PAGE_STEP: u32 = 0x10;
/// Virtual port: index of the last page.
const LAST_PAGE: u32 = 0x14;
/// Virtual port: size of a frame in bytes.
const FRAME: u32 = 0x18;
/// Virtual port: last four bytes of the host's MAC address.
const MAC_LOW: u32 = 0x20;
/// Virtual port: first two bytes of the host's MAC address.
const MAC_HIGH: u32 = 0x24;
/// Virtual port: the host's IPv4 address.
const HOST: u32 = 0x28;
/// Virtual port: the host's UDP port.
const HOST_PORT: u32 = 0x2c;

/// Source UDP port of sensors.
pub(super) const SENSOR_PORT: u32 = 12_288;
/// Maximum number of sensors per device: the number of bits of the enable mask.
pub(super) const MAX_SENSORS: u32 = 32;
/// Maximum number of planes per device.
pub(super) const MAX_PLANES: u32 = 32;

/// Why a sensor cannot be armed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ArmError {
    /// A register could not be read or written.
    #[error(transparent)]
    Ecb(#[from] EcbError),
    /// Other sensors of the plane use another packet size.
    #[error(
        "other sensors of plane {plane} send packets of {theirs} bytes, and all sensors of a plane share one packet \
         size: set `packet = \"{theirs} B\"`, or stop the other sensors"
    )]
    PacketSize {
        /// Number of the plane.
        plane: u32,
        /// Packet size of the other sensors, in bytes.
        theirs: u64,
    },
    /// The enable bit did not take effect.
    #[error(
        "sensor {sensor} does not send although it was enabled (mask {mask:#010x}): check that the device has this sensor"
    )]
    NotSending {
        /// Number of the sensor.
        sensor: u32,
        /// Value of the mask register.
        mask: u32,
    },
}

/// The parameters for arming a sensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArmParameters {
    /// Number of the sensor.
    pub sensor: u32,
    /// The plane through which the sensor sends.
    pub plane: u32,
    /// Destination pages, queue pair and key.
    pub pages: Pages,
    /// Destination address.
    pub host: SocketAddrV4,
    /// MAC address of the host.
    pub mac: [u8; 6],
}

impl ArmParameters {
    const fn interface(&self, register: u32) -> u32 {
        HOST_INTERFACE + HOST_INTERFACE_STEP * self.plane + register
    }

    const fn port(&self, register: u32) -> u32 {
        VIRTUAL_PORT + VIRTUAL_PORT_STEP * self.sensor + register
    }

    const fn bit(&self) -> u32 {
        1 << self.sensor
    }

    /// Returns the registers of the sensor's virtual port with their values, in write order: the host's port last.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "an address is written in two halves; the other values were checked to fit"
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
            (PAGE_STEP, (stride / ALIGNMENT as u64) as u32),
            (LAST_PAGE, count - 1),
            (FRAME, frame as u32),
            (MAC_LOW, u32::from_be_bytes([m2, m3, m4, m5])),
            (MAC_HIGH, u32::from_be_bytes([0, 0, m0, m1])),
            (HOST, self.host.ip().to_bits()),
            (HOST_PORT, self.host.port().into()),
        ]
    }
}

/// The state of a sensor's registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Registers {
    /// Unchanged since arming.
    Unchanged,
    /// The sensor does not send, or its registers have other values. Its device has restarted, or another process has
    /// cleared its bit.
    Lost,
    /// Another host has armed the sensor.
    TakenOver(SocketAddrV4),
}

/// An armed sensor; dropping it disarms the sensor.
#[derive(Debug)]
pub(super) struct Armed {
    ecb: Arc<Mutex<Ecb>>,
    parameters: ArmParameters,
    /// Whether dropping this value must disarm the sensor.
    is_started: bool,
    /// Whether all registers were written. Only then do the registers show which host armed the sensor.
    is_complete: bool,
    errors: Counter,
}

impl Armed {
    /// Arms the sensor. If that fails, the sensor is disarmed as far as possible. Failed register requests of this
    /// function, and of disarming later, are added to `errors`.
    pub(super) fn arm(
        ecb: Arc<Mutex<Ecb>>,
        parameters: ArmParameters,
        errors: Counter,
    ) -> Result<Self, ArmError> {
        let mut armed = Self {
            ecb,
            parameters,
            is_started: true,
            is_complete: false,
            errors,
        };
        // If the device does not answer, there is nothing to undo.
        if let Err(error) = armed.ask(|_, ecb| ecb.read_version()) {
            armed.forget();
            return Err(error.into());
        }
        // If a later step fails, dropping `armed` undoes the steps before.
        armed.ask(Self::start)?;
        armed.is_complete = true;
        Ok(armed)
    }

    /// Drops the value without disarming the sensor, because the device has lost its registers or cannot be reached.
    pub(super) fn forget(mut self) {
        self.is_started = false;
    }

    /// Returns the arming parameters.
    pub(super) const fn parameters(&self) -> &ArmParameters {
        &self.parameters
    }

    /// Reads the registers back and compares them with the written values.
    pub(super) fn check(&self) -> Result<Registers, EcbError> {
        self.ask(Self::read_back)
    }

    fn read_back(&self, ecb: &mut Ecb) -> Result<Registers, EcbError> {
        let parameters = &self.parameters;
        let is_sending = ecb.read(parameters.interface(MASK))? & parameters.bit() != 0;
        let mut is_unchanged = is_sending;
        for (register, word) in parameters.words() {
            is_unchanged &= ecb.read(parameters.port(register))? == word;
        }
        if is_unchanged {
            return Ok(Registers::Unchanged);
        }
        let host = ecb.read(parameters.port(HOST))?;
        let port = ecb.read(parameters.port(HOST_PORT))?;
        let is_others = is_sending && host != 0 && port != 0 && !self.has_our_values(ecb)?;
        Ok(match u16::try_from(port) {
            Ok(port) if is_others => Registers::TakenOver(SocketAddrV4::new(host.into(), port)),
            _ => Registers::Lost,
        })
    }

    /// Runs `talk` with exclusive access to the registers, which other sensors share, and counts failed requests.
    fn ask<T>(&self, talk: impl FnOnce(&Self, &mut Ecb) -> T) -> T {
        let mut ecb = self.ecb.lock().unwrap_or_else(PoisonError::into_inner);
        let before = ecb.failures();
        let result = talk(self, &mut ecb);
        self.errors.add_shared(ecb.failures() - before);
        result
    }

    fn start(&self, ecb: &mut Ecb) -> Result<(), ArmError> {
        let parameters = &self.parameters;
        let mask = ecb.read(parameters.interface(MASK))?;
        if mask & parameters.bit() != 0 {
            tracing::warn!(
                "sensor {} of {} is already enabled, for another host or by a process that was killed: taking over the \
                 sensor",
                parameters.sensor,
                ecb.device()
            );
        }
        let others = mask & !parameters.bit();
        ecb.write(parameters.interface(MASK), others)?;
        let packet = u32::try_from(parameters.pages.packet / ALIGNMENT).unwrap_or(u32::MAX);
        let theirs = ecb.read(parameters.interface(PACKET))?;
        if others != 0 && theirs != packet {
            return Err(ArmError::PacketSize {
                plane: parameters.plane,
                theirs: u64::from(theirs) * ALIGNMENT as u64,
            });
        }
        ecb.write(parameters.interface(PACKET), packet)?;
        ecb.write(parameters.interface(SOURCE_PORT), SENSOR_PORT)?;
        for (register, word) in parameters.words() {
            ecb.write(parameters.port(register), word)?;
        }
        ecb.write(parameters.interface(MASK), others | parameters.bit())?;
        let mask = ecb.read(parameters.interface(MASK))?;
        if mask & parameters.bit() == 0 {
            let sensor = parameters.sensor;
            return Err(ArmError::NotSending { sensor, mask });
        }
        Ok(())
    }

    /// Returns whether the sensor still has the key and the host written by [`start`](Self::start).
    fn has_our_values(&self, ecb: &mut Ecb) -> Result<bool, EcbError> {
        let words = self.parameters.words();
        let of_ours = |(register, _): &&(u32, u32)| [RKEY, HOST, HOST_PORT].contains(register);
        for (register, word) in words.iter().filter(of_ours) {
            if ecb.read(self.parameters.port(*register))? != *word {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn stop(&self, ecb: &mut Ecb) -> Result<(), EcbError> {
        let parameters = &self.parameters;
        if self.is_complete && !self.has_our_values(ecb)? {
            tracing::warn!(
                "sensor {} of {} now has another key or host, because another process armed the sensor; its registers \
                 are left unchanged",
                parameters.sensor,
                ecb.device()
            );
            return Ok(());
        }
        let mask = ecb.read(parameters.interface(MASK))?;
        ecb.write(parameters.interface(MASK), mask & !parameters.bit())?;
        // Clears the destination. The host interface is shared with other sensors and stays unchanged.
        for (register, _) in parameters.words().iter().rev() {
            ecb.write(parameters.port(*register), 0)?;
        }
        Ok(())
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        if self.is_started
            && let Err(error) = self.ask(Self::stop)
        {
            tracing::warn!(
                "cannot disarm sensor {}, which may still send to {}: {error}",
                self.parameters.sensor,
                self.parameters.host
            );
        }
    }
}
