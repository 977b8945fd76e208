//! The registers of a board, with checks that a host writes them in the right order.
//!
//! Registers of a plane (the first at 0x0200_0300, distance 0x1_0000): +04 packet size in units of 128 bytes, +08 UDP
//! source port of the data, +0C mask of the sensors that the plane sends for.
//!
//! Registers of a sensor's virtual port (the first at 0x1000, distance 0x40): +00 queue pair, +04 remote key, +08 and
//! +0C address of page 0, +10 distance of pages in units of 128 bytes, +14 last page, +18 frame size in bytes, +20 and
//! +24 Ethernet address, +28 IP address, +2C UDP port.

use super::announce::GATEWARE;
use super::packet::{METADATA, PAGE};
use super::pattern::LARGEST_FRAME;
use std::net::{Ipv4Addr, SocketAddrV4};

const PLANES: u32 = 0x0200_0300;
const PLANE: u32 = 0x1_0000;
const PACKET: u32 = 0x04;
const FROM: u32 = 0x08;
const MASK: u32 = 0x0c;

/// Addresses of the read-only registers that contain the gateware version and the gateware date.
const VERSION: u32 = 0x80;
const DATE: u32 = 0x84;
/// The gateware date.
const BUILT: u32 = 0x2026_0215;

const SENSORS: u32 = 0x1000;
const SENSOR: u32 = 0x40;
/// The offset and the name of each register of a virtual port.
const PORT: [(u32, &str); 11] = [
    (0x00, "queue pair"),
    (0x04, "remote key"),
    (0x08, "page address, low"),
    (0x0c, "page address, high"),
    (0x10, "page increment"),
    (0x14, "last page"),
    (0x18, "frame bytes"),
    (0x20, "Ethernet address, low"),
    (0x24, "Ethernet address, high"),
    (0x28, "IP address"),
    (0x2c, "UDP port"),
];
/// The index of the UDP port in [`PORT`].
const HOST_PORT: usize = 10;
/// The UDP source port of the data until a host selects another port.
const DATA: u16 = 12_288;
/// Maximum payload of a packet in bytes: the largest UDP payload over IPv4, minus packet headers, immediate data and
/// metadata.
const MAX_PAYLOAD: usize = 65_507 - 36 - METADATA;

/// The reason why a register access is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The register does not exist.
    Address,
}

/// The destination and the format of a sensor's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) to: SocketAddrV4,
    /// UDP source port of the board.
    pub(super) from: u16,
    pub(super) queue: u32,
    pub(super) key: u32,
    /// Device address of page 0.
    pub(super) base: u64,
    /// Distance in bytes between the starts of consecutive pages.
    pub(super) increment: u64,
    pub(super) last_page: u32,
    pub(super) frame: usize,
    /// Maximum number of payload bytes per packet.
    pub(super) packet: usize,
}

/// The effect of a register write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// A sensor was armed. The target is `None` if the registers contain no valid target.
    Armed(usize, Option<Target>),
    /// A sensor was disarmed.
    Disarmed(usize),
    /// The host made a mistake, which the text describes.
    Mistake(String),
    /// The host changed a register of an armed sensor, which is a mistake too.
    Changed(String),
}

#[derive(Clone, Copy, Debug, Default)]
struct Plane {
    packet: u32,
    from: u32,
    mask: u32,
    is_packet_written: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sensor {
    values: [u32; PORT.len()],
    /// One bit per register, which is set if the register was written since the sensor was last disarmed.
    written: u16,
}

/// All registers of a board.
#[derive(Clone, Debug)]
pub(super) struct Registers {
    planes: Vec<Plane>,
    sensors: Vec<Sensor>,
}

/// An existing register, with the index of its plane or of its sensor.
#[derive(Clone, Copy, Debug)]
enum Place {
    Packet(usize),
    From(usize),
    Mask(usize),
    Port(usize, usize),
    Version,
    Date,
}

impl Registers {
    pub(super) fn new(sensors: usize, planes: usize) -> Self {
        Self {
            planes: vec![
                Plane {
                    from: u32::from(DATA),
                    ..Plane::default()
                };
                planes
            ],
            sensors: vec![Sensor::default(); sensors],
        }
    }

    pub(super) fn read(&self, address: u32) -> Result<u32, Refusal> {
        Ok(match self.place(address)? {
            Place::Packet(plane) => self.planes[plane].packet,
            Place::From(plane) => self.planes[plane].from,
            Place::Mask(plane) => self.planes[plane].mask,
            Place::Port(sensor, index) => self.sensors[sensor].values[index],
            Place::Version => GATEWARE.into(),
            Place::Date => BUILT,
        })
    }

