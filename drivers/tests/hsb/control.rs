//! Tests of the control plane: arming and disarming a sensor of an emulated device.

use super::*;
use daq_testkit::wait_until;

/// A device whose registers are stored in memory, and which records its requests.
struct Device {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    registers: Arc<Mutex<BTreeMap<u32, u32>>>,
}

/// A request: whether it writes, the register address, and the value.
type Asked = (bool, u32, u32);

/// Register addresses of the real device: host interface 0, and virtual port 3.
const MASK: u32 = 0x0200_030c;
const PACKET_SIZE: u32 = 0x0200_0304;
const PORT_3: u32 = 0x10c0;

impl Device {
    /// Starts a device with the enable mask `mask` and a packet size of `packet` × 128 bytes. It rejects writes to
    /// register `refuses`.
    fn new(mask: u32, packet: u32, refuses: Option<u32>) -> Self {
        Self::at("127.0.0.1:0".parse().unwrap(), mask, packet, refuses)
    }

    fn at(address: SocketAddr, mask: u32, packet: u32, refuses: Option<u32>) -> Self {
        let socket = UdpSocket::bind(address).unwrap();
        let address = socket.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let notes = asked.clone();
        let registers = BTreeMap::from([(MASK, mask), (PACKET_SIZE, packet)]);
        let registers = Arc::new(Mutex::new(registers));
        let shared = registers.clone();
        // The thread runs until the process ends, because a device runs independently of its users.
        std::thread::spawn(move || {
            let mut bytes = [0; 64];
            loop {
                let (got, from) = socket.recv_from(&mut bytes).unwrap();
                let reply = &mut bytes[..got];
                let word = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().unwrap());
                let (writes, address, word) = (reply[0] == 4, word(6), word(10));
                assert!(got == 14 && (writes || reply[0] == 0x14));
                let mut registers = shared.lock().unwrap();
                notes.lock().unwrap().push((writes, address, word));
                let refused = writes && refuses == Some(address) && word != 0;
                if writes && !refused {
                    registers.insert(address, word);
                }
                reply[0] |= 0x80;
                reply[4] = if refused { 3 } else { 0 };
                let word = registers.get(&address).copied().unwrap_or(0);
                drop(registers);
                reply[10..14].copy_from_slice(&word.to_be_bytes());
                socket.send_to(reply, from).unwrap();
            }
        });
        Self {
            address,
            asked,
            registers,
        }
    }

    /// Returns the value of a register; 0 if nothing was written.
    fn register(&self, address: u32) -> u32 {
        let registers = self.registers.lock().unwrap();
        registers.get(&address).copied().unwrap_or(0)
    }

    /// Clears all registers, like a device restart.
    fn restart(&self) {
        self.registers.lock().unwrap().clear();
    }

    /// Returns the writes since the last call.
    fn written(&self) -> Vec<(u32, u32)> {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        let writes = asked.into_iter().filter(|(writes, ..)| *writes);
        writes.map(|(_, address, word)| (address, word)).collect()
    }

    /// Writes a register like another host.
    fn write(&self, register: u32, word: u32) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(self.address).unwrap();
        let mut request = vec![4, 1, 0, 1, 0, 0];
        request.extend(register.to_be_bytes());
        request.extend(word.to_be_bytes());
        socket.send(&request).unwrap();
        assert_eq!(socket.recv(&mut [0; 64]).unwrap(), 14);
    }

    fn sensor(&self, listen: SocketAddr, more: &str) -> SourceFixture {
        let more = format!("device = \"{}\"\n{more}", self.address);
        let spec = spec(&ENTRY, &text(listen, &more)).unwrap();
        new_fixture(&*spec, FRAME.next_multiple_of(64), 8).unwrap()
    }
}

