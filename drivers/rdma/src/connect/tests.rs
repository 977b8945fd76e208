//! Tests of the exchange by TCP, with valid and invalid peers.
#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

use super::exchange::{Frame, MAX_REASON, Rails};
use super::mock::{self, nics};
use super::tcp;
use super::*;
use crate::verbs::{Endpoint, QueuePairOptions, Service, Transport};
use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketType};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LONG: Duration = Duration::from_mins(1);
const OPTIONS: QueuePairOptions = QueuePairOptions {
    service: Service::Rc,
    sends: 4,
    receives: 4,
    sges: 1,
    inline: 64,
    events: true,
};

fn waiting() -> Listener {
    tcp::listener((LOOPBACK, 0).into()).unwrap()
}

fn greetings(word: &str, count: usize) -> Vec<Vec<u8>> {
    (0..count)
        .map(|i| format!("{word} {i}").into_bytes())
        .collect()
}

fn connect(
    to: SocketAddr,
    rails: usize,
    options: QueuePairOptions,
) -> JoinHandle<Result<Link, ConnectError>> {
    std::thread::spawn(move || connect_within(to, rails, options, LONG))
}

fn connect_within(
    to: SocketAddr,
    rails: usize,
    options: QueuePairOptions,
    limit: Duration,
) -> Result<Link, ConnectError> {
    let handshake = Handshake {
        nics: &nics(rails),
        options: &options,
        greetings: &greetings("hello", rails),
        prepare: &mut |_, _| Ok(()),
    };
    tcp::connector(to).connect(handshake, limit)
}

/// Returns both sides of a connection with `rails` rails.
fn linked(listener: &mut Listener, rails: usize) -> (Link, Link) {
    let connecting = connect(listener.address(), rails, OPTIONS);
    let nics = nics(rails);
    let incoming = listener.accept(&nics, LONG).unwrap().connector().unwrap();
    assert_eq!(incoming.greetings(), greetings("hello", rails));
    let mut prepared = Vec::new();
    let there = incoming
        .accept(&OPTIONS, &greetings("offer", rails), &mut |rail, queue| {
            prepared.push(rail);
            queue.post_receive(rail as u64, &[])
        })
        .unwrap();
    assert_eq!(prepared, (0..rails).collect::<Vec<_>>());
    let here = connecting.join().unwrap().unwrap();
    assert_eq!(here.greetings, greetings("offer", rails));
    assert_eq!((here.rails.len(), there.rails.len()), (rails, rails));
    (here, there)
}

fn poll_disconnect(monitor: &mut dyn PeerMonitor) -> Disconnect {
    loop {
        if let Some(why) = monitor.poll_disconnect() {
            assert_eq!(
                monitor.poll_disconnect(),
                Some(why.clone()),
                "the reported reason must not change"
            );
            return why;
        }
        std::thread::yield_now();
    }
}

#[test]
fn rails_are_connected_and_monitored() {
    let mut listener = waiting();
    let (mut here, mut there) = linked(&mut listener, 3);
    assert_eq!(
        (
            here.monitor.poll_disconnect(),
            there.monitor.poll_disconnect()
        ),
        (None, None)
    );
    here.monitor.close(7);
    assert_eq!(poll_disconnect(&mut *there.monitor).final_frames, Some(7));
    // The same listener accepts the next connector, which ends without a close message.
    let (mut here, there) = linked(&mut listener, 1);
    drop(there);
    let disconnect = poll_disconnect(&mut *here.monitor);
    assert!(
        disconnect.final_frames.is_none() && disconnect.why.contains("without a close message")
    );
}

#[test]
fn accept_can_be_cancelled() {
    let mut listener = waiting();
    let mut silent = TcpStream::connect(listener.address()).unwrap();
    silent.write_all(&hello(1).encode()).unwrap();
    let nics = nics(1);
    let incoming = listener.accept(&nics, LONG).unwrap().connector().unwrap();
    incoming.abort_handle()();
    let error = incoming
        .accept(&OPTIONS, &greetings("offer", 1), &mut |_, _| Ok(()))
        .err()
        .unwrap();
    let ConnectError::Network { source, .. } = &error else {
        panic!("{error}");
    };
    assert_ne!(source.kind(), ErrorKind::TimedOut);
}

#[test]
fn accept_without_peer_times_out() {
    let mut listener = waiting();
    for limit in [Duration::ZERO, Duration::from_millis(20)] {
        let accepted = listener.accept(&nics(1), limit).unwrap();
        assert!(matches!(accepted, Accepted::None));
    }
    // The socket is bound, so that no other test gets the port, but it does not listen.
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::new(LOOPBACK, 0)).unwrap();
    let address = rustix::net::getsockname(&socket).unwrap();
    let address = SocketAddr::try_from(address).unwrap();
    let error = connect(address, 1, OPTIONS).join().unwrap().err().unwrap();
    assert!(
        matches!(
            error,
            ConnectError::Network {
                action: "connecting",
                ..
            }
        ),
        "{error}"
    );
}

