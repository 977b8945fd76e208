//! Tests of UDP sockets on the loopback interface.

use super::recv::{MESSAGE_BYTES, Message, RecvBatch};
use super::send::Sender;
use super::socket::{Interface, Options, SocketError, Timestamps, UdpSocket};
use daq_testkit::assert_contains;
use daq_testkit::loopback;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, SystemTime};

const TIMEOUT: Duration = Duration::from_secs(5);

fn open(options: &Options) -> UdpSocket {
    UdpSocket::open(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), options).unwrap()
}

fn large() -> Options {
    Options {
        receive_buffer: 1 << 20,
        ..Options::default()
    }
}

/// Receives until `bytes` bytes have arrived or no more messages arrive. Returns each message with its bytes.
fn receive(socket: &UdpSocket, bytes: usize) -> Vec<(Message, Vec<u8>)> {
    let mut batch = RecvBatch::plain(8, MESSAGE_BYTES);
    let mut all = Vec::new();
    let mut got = 0;
    while got < bytes && socket.wait(TIMEOUT).unwrap() {
        for message in 0..batch.recv(socket, usize::MAX).unwrap() {
            all.push((batch.message(message), batch.bytes(message).to_vec()));
            got += batch.bytes(message).len();
        }
    }
    all
}

fn packets(count: u8, size: usize) -> Vec<u8> {
    (0..count)
        .flat_map(|i| std::iter::repeat_n(i, size))
        .collect()
}

#[test]
fn plain_packets_arrive_one_per_message() {
    let socket = open(&large());
    loopback::stay();
    let sent = packets(20, 1472);
    Sender::open(socket.local(), false, None)
        .unwrap()
        .send_packets(&sent, 1472)
        .unwrap();
    let received = receive(&socket, sent.len());
    assert_eq!(received.len(), 20);
    for (message, bytes) in &received {
        let expected = Message {
            bytes: 1472,
            segment: 1472,
            timestamp_ns: None,
            is_hardware_time: false,
            truncated: false,
        };
        assert_eq!(
            (message, bytes.len(), message.packets()),
            (&expected, 1472, 1)
        );
    }
    assert_eq!(received.concat_bytes(), sent);
    assert_eq!(socket.mem_info().unwrap().drops, 0);
}

trait ConcatBytes {
    fn concat_bytes(&self) -> Vec<u8>;
}

impl ConcatBytes for Vec<(Message, Vec<u8>)> {
    fn concat_bytes(&self) -> Vec<u8> {
        self.iter().flat_map(|(_, bytes)| bytes.clone()).collect()
    }
}

#[test]
fn empty_socket_returns_no_message() {
    let socket = open(&Options::default());
    assert_eq!(RecvBatch::plain(4, 2048).recv(&socket, 4).unwrap(), 0);
    assert!(!socket.wait(Duration::ZERO).unwrap());
}

#[test]
fn empty_and_truncated_datagrams_are_reported() {
    let socket = open(&Options::default());
    loopback::stay();
    let mut sender = Sender::open(socket.local(), false, None).unwrap();
    sender.send(&[]).unwrap();
    sender.send(&[7; 100]).unwrap();
    let mut batch = RecvBatch::plain(2, 60);
    let mut seen = Vec::new();
    while seen.len() < 2 && socket.wait(TIMEOUT).unwrap() {
        for message in 0..batch.recv(&socket, 2).unwrap() {
            seen.push((batch.message(message), batch.bytes(message).to_vec()));
        }
    }
    let whole = Message::default();
    assert_eq!(seen[0], (whole, vec![]));
    assert_eq!(
        seen[1],
        (
            Message {
                bytes: 60,
                segment: 60,
                truncated: true,
                ..whole
            },
            vec![7; 60]
        )
    );
}

#[test]
fn coalesced_packets_have_segment_size() {
    let socket = open(&Options {
        coalesce: true,
        timestamps: Timestamps::Software,
        ..large()
    });
    if !socket.coalesces() {
        println!("skipped: this kernel has no UDP_GRO");
        return;
    }
    // The last packet is shorter, like the last packet of a heap.
    loopback::stay();
    let mut sent = packets(100, 1472);
    sent.truncate(sent.len() - 1000);
    let mut sender = Sender::open(socket.local(), true, None).unwrap();
    sender.send_packets(&sent, 1472).unwrap();
    let received = receive(&socket, sent.len());
    assert_eq!(received.concat_bytes(), sent);
    assert_eq!(
        received
            .iter()
            .map(|(message, _)| message.packets())
            .sum::<usize>(),
        100
    );
    if received.len() == 100 {
        println!("skipped: this kernel cut every message (no UDP_SEGMENT)");
        return;
    }
    assert!(
        received
            .iter()
            .all(|(message, _)| message.packets() == 1 || message.segment == 1472),
        "{received:?}"
    );
    assert!(
        received
            .iter()
            .all(|(message, _)| message.timestamp_ns.is_some())
    );
}