#[test]
fn sensor_is_armed_in_order_and_disarmed_in_reverse() {
    let device = Device::new(0b1_1000, 4, None);
    let listen = free_address();
    let mut fixture = device.sensor(listen, "sensor = 3");
    assert_eq!(device.written(), []);
    fixture.fillers[0].start().unwrap();
    let port = [
        (0x00, 5),
        (0x04, 9),
        (0x08, 0x10_0000),
        (0x0c, 0),
        (0x10, u32::try_from(STRIDE).unwrap() / 128),
        (0x14, u32::try_from(PAGES).unwrap() - 1),
        (0x18, u32::try_from(FRAME).unwrap()),
        (0x20, 0),
        (0x24, 0),
        (0x28, 0x7f00_0001),
        (0x2c, u32::from(listen.port())),
    ]
    .map(|(register, word)| (PORT_3 + register, word));
    // The vendor's order: packet size and source port before the sensor's registers, of which the host's port is last.
    let mut expected = vec![(MASK, 0b1_0000), (PACKET_SIZE, 4), (0x0200_0308, 12_288)];
    expected.extend(port);
    expected.push((MASK, 0b1_1000));
    assert_eq!(device.written(), expected);

    loopback::stay();
    let mut sender = Sender::open(listen, false, None).unwrap();
    send(&mut fixture, &mut sender, &SENSOR.frame(0));
    assert_eq!(fixture.report().delivered, PACKETS as u64);

    drop(fixture);
    let mut expected = vec![(MASK, 0b1_0000)];
    expected.extend(port.iter().rev().map(|(register, _)| (*register, 0)));
    assert_eq!(device.written(), expected);
}

#[test]
fn sensor_arming_failure_leaves_it_disarmed_and_retries() {
    let device = Device::new(1, 4, Some(PORT_3 + 0x14));
    let mut fixture = device.sensor(free_address(), "sensor = 3");
    // The failure must not end the run, because other sources would end too.
    fixture.fillers[0].start().unwrap();
    let written = device.written();
    let (begun, undone) = written.split_at(9);
    assert_eq!(begun[0], (MASK, 1));
    assert_eq!(begun[8].0, PORT_3 + 0x14);
    assert_eq!(undone[0], (MASK, 1));
    // On a slow host, the next attempt may have started already.
    let undone = &undone[..12];
    wait_until("another try", || !device.written().is_empty());
    assert!(
        undone[1..]
            .iter()
            .all(|(register, word)| (PORT_3..PORT_3 + 0x30).contains(register) && *word == 0)
    );
}

#[test]
fn sensors_of_one_data_plane_share_packet_size() {
    let device = Device::new(1, 11, None);
    let mut fixture = device.sensor(free_address(), "sensor = 3");
    fixture.fillers[0].start().unwrap();
    drop(fixture);
    // The packet size must remain that of the sensors that send. This sensor could not be armed, so it does not send.
    assert_eq!(
        (device.register(PACKET_SIZE), device.register(MASK)),
        (11, 1)
    );
    device.written();
    // Another plane has a separate host interface.
    let mut fixture = device.sensor(free_address(), "sensor = 3\nplane = 1");
    fixture.fillers[0].start().unwrap();
    assert!(device.written().contains(&(0x0201_030c, 0b1000)));
}

#[test]
fn sensor_taken_over_by_other_host_is_not_rearmed() {
    // In this order: another key, another host with the same key, and another port of the same host.
    for (register, word) in [(0x04, 10), (0x28, 0x7f00_0002), (0x2c, 1)] {
        let device = Device::new(0, 4, None);
        let mut fixture = device.sensor(free_address(), "sensor = 3");
        fixture.fillers[0].start().unwrap();
        device.write(PORT_3 + register, word);
        device.written();
        drop(fixture);
        assert_eq!(device.written(), [], "{register:#x}");
    }
}

#[test]
fn sensor_used_twice_is_rejected_for_any_device_name() {
    let device = Device::new(0, 4, None);
    let more = format!("device = \"{}\"\nsensor = 3", device.address);
    let build = || {
        let spec = spec(&ENTRY, &text(free_address(), &more)).unwrap();
        new_fixture(&*spec, FRAME.next_multiple_of(64), 8)
    };
    let first = build().unwrap();
    let error = build().err().unwrap().to_string();
    assert!(error.contains("already used by another source"), "{error}");
    drop(first);
    let mut next = build().unwrap();
    next.fillers[0].start().unwrap();
    let error = build().err().unwrap().to_string();
    assert!(error.contains("already used by another source"), "{error}");
}