    /// Writes a register. Appends the effects to `effects` in order.
    pub(super) fn write(
        &mut self,
        address: u32,
        value: u32,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        match self.place(address)? {
            Place::Packet(plane) => {
                if self.planes[plane].packet != value {
                    self.check_idle(self.planes[plane].mask, "packet size", effects);
                }
                self.planes[plane].packet = value;
                self.planes[plane].is_packet_written = true;
            }
            Place::From(plane) => {
                if self.planes[plane].from != value {
                    self.check_idle(self.planes[plane].mask, "source port", effects);
                }
                self.planes[plane].from = value;
            }
            Place::Mask(plane) => self.mask(plane, value, effects),
            Place::Version | Place::Date => return Err(Refusal::Address),
            Place::Port(sensor, index) => {
                if index == HOST_PORT
                    && value != 0
                    && !self.planes.iter().any(|plane| plane.is_packet_written)
                {
                    effects.push(Effect::Mistake(format!(
                        "sensor {sensor}: the UDP port was written before the packet size; a board that starts to send at this \
                         write sends empty packets"
                    )));
                }
                let armed = self.planes.iter().fold(0, |all, plane| all | plane.mask);
                let (_, name) = PORT[index];
                self.check_idle(armed & (1 << sensor), name, effects);
                self.sensors[sensor].values[index] = value;
                self.sensors[sensor].written |= 1 << index;
            }
        }
        Ok(())
    }

    fn place(&self, address: u32) -> Result<Place, Refusal> {
        let within = |start: u32, step: u32, count: usize| {
            let from = address.checked_sub(start)?;
            let index = usize::try_from(from / step).ok()?;
            (index < count).then_some((index, from % step))
        };
        let plane = within(PLANES, PLANE, self.planes.len());
        let sensor = within(SENSORS, SENSOR, self.sensors.len());
        let found = match (plane, sensor) {
            _ if address == VERSION => Some(Place::Version),
            _ if address == DATE => Some(Place::Date),
            (Some((plane, PACKET)), _) => Some(Place::Packet(plane)),
            (Some((plane, FROM)), _) => Some(Place::From(plane)),
            (Some((plane, MASK)), _) => Some(Place::Mask(plane)),
            (_, Some((sensor, at))) => PORT
                .iter()
                .position(|(place, _)| *place == at)
                .map(|index| Place::Port(sensor, index)),
            _ => None,
        };
        found.ok_or(Refusal::Address)
    }

    /// Sets all registers to `initial`. Returns the effects: every armed sensor is disarmed.
    pub(super) fn reset(&mut self, initial: Self) -> Vec<Effect> {
        let armed = self.planes.iter().fold(0, |all, plane| all | plane.mask);
        *self = initial;
        (0..self.sensors.len())
            .filter(|sensor| armed & (1 << sensor) != 0)
            .map(Effect::Disarmed)
            .collect()
    }

    /// Adds a mistake for each armed sensor in the mask `armed`.
    fn check_idle(&self, armed: u32, what: &str, effects: &mut Vec<Effect>) {
        for sensor in 0..self.sensors.len() {
            if armed & (1 << sensor) != 0 {
                effects.push(Effect::Changed(format!(
                    "sensor {sensor}: {what} was written while the sensor was armed (mask bit set)"
                )));
            }
        }
    }

    fn mask(&mut self, plane: usize, value: u32, effects: &mut Vec<Effect>) {
        let before = self.planes[plane].mask;
        self.planes[plane].mask = value;
        let known = u32::MAX >> (32 - self.sensors.len().clamp(1, 32));
        if value & !known != 0 {
            effects.push(Effect::Mistake(format!(
                "plane {plane}: mask {value:#x} selects sensors that do not exist"
            )));
        }
        for sensor in 0..self.sensors.len() {
            let bit = 1 << sensor;
            if before & !value & bit != 0 {
                self.sensors[sensor].written = 0;
                effects.push(Effect::Disarmed(sensor));
            } else if value & !before & bit != 0 {
                let other = self.planes.iter().enumerate();
                let other = other
                    .filter(|(other, state)| *other != plane && state.mask & bit != 0)
                    .count();
                if other > 0 {
                    effects.push(Effect::Mistake(format!(
                        "sensor {sensor}: two planes select this sensor, but only one may"
                    )));
                    continue;
                }
                self.arm(plane, sensor, effects);
            }
        }
    }