#[test]
fn receive_timestamps_are_current() {
    let socket = open(&Options {
        timestamps: Timestamps::Software,
        ..Options::default()
    });
    let now = || u64::try_from(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos()).unwrap();
    let before = now();
    Sender::open(socket.local(), false, None)
        .unwrap()
        .send(&[1; 8])
        .unwrap();
    let received = receive(&socket, 8);
    let stamp = received[0].0.timestamp_ns.unwrap();
    // The host's clock may be adjusted during the test, but hardly by ten minutes.
    let slack = 600_000_000_000;
    assert!(before - slack < stamp && stamp < now() + slack, "{stamp}");
}

/// The loopback interface has no clock of its own, so Linux reports its own time.
#[test]
fn messages_without_hardware_time_have_time_of_linux() {
    let socket = open(&Options {
        coalesce: true,
        timestamps: Timestamps::Hardware,
        ..large()
    });
    let mut sender = Sender::open(socket.local(), false, None).unwrap();
    // Linux begins to take times in the background after they are requested.
    let begins = (0..100_000).any(|_| {
        sender.send(&[1; 8]).unwrap();
        receive(&socket, 8)[0].0.timestamp_ns.is_some()
    });
    assert!(begins);
    sender.send_packets(&packets(20, 1472), 1472).unwrap();
    let received = receive(&socket, 20 * 1472);
    let is_software =
        |message: &Message| message.timestamp_ns > Some(1) && !message.is_hardware_time;
    assert!(
        received.iter().all(|(message, _)| is_software(message)),
        "{received:?}"
    );
}

#[test]
fn scatter_separates_headers_and_payloads() {
    const HEADER: usize = 16;
    const PAYLOAD: usize = 500;
    const COUNT: usize = 10;
    let socket = open(&Options {
        coalesce: true,
        ..large()
    });
    let mut headers = [0u8; COUNT * HEADER];
    let mut payloads = [0u8; COUNT * PAYLOAD];
    let mut spare = [0u8; 4096];
    let mut batch = RecvBatch::scatter(1, 2 * COUNT + 1);
    for (header, payload) in headers.chunks_mut(HEADER).zip(payloads.chunks_mut(PAYLOAD)) {
        // SAFETY: the buffers live longer than the batch's only `recv` and are not accessed before it has returned.
        unsafe {
            assert!(batch.push(0, header.as_mut_ptr(), header.len()));
            assert!(batch.push(0, payload.as_mut_ptr(), payload.len()));
        }
    }
    // SAFETY: as above. The second push is rejected.
    unsafe {
        assert!(batch.push(0, spare.as_mut_ptr(), spare.len()));
        assert!(!batch.push(0, spare.as_mut_ptr(), spare.len()));
    }
    let sent = packets(u8::try_from(COUNT).unwrap(), HEADER + PAYLOAD);
    Sender::open(socket.local(), true, None)
        .unwrap()
        .send_packets(&sent, HEADER + PAYLOAD)
        .unwrap();
    assert!(socket.wait(TIMEOUT).unwrap());
    assert_eq!(batch.recv(&socket, 8).unwrap(), 1);
    let message = batch.message(0);
    batch.clear(0);
    // Without coalescing, the message contains only the first packet. Its parts must be in the correct buffers.
    let got = message.packets();
    assert!(
        got == COUNT || message.segment == message.bytes,
        "{message:?}"
    );
    for i in 0..got {
        let expected = u8::try_from(i).unwrap();
        assert!(
            headers[i * HEADER..][..HEADER]
                .iter()
                .all(|byte| *byte == expected),
            "header {i}"
        );
        assert!(
            payloads[i * PAYLOAD..][..PAYLOAD]
                .iter()
                .all(|byte| *byte == expected),
            "payload {i}"
        );
    }
    assert!(spare.iter().all(|byte| *byte == 0));
}

#[test]
fn granted_buffer_size_is_returned() {
    let granted = open(&large()).granted();
    assert_eq!(granted.asked, 1 << 20);
    assert!(granted.got > 0);
    let asked = 1 << 29;
    let granted = open(&Options {
        receive_buffer: asked,
        ..Options::default()
    })
    .granted();
    // Either a privilege allowed the full size, or the message names the limit and the command.
    if granted.is_short() {
        assert!(!granted.forced);
        let text = granted.to_string();
        assert_contains!(text => "sudo sysctl -w net.core.rmem_max=536870912");
    } else {
        assert!(granted.got >= asked);
    }
    assert_eq!(open(&Options::default()).granted().asked, 0);
    let absurd = open(&Options {
        receive_buffer: 1 << 40,
        ..Options::default()
    })
    .granted();
    assert!(
        absurd.is_short()
            && absurd
                .to_string()
                .ends_with("Linux grants at most 1073741823 bytes"),
        "{absurd}"
    );
}

