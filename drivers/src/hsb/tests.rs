#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use daq_core::config::Document;
use daq_core::gpu::Writer;
use daq_core::topology::P2pPreference;
use daq_testkit::assert_contains;
use daq_testkit::assert_fields;
use daq_testkit::source::parse;

fn spec(text: &str) -> Result<Box<dyn SourceSpec>, String> {
    parse(
        &ENTRY,
        &format!("[source.camera]\nframe = \"1 MiB\"\n{text}"),
    )
}

const PAIR: &str = "mode = \"queue-pair\"\ndevice = \"127.0.0.1:9\"\n";

fn context(spec: &dyn SourceSpec) -> SourceContext {
    let slot = spec.facts().preferred_slot.unwrap();
    daq_testkit::source::context(spec.frames(slot).unwrap().geometry)
}

#[test]
fn key_of_the_other_mode_is_reported() {
    let cases = [
        ("", "no address to receive on"),
        ("listen = \"0.0.0.0:4791\"\nnics = [\"mlx5_0\"]", "any NIC"),
        (
            "listen = \"0.0.0.0:4791\"\npath = \"staged\"",
            "host memory",
        ),
        (
            "listen = \"0.0.0.0:4791\"\nrelaxed_ordering = true",
            "no NIC",
        ),
        ("mode = \"queue-pair\"", "must name one NIC"),
        ("mode = \"queue-pair\"\nnics = []", "must name one NIC"),
        (
            "mode = \"queue-pair\"\nnics = [\"a\", \"b\"]",
            "only one NIC",
        ),
        ("mode = \"queue-pairs\"", "queue-pair"),
    ];
    for (text, expected) in cases {
        let error = spec(text).err().unwrap_or_default();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let cases = [
        ("listen = \"0.0.0.0:4791\"", "address of its NIC"),
        ("window = 3", "no effect on a queue pair"),
        ("busy_poll = \"50 us\"", "no effect on a queue pair"),
        (
            "control = false\nqueue_pair = 1\nrkey = 1",
            "no other program",
        ),
        ("queue_pair = 1", "chooses the number"),
        ("rkey = 1", "chooses the remote key"),
        ("base = 4096", "determines the address"),
        ("stride = \"2 MiB\"", "slot size of the ring"),
        ("pages = 8", "each slot of the ring is a page"),
        ("packet = \"349440 B\"", "the packet size must be"),
        (
            "packet = \"1152 B\"\nstride = \"1 B\"",
            "distance between pages",
        ),
    ];
    for (text, expected) in cases {
        let error = spec(&format!("{PAIR}nics = [\"mlx5_0\"]\n{text}"));
        let error = error.err().unwrap_or_default();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn last_packet_shorter_than_the_marker_is_rejected() {
    let of = |frame: usize| {
        let text = format!("[source.camera]\nframe = {frame}\n{PAIR}nics = [\"mlx5_0\"]");
        let mut diagnostics = Diagnostics::new();
        let document = Document::from_text("daq.toml", &text, &mut diagnostics);
        let mut section = document.sections("source").remove(0);
        (ENTRY.parse)(&mut section, &Registry::default(), &mut diagnostics).is_some()
    };
    assert!(of(2816) && of(2824));
    assert!(!of(2817) && !of(2823));
}

#[test]
fn queue_pair_declares_its_engine_needs() {
    let card = spec(&format!("{PAIR}nics = [\"mlx5_1:2@3\"]\npath = \"staged\"")).unwrap();
    let facts = card.facts();
    let needs = facts.engine.unwrap();
    assert_eq!(needs.device.as_deref(), Some("mlx5_1"));
    assert_fields!(needs => writer: Writer::Nic, preference: P2pPreference::Staged);
    assert_eq!((needs.alignment, needs.max_slots), (128, 4096));
    assert!(needs.host_only.is_none() && !needs.can_ring_doorbell && !facts.supports_backpressure);
    assert_eq!(needs.faults, queue_pair::INFO.faults);
    assert!(facts.counts[0].counts.len() == 5 && card.frames(2 << 20).unwrap().memory == 0);
    // The slot contains a frame, rounded up to a multiple of 128, and its metadata.
    assert_eq!(facts.preferred_slot, Some((1 << 20) + 128));
    let geometry = card.frames((1 << 20) + 128).unwrap().geometry;
    assert_fields!(geometry => frame_bytes: 1 << 20, packets_per_frame: 745);
    let error = card.frames(1 << 20).err().unwrap();
    assert!(format!("{error:?}").contains("metadata"));
    assert_eq!(
        facts.claims,
        [Claim::Device("hsb 127.0.0.1:9 sensor 0".to_owned())]
    );
    let origins = facts.origins;
    assert!(
        origins[0].ends_with("queue pair of mlx5_1:2@3"),
        "{origins:?}"
    );
    let notes = facts.notes.join("\n");
    assert_contains!(notes => "cannot wait", "not yet tested on a ConnectX");

    let auto = spec(&format!("{PAIR}nics = [\"mlx5_1\"]")).unwrap();
    let why = auto.facts().engine.unwrap().host_only.unwrap();
    assert!(why.contains("path = \"direct\""), "{why}");
    let direct = spec(&format!("{PAIR}nics = [\"mlx5_1\"]\npath = \"direct\"")).unwrap();
    let facts = direct.facts();
    let needs = facts.engine.unwrap();
    assert!(needs.host_only.is_none() && needs.preference == P2pPreference::Direct);
    let notes = facts.notes.join("\n");
    assert!(notes.contains("counts as missing"), "{notes}");

    let software = spec(&format!("{PAIR}nics = [\"emulated\"]")).unwrap();
    let facts = software.facts();
    let needs = facts.engine.unwrap();
    assert!(needs.device.is_none() && needs.host_only.is_some());
    assert!(facts.notes.join("\n").contains("emulated NIC"));

    let socket = spec("listen = \"127.0.0.1:4791\"").unwrap();
    let facts = socket.facts();
    assert!(facts.engine.is_none() && facts.counts[0].counts.len() == 5);
    assert_eq!(facts.preferred_slot, Some(1 << 20));
}

#[test]
fn missing_nic_is_named() {
    let nic = spec(&format!("{PAIR}nics = [\"nosuch0\"]")).unwrap();
    let error = nic.build(&context(&*nic)).err().unwrap().to_string();
    assert!(error.contains("nosuch0"), "{error}");
    let large = spec(&format!("{PAIR}nics = [\"emulated\"]\npacket = \"8704 B\"")).unwrap();
    let error = large.build(&context(&*large)).err().unwrap().to_string();
    assert!(error.contains("4096 B"), "{error}");
    let software = spec(&format!("{PAIR}nics = [\"emulated\"]")).unwrap();
    let Producers::Engine(engine) = software.build(&context(&*software)).unwrap() else {
        panic!("not an engine")
    };
    let caps = engine.caps();
    assert!(!caps.supports_backpressure && caps.writes_past_length && caps.alignment == 128);
}

#[test]
fn packets_above_the_mtu_are_rejected_with_the_maximum() {
    for (packet, mtu, max) in [
        (1408, 1500, None),
        (1536, 1500, Some("1408 B")),
        (8832, 9000, None),
        (8960, 9000, Some("8832 B")),
        (1408, 1471, Some("1280 B")),
        (1408, 1472, None),
    ] {
        let problem = too_large(packet, "eth7", mtu);
        match max {
            None => assert_eq!(problem, None),
            Some(max) => {
                let text = problem.unwrap();
                let mtu = format!("the MTU of eth7, {mtu} bytes");
                assert_contains!(text => max, mtu.as_str(), "ip link set eth7 mtu");
            }
        }
    }
}

/// Runs in a network namespace whose loopback interface has the MTU of Ethernet.
#[test]
fn packet_size_is_compared_with_interface_mtu() {
    let thread = std::thread::spawn(|| {
        if crate::sys::own_network::enter().is_err() {
            return eprintln!("skipped: no network namespace may be created here");
        }
        let ip = std::process::Command::new("ip")
            .args(["link", "set", "lo", "mtu", "1500", "up"])
            .status();
        if !ip.is_ok_and(|status| status.success()) {
            return eprintln!("skipped: there is no `ip` command");
        }
        let of = |packet: u32| {
            let text = format!(
                "listen = \"127.0.0.1:4791\"\ndevice = \"127.0.0.1\"\npacket = \"{packet} B\""
            );
            spec(&text).unwrap()
        };
        assert_eq!(of(1408).unavailable(), None);
        let large = of(1536);
        let problem = large.unavailable().unwrap();
        assert!(problem.contains("the MTU of lo, 1500 bytes"), "{problem}");
        let error = large.build(&context(&*large)).err().unwrap().to_string();
        assert!(error.contains("the MTU of lo, 1500 bytes"), "{error}");
    });
    thread.join().unwrap();
}