/// Returns the peer that the listener rejects because of different settings, and the reason.
fn rejected(listener: &mut Listener) -> (String, String) {
    match listener.accept(&nics(1), LONG).unwrap() {
        Accepted::Mismatch { peer, why } => (peer, why),
        Accepted::None | Accepted::Connector(_) => panic!("the settings differ"),
    }
}

fn sentence(error: ConnectError) -> String {
    match error {
        ConnectError::Refused { why, .. } => why,
        other => panic!("{other}"),
    }
}

#[test]
fn rejected_connector_gets_reason() {
    let mut listener = waiting();
    let connecting = connect(listener.address(), 2, OPTIONS);
    // The listener rejects a connector with a different number of rails.
    let (_, why) = rejected(&mut listener);
    assert!(
        why.starts_with("the sender's sink has 2 queue pairs, but this source has 1 queue pair:")
    );
    let why = sentence(connecting.join().unwrap().err().unwrap());
    assert_eq!(
        why,
        "the receiver has 1 queue pair, but this sink has 2 queue pairs: set the same number of NICs in `nics` on both hosts"
    );

    let connecting = connect(listener.address(), 1, OPTIONS);
    let incoming = listener
        .accept(&nics(1), LONG)
        .unwrap()
        .connector()
        .unwrap();
    incoming.refuse(&"ä\n".repeat(200));
    let why = sentence(connecting.join().unwrap().err().unwrap());
    assert!(
        why.starts_with("ä ä ä ") && why.len() <= MAX_REASON,
        "{why}"
    );

    let other = QueuePairOptions {
        service: Service::Uc,
        ..OPTIONS
    };
    let connecting = connect(listener.address(), 1, other);
    let incoming = listener
        .accept(&nics(1), LONG)
        .unwrap()
        .connector()
        .unwrap();
    let error = incoming.accept(&OPTIONS, &greetings("offer", 1), &mut |_, _| Ok(()));
    let Err(error @ ConnectError::Mismatch { .. }) = error else {
        panic!("the services differ")
    };
    assert!(
        error
            .to_string()
            .contains("the sender's sink has service = \"uc\"")
    );
    let why = sentence(connecting.join().unwrap().err().unwrap());
    assert_eq!(
        why,
        "the receiver has service = \"rc\", but this sink has \"uc\": set the same service on both hosts"
    );
}

/// A peer with another version of the protocol must get a rejection, whose version it can report.
#[test]
fn other_version_is_rejected_and_reported() {
    let mut listener = waiting();
    let mut greeting = hello(1).encode();
    let version = greeting[4];
    greeting[4] += 1;
    let mut peer = TcpStream::connect(listener.address()).unwrap();
    peer.write_all(&greeting).unwrap();
    let (address, why) = rejected(&mut listener);
    assert_eq!(address, peer.local_addr().unwrap().to_string());
    let expected = format!("the peer's protocol version is {}, but", version + 1);
    assert!(why.starts_with(&expected), "{why}");
    let mut answer = Vec::new();
    peer.read_to_end(&mut answer).unwrap();
    assert_eq!(answer[4], version);
    assert!(matches!(Frame::decode(&answer), Ok(Frame::Refusal(_))));
}

#[test]
fn pending_peers_do_not_block_connector() {
    let mut listener = waiting();
    let address = listener.address();
    let hello = hello(1).encode();
    let mut pending_peers = Vec::new();
    for i in 0..200_usize {
        let mut pending_peer = TcpStream::connect(address).unwrap();
        let bytes = match i % 4 {
            // In order: no bytes, garbage, half a greeting, a length that would exhaust the memory.
            0 => Vec::new(),
            1 => vec![7; 100],
            2 => hello[..i.min(hello.len() - 1)].to_vec(),
            _ => [&hello[..8], &u32::MAX.to_le_bytes()].concat(),
        };
        // The write fails if the listener has already rejected this peer.
        let _ = pending_peer.write_all(&bytes);
        pending_peers.push(pending_peer);
        if i % 50 == 0 {
            let accepted = listener.accept(&nics(1), Duration::ZERO).unwrap();
            assert!(matches!(accepted, Accepted::None));
        }
    }
    let (mut here, mut there) = linked(&mut listener, 1);
    assert_eq!(
        (
            here.monitor.poll_disconnect(),
            there.monitor.poll_disconnect()
        ),
        (None, None)
    );
}

fn hello(rails: usize) -> Frame {
    Frame::Hello(Rails {
        service: Service::Rc,
        transport: Transport::Rdma,
        endpoints: vec![Endpoint::default(); rails],
        greetings: greetings("hello", rails),
    })
}

#[test]
fn failed_connector_does_not_end_wait_for_next() {
    let failed = || {
        let source = ErrorKind::ConnectionReset.into();
        Err(ConnectError::network("accepting", source))
    };
    let arrivals = [failed(), failed(), Ok(b"hello".to_vec())];
    let (mut listener, _) = mock::listener(arrivals.into_iter());
    let incoming = listener
        .accept(&nics(1), LONG)
        .unwrap()
        .connector()
        .unwrap();
    assert_eq!(incoming.greetings(), [b"hello"]);
}