#[test]
fn socket_drops_are_counted() {
    let socket = open(&Options {
        receive_buffer: 4096,
        ..Options::default()
    });
    let mut sender = Sender::open(socket.local(), false, None).unwrap();
    loopback::stay();
    sender.send_packets(&packets(200, 1000), 1000).unwrap();
    loopback::arrived();
    let info = socket.mem_info().unwrap();
    let received = receive(&socket, 1000);
    assert!(info.drops > 0 && info.drops < 200, "{info:?}");
    assert!(info.queued > 0 && info.limit > 0 && !received.is_empty());
}

#[test]
fn port_in_use_is_named() {
    let first = open(&Options::default());
    let error = UdpSocket::open(first.local(), &Options::default()).unwrap_err();
    assert!(matches!(error, SocketError::InUse { address } if address == first.local()));
    let port = first.local().port();
    let expected = format!(
        "the port is in use by another program: stop that program (`ss -lunp sport = :{port}` names it)"
    );
    assert!(error.to_string().starts_with(&expected), "{error}");
}

#[test]
fn group_sockets_share_port() {
    let options = Options {
        reuse_port: true,
        ..large()
    };
    let first = open(&options);
    let second = UdpSocket::open(first.local(), &options).unwrap();
    loopback::stay();
    // Each sender is one flow. All packets of a flow arrive at the same socket.
    for i in 0..8u8 {
        Sender::open(first.local(), false, None)
            .unwrap()
            .send_packets(&[i; 300], 100)
            .unwrap();
    }
    loopback::arrived();
    let mut count = [0; 8];
    for socket in [&first, &second] {
        let mut batch = RecvBatch::plain(64, 200);
        let mut own = [0; 8];
        for message in 0..batch.recv(socket, 64).unwrap() {
            own[usize::from(batch.bytes(message)[0])] += 1;
        }
        assert!(
            own.iter().all(|packets| [0, 3].contains(packets)),
            "{own:?}"
        );
        (0..8).for_each(|i| count[i] += own[i]);
    }
    assert_eq!(count, [3; 8]);
}

#[test]
fn bind_or_join_failure_is_named() {
    let open = |address: &str, options: &Options| {
        UdpSocket::open(address.parse().unwrap(), options).unwrap_err()
    };
    let error = open("192.0.2.1:4000", &Options::default());
    assert!(
        matches!(error, SocketError::NoSuchAddress { .. }),
        "{error}"
    );
    let on = |interface: &str, group: &str| Options {
        interface: Some(Interface::from(interface)),
        groups: vec![group.parse().unwrap()],
        ..Options::default()
    };
    let error = open("0.0.0.0:0", &on("nosuch0", "239.1.2.3"));
    assert_eq!(
        error.to_string(),
        "there is no interface nosuch0: `ip link` lists all interfaces"
    );
    let error = open("0.0.0.0:0", &on("lo", "10.1.2.3"));
    assert!(matches!(error, SocketError::NoGroup { .. }), "{error}");
    let error = open("0.0.0.0:0", &on("192.0.2.1", "239.1.2.3"));
    assert!(matches!(error, SocketError::Join { .. }), "{error}");
    assert!(
        error
            .to_string()
            .starts_with("cannot join 239.1.2.3 on 192.0.2.1: "),
        "{error}"
    );
    let error = open("[::]:0", &on("127.0.0.1", "ff02::99"));
    assert!(
        matches!(error, SocketError::InterfaceNeedsName { .. }),
        "{error}"
    );
}

/// Sends to `group` over `interface`. A socket bound to the group and a wildcard socket that joined it must both
/// receive the packet.
fn multicast(group: &str, wildcard: &str, interface: &Interface) -> Result<(), String> {
    let free = UdpSocket::open(
        SocketAddr::new(wildcard.parse().unwrap(), 0),
        &Options::default(),
    );
    let port = free.map_err(|error| error.to_string())?.local().port();
    let group = SocketAddr::new(group.parse().unwrap(), port);
    let base = Options {
        interface: Some(interface.clone()),
        ..large()
    };
    let joined = Options {
        groups: vec![group.ip()],
        ..base.clone()
    };
    for (address, options) in [
        (group, base),
        (SocketAddr::new(wildcard.parse().unwrap(), port), joined),
    ] {
        let socket = UdpSocket::open(address, &options).map_err(|error| error.to_string())?;
        let mut sender =
            Sender::open(group, false, Some(interface)).map_err(|error| error.to_string())?;
        sender
            .send(b"to the group")
            .map_err(|error| error.to_string())?;
        assert_eq!(
            receive(&socket, 12).concat_bytes(),
            b"to the group",
            "{address}"
        );
    }
    Ok(())
}

#[test]
fn multicast_over_loopback_is_received() {
    let by_name = Interface::from("lo");
    let by_address = Interface::from("127.0.0.1");
    assert_eq!(by_address, Interface::Address(Ipv4Addr::LOCALHOST));
    for (group, wildcard, interface) in [
        ("239.255.77.77", "0.0.0.0", &by_name),
        ("239.255.77.78", "0.0.0.0", &by_address),
        ("ff01::77", "::", &by_name),
    ] {
        if let Err(why) = multicast(group, wildcard, interface) {
            println!("skipped: no multicast to {group} over {interface} here: {why}");
        }
    }
}
