//! The control channel of a camera, and the thread that serves it and sends the stream.

use super::registers::{
    ACQUISITION, CCP, FORMAT, HEARTBEAT, HEIGHT, Registers, SCDA, SCP, SCPS, WIDTH,
};
use super::stream::{Acquisition, Stream};
use super::{Options, Shared};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const NOT_IMPLEMENTED: u16 = 0x8001;
const BAD_PARAMETER: u16 = 0x8002;
const DENIED: u16 = 0x8006;

/// Interval at which the thread checks whether it must end.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Time after a restart during which the camera does not answer.
const DOWN: Duration = Duration::from_millis(300);
/// Bits of the packet size register: send a test packet, and the packet size.
const FIRE: u32 = 1 << 31;
const SIZE: u32 = 0xffff;

/// The server of a camera.
pub(super) struct Server {
    options: Options,
    address: SocketAddrV4,
    control: UdpSocket,
    /// Receives broadcasts, if the camera has the standard port.
    broadcasts: Option<UdpSocket>,
    output: UdpSocket,
    registers: Registers,
    controller: Option<(SocketAddr, Instant)>,
    stream: Option<Stream>,
    /// Number of images that may still be sent.
    left: Option<u64>,
    started: Instant,
    down_until: Option<Instant>,
    reboots: u64,
    shared: Arc<Shared>,
}

