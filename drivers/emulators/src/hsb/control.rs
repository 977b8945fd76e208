//! The control plane: register access in UDP datagrams, big-endian, one request at a time.
//!
//! ```text
//!   request: command u8, flags u8, sequence u16, reserved u16, then address u32 and data u32 for each access
//!   reply:   command | 0x80, flags, sequence, status u8, reserved u8, address and data for each access, latched
//! sequence u16
//! ```

use super::counts::Shared;
use super::faults::Faults;
use super::registers::{Effect, Registers};
use super::stream::Line;
use daq_core::log_limit::LogLimit;
use rustix::net::RecvFlags;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const WRITE: u8 = 0x04;
const WRITE_BLOCK: u8 = 0x09;
const READ: u8 = 0x14;
const READ_BLOCK: u8 = 0x19;
const REPLY: u8 = 0x80;

/// Flag of a write: the host requests a reply.
const ANSWER: u8 = 1;
/// Flag of a request: its sequence number must follow that of the previous request.
const IN_SEQUENCE: u8 = 2;

const SUCCESS: u8 = 0x00;
const INVALID_ADDRESS: u8 = 0x03;
const INVALID_COMMAND: u8 = 0x04;
const INVALID_FLAGS: u8 = 0x06;
const OUT_OF_SEQUENCE: u8 = 0x0b;

const HEADER: usize = 6;
const ACCESS: usize = 8;
const MAX_ACCESSES: usize = 511;
/// Number of sensors whose log messages are limited separately.
const SENSORS: usize = 8;
/// Interval at which the thread checks whether it must end.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time after a restart during which the board does not reply.
const DOWN: Duration = Duration::from_millis(300);

/// The server of the control plane.
pub(super) struct Server {
    socket: UdpSocket,
    /// Socket from which replies are sent, if different from the socket that receives requests.
    answers: Option<UdpSocket>,
    registers: Registers,
    /// The registers after power-on.
    initial: Registers,
    /// Sensors that can be armed but send nothing.
    dead: Vec<usize>,
    /// End of the time during which the board does not reply.
    down_until: Option<Instant>,
    faults: Faults,
    lines: Vec<Arc<Line>>,
    shared: Arc<Shared>,
    /// Number of requests so far.
    requests: u64,
    /// Sequence number of the previous request.
    before: Option<u16>,
    /// The bytes of the previous request.
    last: Vec<u8>,
    /// Limits on the log messages of each sensor: armed, disarmed.
    limits: [(LogLimit, LogLimit); SENSORS],
    mistakes: LogLimit,
}

