//! Tests the start and the end of runs: too little memory, signals while the start blocks, the last frame, readiness.

use daq_testkit::network::recording;
use daq_testkit::{Daq, Done, assert_contains, free_udp_port, wait_for};
use std::net::UdpSocket;

/// A source without data, and 640 GB of slots.
const HUGE: &str = "[source.adc]\ndriver = \"sim\"\npacket = 1024\nring = \"raw\"\n\
                    [ring.raw]\nslot = \"64 KiB\"\nslots = 10000000\n\
                    [sink.drop]\ndriver = \"null\"\ninput = \"raw\"\n";

#[test]
fn ring_larger_than_the_machine_is_refused_before_allocation() {
    let daq = Daq::new(HUGE);
    for command in ["check", "run"] {
        let Done { code, stderr, .. } = daq.cli(&[command, "daq.toml"]);
        assert_eq!(code, 69, "{command}: {stderr}");
        assert_contains!(stderr => "of host memory, but", "largest ring, `raw` (10000000 × 64 KiB");
    }
    let plan = daq.cli_line("plan daq.toml").ok().stdout;
    assert_contains!(plan => "missing  the pipeline needs", "total    memory 610 GiB");
    let _ = daq.cli_line("check --no-hardware daq.toml").ok();
}

/// Frames of 8 packets with a header of 16 bytes: number of the frame and of the packet.
fn detector(port: u16) -> String {
    format!(
        "[source.d]\ndriver = \"udp\"\nlisten = \"127.0.0.1:{port}\"\nring = \"r\"\n\
         [source.d.format]\nkind = \"raw\"\nheader = \"16 B\"\npayload = \"1 KiB\"\npackets = 8\n\
         frame = {{ offset = 0, bytes = 8, endian = \"little\" }}\n\
         packet = {{ offset = 8, bytes = 4, endian = \"little\" }}\n\
         [ring.r]\nslots = 64\n[sink.n]\ndriver = \"null\"\ninput = \"r\"\n[http]\nlisten = \"127.0.0.1:0\"\n"
    )
}

/// The last packets, packets inside of the last frame, or the last frame. Packets of frames that have begun are marked in the file.
#[test]
fn finite_run_ends_although_its_last_packets_never_arrive() {
    type Missing = &'static [(u64, u32)];
    let cases: [(u64, Missing, usize); 5] = [
        (19, &[], 0),
        (20, &[(20, 7)], 1),
        (20, &[(20, 3)], 1),
        (20, &[(20, 3), (20, 7)], 2),
        (19, &[(19, 3)], 1),
    ];
    for (frames, missing, marked) in cases {
        let port = free_udp_port();
        let sink = "driver = \"file\"\npath = \"out\"\n";
        let daq = Daq::new(&detector(port).replace("driver = \"null\"\n", sink));
        let mut live = daq.spawn(&["--frames", "r=20", "--idle", "1 s"]);
        live.wait_ready();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut sent = 0;
        for frame in 1..=frames {
            for packet in (0..8).filter(|packet| !missing.contains(&(frame, *packet))) {
                let mut bytes = vec![0; 16 + 1024];
                bytes[..8].copy_from_slice(&frame.to_le_bytes());
                bytes[8..12].copy_from_slice(&packet.to_le_bytes());
                socket.send_to(&bytes, ("127.0.0.1", port)).unwrap();
                sent += 1;
            }
        }
        let outcome = live.wait().ok();
        assert_eq!(outcome.count("sources.d.expected"), 160, "{missing:?}");
        assert_eq!(outcome.count("sources.d.delivered"), sent);
        assert_eq!(outcome.count("sources.d.lost.wire_gap"), 160 - sent);
        assert_contains!(outcome.stderr => "stopping: no packet for 1 s", "of 20 frames in ring r", "never arrived");
        let is_incomplete = u64::from(marked > 0);
        assert_eq!(outcome.count("sources.d.incomplete"), is_incomplete);
        let recording = recording(&daq, "n");
        let bytes: usize = recording.missing.iter().map(std::ops::Range::len).sum();
        assert_eq!(bytes, marked * 1024, "{missing:?}");
    }
}

#[test]
fn ready_is_reported_to_file_descriptor_and_command() {
    let daq = Daq::new(&detector(free_udp_port()));
    let done = daq.cli_line("wait-ready --timeout 0s");
    assert_eq!(done.code, 69);
    let mut shell = std::process::Command::new("sh");
    let script = "exec \"$0\" run daq.toml --report json --ready-fd 3 3>ready";
    daq.prepare(&mut shell)
        .args(["-c", script])
        .arg(daq_testkit::binary());
    let live = daq.spawn_command(shell);
    let _ = daq.cli_line("wait-ready daq").ok();
    wait_for("the line", || {
        let text = std::fs::read_to_string(daq.path("ready")).ok()?;
        (text == "ready\n").then_some(())
    });
    // The attach socket accepts as soon as the run is ready.
    assert_contains!(daq.cli_line("ls").ok().stdout => "pipeline daq");
    let _ = live.stop().ok();
    let closed = daq.cli_line("run daq.toml --ready-fd 99");
    assert_eq!(closed.code, 64, "{}", closed.stderr);
}

#[test]
fn lines_for_the_journal_have_priorities() {
    use std::os::unix::fs::MetadataExt;
    let daq = Daq::new(
        "[source.adc]\ndriver = \"sim\"\nring = \"raw\"\nframes = 1\n[ring.raw]\n[sink.n]\n",
    );
    let path = daq.path("log");
    let file = std::fs::File::create(&path).unwrap();
    let metadata = file.metadata().unwrap();
    let journal = format!("{}:{}", metadata.dev(), metadata.ino());
    let mut command = daq.command(&["check", "daq.toml"]);
    let status = command.env("JOURNAL_STREAM", journal).stderr(file).status();
    assert_eq!(status.unwrap().code(), Some(78));
    let text = std::fs::read_to_string(path).unwrap();
    assert!(
        !text.is_empty() && text.lines().all(|line| line.starts_with("<3>")),
        "{text}"
    );
}