impl Server {
    pub(super) fn new(
        options: &Options,
        address: SocketAddrV4,
        (control, broadcasts, output): (UdpSocket, Option<UdpSocket>, UdpSocket),
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            registers: Registers::new(options, address),
            left: options.frames,
            options: options.clone(),
            address,
            control,
            broadcasts,
            output,
            controller: None,
            stream: None,
            started: Instant::now(),
            down_until: None,
            reboots: 0,
            shared,
        }
    }

    pub(super) fn run(mut self) {
        let mut bytes = [0; 2048];
        while !self.shared.stop.load(Ordering::Acquire) {
            let until_image = self.stream.as_ref().and_then(Stream::wait);
            let wait = until_image.map_or(POLL_INTERVAL, |wait| wait.min(POLL_INTERVAL));
            // A timeout of zero would mean no timeout.
            let wait = self
                .control
                .set_read_timeout(Some(wait.max(Duration::from_micros(1))));
            if wait.is_err() {
                return;
            }
            if let Ok((length, from)) = self.control.recv_from(&mut bytes) {
                self.handle(&bytes[..length], from);
            }
            while let Some(Ok((length, from))) = self
                .broadcasts
                .as_ref()
                .map(|socket| socket.recv_from(&mut bytes))
            {
                self.handle(&bytes[..length], from);
            }
            self.supervise();
            if let Some(stream) = &mut self.stream
                && stream.wait().is_some_and(|wait| wait.is_zero())
            {
                stream.send(stream.ticks(self.started));
                self.left = self.left.map(|left| left - 1);
                self.shared.images.fetch_add(1, Ordering::AcqRel);
                self.shared.packets.store(stream.packets, Ordering::Release);
            }
        }
    }

    /// Ends the control of an application that sends no heartbeat, and restarts the camera.
    fn supervise(&mut self) {
        let reboots = self.shared.reboots.load(Ordering::Acquire);
        if reboots != self.reboots {
            self.reboots = reboots;
            self.registers = Registers::new(&self.options, self.address);
            (self.controller, self.stream) = (None, None);
            self.down_until = Some(Instant::now() + DOWN);
        }
        let timeout = Duration::from_millis(self.registers.get(HEARTBEAT).into());
        if self
            .controller
            .is_some_and(|(_, heard)| heard.elapsed() > timeout)
        {
            self.shared.timeouts.fetch_add(1, Ordering::AcqRel);
            self.release();
        }
    }

    /// Ends the control and the stream.
    fn release(&mut self) {
        (self.controller, self.stream) = (None, None);
        for register in [CCP, ACQUISITION] {
            let _ = self.registers.write(register, 0);
        }
    }

    fn handle(&mut self, message: &[u8], from: SocketAddr) {
        if self.down_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        let field = |at: usize| Some(u16::from_be_bytes(*message.get(at..)?.first_chunk()?));
        let (Some(0x42), Some(flags), Some(command), Some(length), Some(id)) = (
            message.first(),
            message.get(1),
            field(2),
            field(4),
            field(6),
        ) else {
            return;
        };
        let Some(data) = message.get(8..).and_then(|data| data.get(..length.into())) else {
            return;
        };
        self.shared.requests.fetch_add(1, Ordering::AcqRel);
        if let Some((controller, heard)) = &mut self.controller
            && *controller == from
        {
            *heard = Instant::now();
        }
        if command == 0x40 {
            return self.resend(data, flags & 0x10 != 0);
        }
        let (status, answer) = match self.execute(command, data, from) {
            Ok(answer) => (0, answer),
            Err(status) => (status, Vec::new()),
        };
        if flags & 1 == 0 {
            return;
        }
        let mut reply = Vec::new();
        let bytes = u16::try_from(answer.len()).unwrap_or(u16::MAX);
        for field in [status, command + 1, bytes, id] {
            reply.extend(field.to_be_bytes());
        }
        reply.extend(answer);
        // The application repeats its request if the answer is lost.
        let _ = self.control.send_to(&reply, from);
    }

    /// Executes a command. Returns the data of the acknowledge, or the error status.
    fn execute(&mut self, command: u16, data: &[u8], from: SocketAddr) -> Result<Vec<u8>, u16> {
        let words: Vec<u32> = data
            .chunks_exact(4)
            .filter_map(|chunk| Some(u32::from_be_bytes(*chunk.first_chunk()?)))
            .collect();
        match (command, words.as_slice()) {
            (0x02, _) => Ok(self.registers.memory(0, 248)?.to_vec()),
            (0x80, addresses) => {
                let mut answer = Vec::new();
                for address in addresses {
                    answer.extend(self.registers.read(*address)?.to_be_bytes());
                }
                Ok(answer)
            }
            (0x82, accesses) => {
                for access in accesses.chunks_exact(2) {
                    self.write(access[0], access[1], from)?;
                }
                let count = u32::try_from(accesses.len() / 2).unwrap_or(0);
                Ok(count.to_be_bytes().to_vec())
            }
            (0x84, [address, bytes]) => {
                let mut answer = address.to_be_bytes().to_vec();
                let bytes = (bytes & SIZE) as usize;
                answer.extend(self.registers.memory(*address, bytes)?);
                Ok(answer)
            }
            (0x86, [address, values @ ..]) => {
                for (address, value) in (*address..).step_by(4).zip(values) {
                    self.write(address, *value, from)?;
                }
                Ok(vec![0, 0, data[2], data[3]])
            }
            (0x84 | 0x86, _) => Err(BAD_PARAMETER),
            _ => Err(NOT_IMPLEMENTED),
        }
    }

    fn write(&mut self, address: u32, value: u32, from: SocketAddr) -> Result<(), u16> {
        let is_controller = self.controller.is_some_and(|(address, _)| address == from);
        let may_take_control = self.controller.is_none() && address == CCP;
        if !is_controller && !may_take_control {
            return Err(DENIED);
        }
        let is_running = self.stream.is_some();
        if is_running && [WIDTH, HEIGHT, FORMAT, SCPS].contains(&address) {
            self.shared.mistake(format!(
                "register {address:#x} was written during an acquisition"
            ));
            return Err(DENIED);
        }
        self.registers.write(address, value)?;
        match address {
            CCP if value.trailing_zeros() >= 2 => {
                self.shared.releases.fetch_add(1, Ordering::AcqRel);
                self.release();
            }
            CCP => {
                if self.controller.is_none() {
                    self.shared.controls.fetch_add(1, Ordering::AcqRel);
                }
                self.controller = Some((from, Instant::now()));
            }
            SCPS => {
                let size = (value & SIZE).min(self.options.max_packet) & !3;
                self.registers.write(SCPS, size)?;
                if value & FIRE != 0 {
                    self.fire(size as usize);
                }
            }
            ACQUISITION if value & 1 == 0 => self.stream = None,
            ACQUISITION if !is_running => self.start(),
            _ => {}
        }
        Ok(())
    }

    fn destination(&self) -> SocketAddrV4 {
        let port = self.registers.get(SCP) & SIZE;
        let ip = Ipv4Addr::from_bits(self.registers.get(SCDA));
        SocketAddrV4::new(ip, u16::try_from(port).unwrap_or(0))
    }

    /// Sends a test packet, unless the emulated network does not carry it.
    fn fire(&self, size: usize) {
        if self.options.mtu.is_none_or(|mtu| size <= mtu) && self.options.test_packets {
            let _ = self
                .output
                .send_to(&vec![0; size.saturating_sub(28)], self.destination());
        }
    }

    fn start(&mut self) {
        let to = self.destination();
        let Ok(socket) = self.output.try_clone() else {
            return;
        };
        if to.port() == 0 {
            self.shared
                .mistake("the acquisition was started without a destination".to_owned());
        }
        let acquisition = Acquisition {
            to,
            packet: (self.registers.get(SCPS) & SIZE) as usize,
            width: self.registers.get(WIDTH),
            height: self.registers.get(HEIGHT),
            pixel_format: self.registers.get(FORMAT),
            bytes: self.registers.payload() as usize,
        };
        self.shared.starts.fetch_add(1, Ordering::AcqRel);
        self.stream = Some(Stream::new(&self.options, socket, acquisition, self.left));
    }

    fn resend(&self, data: &[u8], is_extended: bool) {
        let word = |at: usize| Some(u32::from_be_bytes(*data.get(at..)?.first_chunk()?));
        let request = || {
            let block = if is_extended {
                u64::from(word(12)?) << 32 | u64::from(word(16)?)
            } else {
                u64::from(word(0)? & SIZE)
            };
            Some((block, word(4)?, word(8)?))
        };
        let (Some((block, first, last)), Some(stream)) = (request(), &self.stream) else {
            return;
        };
        if is_extended != self.options.extended || !self.options.resend {
            self.shared
                .mistake("a resend was requested that this camera does not support".to_owned());
        }
        let (resent, unavailable) = stream.resend(block, first, last);
        self.shared.resends.fetch_add(1, Ordering::AcqRel);
        self.shared.resent.fetch_add(resent, Ordering::AcqRel);
        self.shared
            .unavailable
            .fetch_add(unavailable, Ordering::AcqRel);
    }
}