#[test]
fn sensor_is_claimed_once() {
    let parsed = |more: &str| {
        spec(&ENTRY, &text("127.0.0.1:4791".parse().unwrap(), more))
            .unwrap()
            .facts()
            .claims
    };
    let conflict = |one: &str, other: &str| {
        let (one, other) = (parsed(one), parsed(other));
        // Skip the first claim, the listening address, which is the same in all cases.
        one[1..]
            .iter()
            .any(|one| other[1..].iter().any(|other| one.conflicts(other)))
    };
    assert!(conflict(
        "device = \"192.168.0.2\"",
        "device = \"192.168.0.2:8192\"\nplane = 1"
    ));
    assert!(!conflict(
        "device = \"192.168.0.2\"",
        "device = \"192.168.0.2\"\nsensor = 1"
    ));
    assert!(!conflict(
        "device = \"192.168.0.2\"",
        "device = \"192.168.0.3\""
    ));
    assert!(!conflict("control = false", "control = false"));
}

#[test]
fn hsb_keys_invalid_are_rejected() {
    let to: SocketAddr = "127.0.0.1:4791".parse().unwrap();
    for (more, key) in [
        ("packet = 500", "packet"),
        ("packet = \"70 KiB\"", "packet"),
        ("pages = 0", "pages"),
        ("pages = 4097", "pages"),
        ("sensor = 32", "sensor"),
        ("plane = 32", "plane"),
        ("device = \"there\"", "device"),
        ("device = \"::1\"", "device"),
        ("stride = 2560", "stride"),
        ("stride = 2700", "stride"),
        ("base = 0x7fff_ffff_ffff_ffff\nstride = \"4 TiB\"", "stride"),
        ("frame = 0", "frame"),
        ("window = 0", "window"),
        ("resync_after = 0", "resync_after"),
        ("queue_pair = 0x100_0000", "queue_pair"),
    ] {
        let taken = more.split(' ').next().unwrap();
        let mut whole = text(to, "");
        for line in whole.clone().lines().filter(|line| {
            more.lines()
                .any(|more| line.split(' ').next() == more.split(' ').next())
        }) {
            whole = whole.replace(&format!("{line}\n"), "");
        }
        let error = spec(&ENTRY, &format!("{whole}{more}\n")).err();
        let error = error.unwrap_or_else(|| panic!("`{more}` is taken"));
        assert!(error.contains(key), "{taken}: {error}");
    }
    let without = "[source.camera]\ndriver = \"hsb\"\nring = \"raw\"\nlisten = \"127.0.0.1:4791\"\nframe = 1000\ncontrol = false\n";
    assert!(spec(&ENTRY, without).err().unwrap().contains("rkey"));
    assert!(spec(&ENTRY, ENTRY.example).is_ok());
}

#[test]
fn device_absent_at_startup_is_armed_when_it_replies() {
    let (absent, listen) = (free_address(), free_address());
    let spec = spec(&ENTRY, &text(listen, &format!("device = \"{absent}\""))).unwrap();
    let mut fixture = new_fixture(&*spec, FRAME.next_multiple_of(64), 8).unwrap();
    fixture.fillers[0].start().unwrap();
    let device = Device::at(absent, 0, 0, None);
    wait_until("the sensor to be armed", || device.register(MASK) == 1);
    loopback::stay();
    let mut sender = Sender::open(listen, false, None).unwrap();
    send(&mut fixture, &mut sender, &SENSOR.frame(0));
    assert_eq!(fixture.report().delivered, PACKETS as u64);
    drop(fixture);
    assert_eq!(device.register(MASK), 0);
}

