//! Whatever a user of a card sends: no panic, nothing that hangs, and the next user is served.
//!
//! `DAQ_FUZZ_SECONDS` says for how long each target runs (1 by default).

#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

use daq_drivers::cards::build;
use daq_drivers::cards::endpoint::Endpoint;
use daq_drivers::cards::options::CardOptions;
use daq_drivers::cards::server::attend;
use daq_drivers::vfio_user::socket::send;
use daq_drivers::vfio_user::wire::{Access, Command, Header, Request, long_words, words};
use std::io::Write;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
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

/// A message that is nearly right, from arbitrary numbers.
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
        Command::DeviceInfo | Command::Reset => Vec::new(),
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
    let mut endpoint = Endpoint::new(build("xdma", &CardOptions::default()).unwrap());
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
            // Not more than both sockets hold unread.
            for (kind, flags, a, b, c, bytes) in messages.iter().take(20) {
                let bytes = &bytes[..bytes.len().min(64)];
                let (header, payload) = message(*kind, *flags, *a, *b, *c, bytes);
                let files = [file.as_fd(), file.as_fd(), file.as_fd()];
                let files = &files[..usize::from(flags >> 4 & 3)];
                send(&user, header, &[&payload], files).unwrap();
            }
            user.write_all(&rest[..rest.len().min(512)]).unwrap();
            user.shutdown(Shutdown::Write).unwrap();
            let (_, ended) = attend(endpoint, &stream, signal);
            assert!(ended.is_err(), "it ends because the user does");
            endpoint.detach();
            assert!(endpoint.memory().is_empty());
            assert!(!endpoint.is_removed());
        });
}
