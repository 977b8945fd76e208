//! Fuzz tests of the vfio-user protocol. Arbitrary messages of a client must not make the server panic or hang, and the
//! next client must be served. Arbitrary replies of a server must not make the client panic or hang.
//!
//! `DAQ_FUZZ_SECONDS` is the run time of each target in seconds (default 1).

use daq_core::dma::DmaMap;
use daq_core::region::{HostOptions, Region};
use daq_drivers::fpga::transports::emulated::EmulatedOptions;
use daq_drivers::fpga::transports::vfio_user;
use daq_drivers::fpga::transports::vfio_user::socket::{Receiver, send};
use daq_drivers::fpga::transports::vfio_user::wire::{
    Access, Command, Header, Request, long_words, words,
};
use daq_emulators::build;
use daq_emulators::endpoint::Endpoint;
use daq_emulators::vfio_user::serve_connection;
use rustix::net::RecvFlags;
use std::io::Write;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

fn time() -> Duration {
    let seconds = std::env::var("DAQ_FUZZ_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(1))
}

#[test]
fn fuzz_requests() {
    bolero::check!()
        .with_type::<(u16, Vec<u8>)>()
        .with_test_time(time())
        .for_each(|(command, payload)| {
            for command in [*command, command % 16] {
                if let Ok(Request::Write(Access { count, .. }, data)) =
                    Request::parse(command, payload)
                {
                    assert_eq!(count as usize, data.len());
                }
            }
        });
}

/// Builds an almost valid message from arbitrary numbers.
fn message(kind: u8, flags: u8, a: u64, b: u64, c: u32, bytes: &[u8]) -> (Header, Vec<u8>) {
    let command = Command::ALL[usize::from(kind) % Command::ALL.len()];
    let small = |value: u64| u32::try_from(value & 0xff).unwrap();
    let mut payload = match command {
        Command::Version => words([0, 0]),
        Command::DmaMap => long_words([32, small(a)], [b & 0xffff, a, c.into()]),
        Command::DmaUnmap => long_words([24, small(b) & 3], [a, c.into()]),
        Command::RegionInfo => long_words([32, 0], [a & 15, 0, 0]),
        Command::IrqInfo => words([16, 0, small(a) & 7, 0]),
        Command::SetIrqs => words([20, small(a), small(b) & 3, c & 63, small(a >> 8) & 63]),
        Command::RegionRead | Command::RegionWrite => {
            let count = u32::try_from(bytes.len()).unwrap();
            let access = Access {
                offset: if flags & 4 == 0 { b & 0xffff } else { b },
                region: small(a) & 15,
                count: if flags & 8 == 0 { count } else { c },
            };
            access.to_bytes().to_vec()
        }
        Command::DeviceInfo | Command::Reset | Command::DmaRead | Command::DmaWrite => Vec::new(),
    };
    payload.extend(bytes);
    let header = if flags & 1 == 0 {
        Header::request(u16::from(kind), command, payload.len())
    } else {
        Header::post(u16::from(kind), command, payload.len())
    };
    (header, payload)
}

type Message = (u8, u8, u64, u64, u32, Vec<u8>);

#[test]
fn fuzz_sessions() {
    let mut endpoint = Endpoint::new(build("xdma", &EmulatedOptions::default()).unwrap());
    let (_stop, signal) = UnixStream::pair().unwrap();
    let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 1 << 16).unwrap();
    let signal = signal.as_fd();
    let endpoint = std::cell::RefCell::new(&mut endpoint);
    let endpoint = std::panic::AssertUnwindSafe(endpoint);
    bolero::check!()
        .with_type::<(bool, Vec<Message>, Vec<u8>)>()
        .with_test_time(time())
        .for_each(|(greets, messages, rest)| {
            let endpoint = &mut **endpoint.borrow_mut();
            let (mut user, stream) = UnixStream::pair().unwrap();
            let hello = Header::request(0, Command::Version, 8);
            if *greets {
                send(&user, hello, &[&words([0, 0])], &[]).unwrap();
            }
            // Sends no more than both socket buffers can hold unread.
            for (kind, flags, a, b, c, bytes) in messages.iter().take(20) {
                let bytes = &bytes[..bytes.len().min(64)];
                let (header, payload) = message(*kind, *flags, *a, *b, *c, bytes);
                let files = [file.as_fd(), file.as_fd(), file.as_fd()];
                let files = &files[..usize::from(flags >> 4 & 3)];
                send(&user, header, &[&payload], files).unwrap();
            }
            user.write_all(&rest[..rest.len().min(512)]).unwrap();
            user.shutdown(Shutdown::Write).unwrap();
            let (_, ended) = serve_connection(endpoint, &stream, signal, None);
            assert!(
                ended.is_err(),
                "the connection ends when the client disconnects"
            );
            endpoint.detach();
            assert!(endpoint.memory().is_empty());
            assert!(!endpoint.is_removed());
        });
}

type Answer = (u8, u32, Vec<u8>);

/// Replies to requests as `answers` describe, and disconnects after the last reply. Almost all replies are nearly
/// valid.
fn answer(stream: &UnixStream, answers: &[Answer]) {
    let mut receiver = Receiver::default();
    let mut answers = answers.iter();
    loop {
        if receiver.receive(stream, RecvFlags::empty()).is_err() {
            return;
        }
        let asked = receiver.header();
        // Posted messages get no reply.
        if asked.flags & 1 << 4 != 0 {
            continue;
        }
        let Some((kind, number, bytes)) = answers.next() else {
            return;
        };
        let mut payload = receiver.payload().to_vec();
        match kind & 3 {
            0 => payload.extend(bytes),
            1 => payload.extend([0; 64]),
            2 => payload.clone_from(bytes),
            _ => payload.truncate(usize::try_from(number % 64).unwrap()),
        }
        let mut header = asked.reply(payload.len());
        if kind & 0b1100 == 0b1100 {
            header = Header {
                error: *number,
                ..asked.refusal(1)
            };
            header.bytes += u32::try_from(payload.len()).unwrap();
        }
        if kind & 0b1111_0000 == 0b1111_0000 {
            header.bytes = *number;
        }
        if kind & 0b11_0000 == 0b10_0000 {
            // A reply to a different request is sent first.
            let foreign = Header {
                id: asked.id.wrapping_add(1),
                ..asked.reply(bytes.len())
            };
            let _ = send(stream, foreign, &[bytes], &[]);
        }
        if send(stream, header, &[&payload], &[]).is_err() {
            return;
        }
        if header.bytes as usize != 16 + payload.len() {
            // The rest of the reply is never sent.
            return;
        }
    }
}

#[test]
fn fuzz_answers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("card.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let options = HostOptions {
        shared: true,
        ..HostOptions::default()
    };
    let region = Region::host(4096, options).unwrap();
    let shared = std::panic::AssertUnwindSafe((path, listener, region));
    bolero::check!()
        .with_type::<Vec<Answer>>()
        .with_test_time(time())
        .for_each(|answers| {
            let (path, listener, region) = &*shared;
            std::thread::scope(|scope| {
                scope.spawn(|| answer(&listener.accept().unwrap().0, answers));
                let Ok(device) = vfio_user::open(path) else {
                    return;
                };
                for bar in 0..6 {
                    if let Ok(registers) = device.registers(bar) {
                        registers.write(0, 1);
                        registers.read(0);
                    }
                }
                let _ = device.interrupts(1);
                let _ = DmaMap::new(device.clone().as_dma(), region.clone());
                let _ = device.reset();
                let _ = device.disable_and_reset();
            });
        });
}