#[test]
fn device_without_registers_is_rearmed_with_new_key() {
    const RKEY: u32 = 0x1004;
    let device = Device::new(0, 4, None);
    let listen = free_address();
    let more = format!("device = \"{}\"\nrearm_after = \"100 ms\"", device.address);
    let text = text(listen, &more).replace("rkey = 9\n", "");
    let mut fixture = new_fixture(
        &*spec(&ENTRY, &text).unwrap(),
        FRAME.next_multiple_of(64),
        64,
    )
    .unwrap();
    fixture.fillers[0].start().unwrap();
    loopback::stay();
    let mut sender = Sender::open(listen, false, None).unwrap();
    let frame = |frame, rkey| {
        let packets = SENSOR.frame(frame).into_iter();
        packets
            .map(|packet| Packet { rkey, ..packet })
            .collect::<Vec<_>>()
    };
    let before = device.register(RKEY);
    for n in 0..10 {
        send(&mut fixture, &mut sender, &frame(n, before));
    }
    device.restart();
    wait_until("the sensor to be armed again", || {
        device.register(MASK) == 1
    });
    let after = device.register(RKEY);
    assert_ne!(after, before);
    // A packet sent before the restart is rejected because of its key.
    send(&mut fixture, &mut sender, &frame(10, before));
    let report = fixture.report();
    assert_eq!((report.epochs, report.rejected), (1, PACKETS as u64 + 1));
    // The device restarts its count, so its numbers repeat earlier ones.
    for n in 0..5 {
        send(&mut fixture, &mut sender, &frame(n, after));
    }
    fixture.windows[0].finish();
    let report = fixture.report();
    assert_eq!((report.epochs, report.rejected), (2, PACKETS as u64 + 1));
    assert_eq!((report.expected, report.delivered), (75, 75));
    let frames: Vec<_> = fixture
        .read()
        .iter()
        .map(|frame| (frame.0, frame.1))
        .collect();
    assert_eq!(
        frames[9..],
        [(9, 1), (0, 2), (1, 2), (2, 2), (3, 2), (4, 2)]
    );
}

#[test]
fn idle_sensor_with_registers_is_not_rearmed() {
    let device = Device::new(0, 4, None);
    let mut fixture = device.sensor(free_address(), "rearm_after = \"100 ms\"");
    fixture.fillers[0].start().unwrap();
    device.written();
    // The registers must have been read back three times.
    let reads = |(writes, register, _): &&Asked| !*writes && *register == MASK;
    wait_until("registers to be read back", || {
        device.asked.lock().unwrap().iter().filter(reads).count() >= 3
    });
    assert_eq!(device.written(), []);
}

#[test]
fn long_replay_with_own_key_changes_nothing() {
    let device = Device::new(0, 4, None);
    let listen = free_address();
    let text = text(listen, &format!("device = \"{}\"", device.address));
    let spec = spec(&ENTRY, &text.replace("rkey = 9\n", "")).unwrap();
    let mut fixture = new_fixture(&*spec, FRAME.next_multiple_of(64), 64).unwrap();
    fixture.fillers[0].start().unwrap();
    let key = |(register, _): &&(u32, u32)| *register == 0x1004;
    let rkey = device.written().iter().find(key).unwrap().1;
    let frame = |frame| {
        let packets = SENSOR.frame(frame).into_iter();
        packets
            .map(|packet| Packet { rkey, ..packet })
            .collect::<Vec<_>>()
    };
    loopback::stay();
    let mut sender = Sender::open(listen, false, None).unwrap();
    for n in 0..40 {
        send(&mut fixture, &mut sender, &frame(n));
    }
    for n in 3..23 {
        send(&mut fixture, &mut sender, &frame(n));
    }
    for n in 40..43 {
        send(&mut fixture, &mut sender, &frame(n));
    }
    let report = fixture.report();
    assert_eq!((report.epochs, report.rejected), (1, 0));
    assert_eq!(report.duplicates, 20 * (PACKETS as u64 + 1));
    assert_eq!((report.expected, report.delivered), (215, 215));
    let frames: Vec<u64> = fixture.read().iter().map(|frame| frame.0).collect();
    assert_eq!(frames, (0..43).collect::<Vec<_>>());
}