    fn arm(&self, plane: usize, sensor: usize, effects: &mut Vec<Effect>) {
        let missing: Vec<&str> = PORT
            .iter()
            .enumerate()
            .filter(|(index, _)| self.sensors[sensor].written & (1 << index) == 0)
            .map(|(_, (_, name))| *name)
            .chain((!self.planes[plane].is_packet_written).then_some("packet size"))
            .collect();
        if !missing.is_empty() {
            effects.push(Effect::Mistake(format!(
                "sensor {sensor}: the mask bit was set before these registers were written: {}",
                missing.join(", ")
            )));
        }
        let target = match self.target(plane, sensor) {
            Ok(target) => Some(target),
            Err(why) => {
                effects.push(Effect::Mistake(format!("sensor {sensor}: {why}")));
                None
            }
        };
        effects.push(Effect::Armed(sensor, target));
    }

    /// Returns the target that the registers describe, or the reason why the target is invalid.
    fn target(&self, plane: usize, sensor: usize) -> Result<Target, String> {
        let [
            queue,
            key,
            low,
            high,
            increment,
            last_page,
            frame,
            _,
            _,
            ip,
            port,
        ] = self.sensors[sensor].values;
        let plane = &self.planes[plane];
        let bytes = |pages: u32| u64::from(pages) * PAGE as u64;
        let udp = |value: u32, what: &str| match u16::try_from(value) {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(format!("{what} is {value}, but must be 1 to 65535")),
        };
        if ip == 0 {
            return Err("the destination IP address is not set".to_owned());
        }
        let packet = usize::try_from(bytes(plane.packet)).unwrap_or(usize::MAX);
        if packet == 0 || packet > MAX_PAYLOAD {
            return Err(format!(
                "the packet size is {packet} bytes, but must be 1 to {MAX_PAYLOAD} bytes"
            ));
        }
        if frame == 0 || u64::from(frame) > LARGEST_FRAME {
            return Err(format!(
                "the frame size is {frame} bytes, but must be 1 to {LARGEST_FRAME} bytes"
            ));
        }
        if last_page > 0xfff {
            return Err(format!(
                "the last page is {last_page}, but must be at most 4095"
            ));
        }
        let room = u64::from(frame).next_multiple_of(PAGE as u64) + METADATA as u64;
        if last_page > 0 && bytes(increment) < room {
            return Err(format!(
                "the page distance of {} bytes is too small: a frame with its metadata needs {room} bytes",
                bytes(increment)
            ));
        }
        let base = u64::from(low) | (u64::from(high) << 32);
        let end = u128::from(base)
            + u128::from(bytes(increment)) * u128::from(last_page)
            + u128::from(room);
        if end > 1 << 64 {
            return Err(format!(
                "the pages from {base:#x} exceed the 64-bit address space"
            ));
        }
        Ok(Target {
            to: SocketAddrV4::new(Ipv4Addr::from(ip), udp(port, "UDP port")?),
            from: udp(plane.from, "source port")?,
            queue,
            key,
            base,
            increment: bytes(increment),
            last_page,
            frame: usize::try_from(frame).map_err(|_| {
                format!("a frame of {frame} bytes exceeds the address space of this host")
            })?,
            packet,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns writes of all registers of sensor 1, with a valid target.
    fn whole() -> Vec<(u32, u32)> {
        vec![
            (0x0200_0304, 11),
            (0x1040, 5),
            (0x1044, 0xaabb),
            (0x1048, 0x8000_0000),
            (0x104c, 0x12),
            (0x1050, 80),
            (0x1054, 3),
            (0x1058, 10_000),
            (0x1060, 0x1122_3344),
            (0x1064, 0x5566),
            (0x1068, 0x7f00_0001),
            (0x106c, 4791),
        ]
    }

    fn write(registers: &mut Registers, all: &[(u32, u32)]) -> Vec<Effect> {
        let mut effects = Vec::new();
        for (address, value) in all {
            registers.write(*address, *value, &mut effects).unwrap();
            assert_eq!(registers.read(*address), Ok(*value));
        }
        effects
    }

    #[test]
    fn registers_in_right_order_arm_and_disarm() {
        let mut registers = Registers::new(2, 1);
        assert_eq!(write(&mut registers, &[(0x0200_030c, 0)]), []);
        assert_eq!(write(&mut registers, &whole()), []);
        let effects = write(&mut registers, &[(0x0200_030c, 2)]);
        let target = Target {
            to: "127.0.0.1:4791".parse().unwrap(),
            from: 12_288,
            queue: 5,
            key: 0xaabb,
            base: 0x12_8000_0000,
            increment: 80 * 128,
            last_page: 3,
            frame: 10_000,
            packet: 1408,
        };
        assert_eq!(effects, [Effect::Armed(1, Some(target))]);
        // A write of the same value has no effect.
        assert_eq!(write(&mut registers, &[(0x0200_030c, 2)]), []);
        let effects = write(&mut registers, &[(0x0200_030c, 0), (0x1068, 0)]);
        assert_eq!(effects, [Effect::Disarmed(1)]);
    }

    #[test]
    fn registers_in_wrong_order_are_detected() {
        let mistakes = |effects: &[Effect]| {
            effects
                .iter()
                .filter(|effect| matches!(effect, Effect::Mistake(_) | Effect::Changed(_)))
                .count()
        };
        // Each missing register write is detected. Values from before the last disarming do not count.
        for left_out in 0..whole().len() {
            let mut registers = Registers::new(2, 1);
            let mut some = whole();
            some.remove(left_out);
            // Without a packet size, the UDP port is also written too early.
            let early = usize::from(left_out == 0);
            assert_eq!(mistakes(&write(&mut registers, &some)), early);
            let effects = write(&mut registers, &[(0x0200_030c, 2)]);
            assert!(mistakes(&effects) > 0, "{left_out}: {effects:?}");
        }
        let mut registers = Registers::new(2, 1);
        write(&mut registers, &whole());
        assert_eq!(mistakes(&write(&mut registers, &[(0x0200_030c, 2)])), 0);
        // The registers of a plane are shared by its sensors, so writing the same values again is not a mistake.
        assert_eq!(
            write(&mut registers, &[(0x0200_0304, 11), (0x0200_0308, 12_288)]),
            []
        );
        let changes = [(0x0200_0304, 12), (0x0200_0304, 11), (0x0200_0308, 7)];
        for (address, value) in whole().into_iter().skip(1).chain(changes) {
            let effects = write(&mut registers, &[(address, value)]);
            assert!(matches!(effects[..], [Effect::Changed(_)]), "{effects:?}");
        }
        write(&mut registers, &[(0x0200_030c, 0)]);
        assert_eq!(mistakes(&write(&mut registers, &[(0x0200_030c, 2)])), 1);
    }

    #[test]
    fn unreachable_destination_is_not_armed() {
        for (address, value) in [
            (0x0200_0304, 0),
            (0x0200_0304, 512),
            (0x0200_0308, 0),
            (0x104c, u32::MAX),
            (0x1050, 79),
            (0x1054, 4096),
            (0x1058, 0),
            (0x1058, u32::MAX),
            (0x1068, 0),
            (0x106c, 0),
            (0x106c, 65_536),
        ] {
            let mut registers = Registers::new(2, 1);
            write(&mut registers, &whole());
            if address == 0x104c {
                write(&mut registers, &[(0x1048, 0xffff_ff00)]);
            }
            write(&mut registers, &[(address, value)]);
            let effects = write(&mut registers, &[(0x0200_030c, 2)]);
            assert!(
                matches!(effects[..], [Effect::Mistake(_), Effect::Armed(1, None)]),
                "{address:#x} {effects:?}"
            );
        }
    }

    #[test]
    fn unknown_register_is_rejected() {
        let mut registers = Registers::new(2, 2);
        let mut there = Vec::new();
        for address in (0..0x2000).chain(0x0200_0000..0x0203_0000) {
            if registers.read(address).is_ok() {
                there.push(address);
            }
        }
        assert_eq!(there.len(), 2 * 11 + 2 * 3 + 2);
        let mut effects = Vec::new();
        for address in [0, 0x101c, 0x1080, 0x0200_0300, 0x0202_030c, u32::MAX] {
            assert_eq!(
                registers.write(address, 1, &mut effects),
                Err(Refusal::Address)
            );
        }
        assert_eq!(effects, []);
    }

    #[test]
    fn restart_loses_registers_and_ends_armed_sensors() {
        let initial = Registers::new(2, 1);
        let mut registers = initial.clone();
        write(&mut registers, &whole());
        write(&mut registers, &[(0x0200_030c, 2)]);
        assert_eq!(registers.reset(initial), [Effect::Disarmed(1)]);
        assert_eq!(registers.read(0x0200_030c), Ok(0));
        assert_eq!(registers.read(0x1044), Ok(0));
        assert_eq!(registers.read(0x80), Ok(0x2602));
        assert_eq!(
            registers.write(0x80, 1, &mut Vec::new()),
            Err(Refusal::Address)
        );
    }
}