impl Server {
    pub(super) fn new(
        (socket, answers): (UdpSocket, Option<UdpSocket>),
        registers: Registers,
        dead: Vec<usize>,
        faults: Faults,
        lines: Vec<Arc<Line>>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            socket,
            answers,
            initial: registers.clone(),
            registers,
            dead,
            down_until: None,
            faults,
            lines,
            shared,
            requests: 0,
            before: None,
            last: Vec::new(),
            limits: Default::default(),
            mistakes: LogLimit::new(),
        }
    }

    pub(super) fn run(mut self, stop: &AtomicBool) {
        if let Err(error) = self.socket.set_read_timeout(Some(POLL_INTERVAL)) {
            tracing::error!("the control plane cannot set the timeout of its socket: {error}");
            return;
        }
        let mut datagram = vec![0; 65_536];
        while !stop.load(Ordering::Acquire) {
            if self.shared.takes_reboot() {
                self.reboot();
            }
            // An error may also be an ICMP rejection of an earlier reply. It needs no reply, as if no request had
            // arrived.
            let Ok((bytes, from)) = self.socket.recv_from(&mut datagram) else {
                continue;
            };
            if self.down_until.is_some_and(|until| Instant::now() < until) {
                continue;
            }
            let request = &datagram[..bytes];
            if let Some(reply) = self.answer(request) {
                self.send(&reply, from, request);
            }
            self.last.clear();
            self.last.extend_from_slice(request);
        }
    }

    /// Resets all registers, and makes the board ignore requests for a while.
    fn reboot(&mut self) {
        tracing::info!("restarting");
        let effects = self.registers.reset(self.initial.clone());
        for effect in effects {
            self.follow(effect);
        }
        for line in &self.lines {
            line.reboot();
        }
        (self.before, self.down_until) = (None, Some(Instant::now() + DOWN));
        self.shared.lock().reboots += 1;
    }

    fn send(&self, reply: &[u8], to: SocketAddr, request: &[u8]) {
        let mut next = [0; HEADER + ACCESS];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let is_more = rustix::net::recv(&self.socket, &mut next, flags).is_ok();
        // A host repeats its request after a timeout. The next request may therefore have arrived while this one was
        // processed, without a mistake of the host.
        let is_repeated = request == self.last || request.starts_with(&next);
        let through = self.answers.as_ref().unwrap_or(&self.socket);
        let sent = through.send_to(reply, to).is_ok();
        let mut counts = self.shared.lock();
        counts.replies += u64::from(sent);
        counts.overlapped += u64::from(is_more && !is_repeated);
    }

    /// Executes a request. Returns the reply, or `None` if the request must not be answered.
    fn answer(&mut self, request: &[u8]) -> Option<Vec<u8>> {
        let Some((&[command, flags, high, low, _, _], accesses)) =
            request.split_first_chunk::<HEADER>()
        else {
            self.shared.lock().malformed += 1;
            return None;
        };
        let number = self.requests;
        self.requests += 1;
        self.shared.lock().requests += 1;
        let sequence = u16::from_be_bytes([high, low]);
        let expected = self.before.replace(sequence).map(|n| n.wrapping_add(1));
        let (pairs, rest) = accesses.as_chunks::<ACCESS>();
        let is_whole = rest.is_empty() && !pairs.is_empty();
        let is_in_sequence =
            flags & IN_SEQUENCE == 0 || expected.is_none_or(|expected| expected == sequence);
        let mut done = Vec::with_capacity(accesses.len());
        let status = if self.faults.hits("ecb-status", number) {
            self.shared.lock().ecb_faults += 1;
            INVALID_ADDRESS
        } else if flags & !(ANSWER | IN_SEQUENCE) != 0 {
            INVALID_FLAGS
        } else if !is_in_sequence {
            OUT_OF_SEQUENCE
        } else {
            match command {
                WRITE | READ if is_whole && pairs.len() == 1 => {
                    self.carry_out(command == WRITE, pairs, &mut done)
                }
                WRITE_BLOCK | READ_BLOCK if is_whole && pairs.len() <= MAX_ACCESSES => {
                    self.carry_out(command == WRITE_BLOCK, pairs, &mut done)
                }
                _ => INVALID_COMMAND,
            }
        };
        if status != SUCCESS {
            self.shared.lock().refused += 1;
            done = accesses.to_vec();
        }
        let is_write = matches!(command, WRITE | WRITE_BLOCK);
        if is_write && flags & ANSWER == 0 && status == SUCCESS {
            return None;
        }
        if self.faults.hits("ecb-silent", number) {
            self.shared.lock().ecb_faults += 1;
            return None;
        }
        let mut reply_sequence = sequence;
        if self.faults.hits("ecb-sequence", number) {
            self.shared.lock().ecb_faults += 1;
            reply_sequence = sequence.wrapping_add(0x100);
        }
        let mut reply = vec![command | REPLY, flags];
        reply.extend(reply_sequence.to_be_bytes());
        reply.extend([status, 0]);
        reply.extend(done);
        reply.extend(sequence.to_be_bytes());
        Some(reply)
    }

    /// Reads or writes registers in order until an access is rejected. Appends the accesses to `done`, the payload of
    /// the reply.
    fn carry_out(&mut self, is_write: bool, pairs: &[[u8; ACCESS]], done: &mut Vec<u8>) -> u8 {
        for &[a, b, c, d, e, f, g, h] in pairs {
            let address = u32::from_be_bytes([a, b, c, d]);
            let value = u32::from_be_bytes([e, f, g, h]);
            let result = if is_write {
                let mut effects = Vec::new();
                let result = self.registers.write(address, value, &mut effects);
                for effect in effects {
                    self.follow(effect);
                }
                result.map(|()| value)
            } else {
                self.registers.read(address)
            };
            let Ok(value) = result else {
                return INVALID_ADDRESS;
            };
            done.extend(address.to_be_bytes());
            done.extend(value.to_be_bytes());
        }
        SUCCESS
    }

    /// Applies the effect of a write before the reply is sent. Once the reply to a disarming write is sent, the sensor
    /// therefore sends no more packets.
    fn follow(&self, effect: Effect) {
        match effect {
            Effect::Armed(sensor, target) => {
                self.limits[sensor % SENSORS].0.run(|suppressed| {
                    tracing::info!(sensor, ?target, "armed{suppressed}");
                });
                self.shared.sensor(sensor, |counts| counts.arms += 1);
                if let (Some(target), Some(line)) = (target, self.lines.get(sensor))
                    && !self.dead.contains(&sensor)
                {
                    line.arm(target);
                }
            }
            Effect::Disarmed(sensor) => {
                if let Some(line) = self.lines.get(sensor) {
                    line.disarm();
                }
                self.limits[sensor % SENSORS].1.run(|suppressed| {
                    tracing::info!(sensor, "disarmed{suppressed}");
                });
                self.shared.sensor(sensor, |counts| counts.disarms += 1);
            }
            Effect::Mistake(what) => self.mistake(what),
            Effect::Changed(what) => {
                self.shared.lock().changed_while_armed += 1;
                self.mistake(what);
            }
        }
    }

    fn mistake(&self, what: String) {
        self.mistakes
            .run(|suppressed| tracing::warn!("{what}{suppressed}"));
        self.shared.mistake(what);
    }
}