#[test]
fn connector_disconnect_during_handshake_is_error() {
    let mut listener = waiting();
    let mut pending_peer = TcpStream::connect(listener.address()).unwrap();
    pending_peer.write_all(&hello(1).encode()).unwrap();
    let incoming = listener
        .accept(&nics(1), LONG)
        .unwrap()
        .connector()
        .unwrap();
    assert_eq!(
        incoming.peer(),
        pending_peer.local_addr().unwrap().to_string()
    );
    drop(pending_peer);
    let result = incoming.accept(&OPTIONS, &greetings("offer", 1), &mut |_, _| Ok(()));
    // The emulated NIC may fail earlier because the endpoint has no peer.
    assert!(matches!(
        result,
        Err(ConnectError::Network { .. } | ConnectError::Verbs(_))
    ));
}

/// Returns the connector's error if a listener replies `bytes` and then either disconnects (`ends`) or sends nothing
/// more.
fn answered(bytes: &[u8], ends: bool, limit: Duration) -> ConnectError {
    let listener = TcpListener::bind((LOOPBACK, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let bytes = bytes.to_vec();
    let (done, wait) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut hello = vec![0; self::hello(1).encode().len()];
        stream.read_exact(&mut hello).unwrap();
        // The connector may have disconnected already.
        let _ = stream.write_all(&bytes);
        if !ends {
            wait.recv().unwrap_err();
        }
    });
    let result = connect_within(address, 1, OPTIONS, limit);
    drop(done);
    thread.join().unwrap();
    result.err().unwrap()
}

#[test]
fn connector_detects_foreign_listener() {
    let foreign = |bytes: &[u8]| match answered(bytes, false, LONG) {
        ConnectError::Foreign { why, .. } => why,
        other => panic!("{other}"),
    };
    assert!(foreign(b"HTTP/1.1 400 Bad Request\r\n\r\n").contains("not a handshake message"));
    let mut other = Frame::Ready.encode();
    other[4] = 9;
    assert!(foreign(&other).contains("version is 9"));
    assert!(foreign(&Frame::Ready.encode()).contains("instead of an answer"));
    assert!(foreign(&hello(1).encode()).contains("instead of an answer"));
    let Frame::Hello(rails) = hello(2) else {
        panic!("the frame must be a greeting")
    };
    assert!(foreign(&Frame::Answer(rails).encode()).contains("2 queue pairs"));
    let mut long = Frame::Ready.encode();
    long[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(foreign(&long).contains("bytes"));

    let network = |bytes: &[u8], ends, limit| match answered(bytes, ends, limit) {
        ConnectError::Network { source, .. } => source.kind(),
        other => panic!("{other}"),
    };
    let short = Duration::from_millis(200);
    assert_eq!(
        network(&Frame::Ready.encode()[..5], true, LONG),
        ErrorKind::UnexpectedEof
    );
    assert_eq!(network(&[], false, short), ErrorKind::TimedOut);
    assert_eq!(
        network(&Frame::Ready.encode()[..5], false, short),
        ErrorKind::TimedOut
    );
}

fn rails() -> impl Strategy<Value = Rails> {
    let endpoint = (
        any::<(u32, u32, u16)>(),
        any::<[u8; 16]>(),
        any::<(u32, u32)>(),
    )
        .prop_map(|((number, psn, lid), gid, (mtu, qkey))| Endpoint {
            number,
            psn,
            lid,
            gid,
            mtu,
            qkey,
        });
    let greeting = proptest::collection::vec(any::<u8>(), 0..=MAX_HELLO);
    let services = prop_oneof![Just(Service::Rc), Just(Service::Uc), Just(Service::Ud)];
    let rail = proptest::collection::vec((endpoint, greeting), 1..=255);
    let transports = prop_oneof![Just(Transport::Rdma), Just(Transport::Tcp)];
    (services, transports, rail).prop_map(|(service, transport, rails)| {
        let (endpoints, greetings) = rails.into_iter().unzip();
        Rails {
            service,
            transport,
            endpoints,
            greetings,
        }
    })
}

proptest! {
    #[test]
    fn handshake_frames_round_trip(rails in rails(), is_answer: bool) {
        let frame = if is_answer { Frame::Answer(rails) } else { Frame::Hello(rails) };
        let bytes = frame.encode();
        prop_assert_eq!(exchange::frame_length(&bytes), Ok(bytes.len()));
        prop_assert_eq!(Frame::decode(&bytes), Ok(frame));
        prop_assert!(Frame::decode(&bytes[..bytes.len() - 1]).is_err());
    }
}

#[test]
fn peer_text_is_printed_without_control_characters() {
    assert_eq!(sanitized(b"no\x1b[2Jroom\r\n"), "no [2Jroom  ");
    assert_eq!(sanitized("a\u{202e}b\u{9b}c ä".as_bytes()), "a b c ä");
    assert_eq!(sanitized(b"\xff"), "\u{fffd}");
    assert!(sanitized("ä".repeat(500).as_bytes()).len() <= exchange::MAX_REASON);
    let refusal = exchange::Frame::Refusal("\x1b]0;secret\x07".to_owned());
    assert_eq!(refusal.kind(), "a rejection");
}
