//! Tests streams between two daemons, with emulated NICs and over TCP: sim → sink stream ⇒ source stream → file.

use daq_testkit::{
    Daq, Live, Outcome, Random, assert_contains, assert_counts, files, free_tcp_port, ledger,
};
use serde_json::Value;

/// Bytes per packet. The next constants are the packets per frame and the bytes per frame.
pub(super) const PACKET: u64 = 64;
pub(super) const PACKETS_PER_FRAME: u64 = 8;
pub(super) const FRAME: u64 = PACKET * PACKETS_PER_FRAME;

/// Returns a sender of `frames` frames of a counter, which sends as fast as possible.
pub(super) fn near(port: u16, frames: u64, keys: &str, faults: &str) -> Daq {
    paced(port, frames, "free", keys, faults)
}

/// Same as [`near`], with a given pace.
pub(super) fn paced(port: u16, frames: u64, pace: &str, keys: &str, faults: &str) -> Daq {
    Daq::new(&format!(
        "[source.adc]\ndriver = \"sim\"\nring = \"raw\"\npattern = \"counter\"\npacket = {PACKET}\n\
         backpressure = true\nframes = {frames}\npace = \"{pace}\"\n\
         [source.adc.faults]\n{faults}\n\
         [ring.raw]\nslot = {FRAME}\nslots = 256\n\
         [sink.far]\ndriver = \"stream\"\ninput = \"raw\"\nto = \"127.0.0.1:{port}\"\nguarantee = true\n{keys}\n\
         [http]\nlisten = \"127.0.0.1:0\"\n"
    ))
}

/// Returns a receiver that writes files.
pub(super) fn far(port: u16, keys: &str, sink: &str) -> Daq {
    Daq::new(&format!(
        "[source.link]\ndriver = \"stream\"\nring = \"raw\"\nlisten = \"127.0.0.1:{port}\"\npackets_per_frame = {PACKETS_PER_FRAME}\n{keys}\n\
         [ring.raw]\nslot = {FRAME}\nslots = 64\n\
         [sink.disk]\ninput = \"raw\"\nguarantee = true\n{sink}\n\
         [http]\nlisten = \"127.0.0.1:0\"\n"
    ))
}

pub(super) const FILE: &str =
    "driver = \"file\"\npath = \"out\"\nbuffer = \"64 KiB\"\nsegment = \"1 MiB\"";
pub(super) const CARD: &str = "transport = \"rdma\"\nnics = [\"emulated\"]";
/// Ends a sender that cannot send its frames without waiting for them.
const NO_DRAIN: [&str; 2] = ["--drain", "100 ms"];
pub(super) const TCP: &str = "transport = \"tcp\"";

/// Returns the data of all segments, in order.
pub(super) fn data(daq: &Daq) -> Vec<u8> {
    files(&daq.path("out"), ".sigmf-data")
        .iter()
        .flat_map(|path| std::fs::read(path).unwrap())
        .collect()
}

/// Returns the bytes of the given packets of the counter. Missing packets contain zeros.
pub(super) fn counter(packets: std::ops::Range<u64>, is_missing: impl Fn(u64) -> bool) -> Vec<u8> {
    let words =
        packets.flat_map(|packet| (0..PACKET / 8).map(move |i| (packet, packet * PACKET / 8 + i)));
    let words = words.map(|(packet, word)| if is_missing(packet) { 0 } else { word });
    words.flat_map(u64::to_le_bytes).collect()
}

/// Checks that the data of a receiver consists of frames of the counter in order. Returns their number.
fn frames_in_order(data: &[u8], frames: u64, is_missing: impl Fn(u64) -> bool) -> u64 {
    let mut expected = (0..frames).map(|frame| {
        counter(
            frame * PACKETS_PER_FRAME..(frame + 1) * PACKETS_PER_FRAME,
            &is_missing,
        )
    });
    let received = data.chunks(usize::try_from(FRAME).unwrap());
    received
        .map(|frame| assert!(expected.any(|one| one == frame), "unknown or out of order"))
        .count() as u64
}

/// Stops a receiver after it has delivered `frames` frames.
pub(super) fn end(mut far: Live, frames: u64) -> Outcome {
    far.wait_count("sources.link.delivered", frames);
    far.stop().ok()
}

#[test]
fn stream_delivers_sent_frames() {
    for (frames, transport, shared) in [
        (400, CARD, ""),
        (400, CARD, "mode = \"send\""),
        (400, CARD, "queue_pairs = 3"),
        (400, TCP, ""),
        (400, TCP, "connections = 3"),
    ] {
        let port = free_tcp_port();
        let keys = format!("{transport}\n{shared}");
        let receiver = far(port, &keys, FILE);
        let sender = near(port, frames, &keys, "lose = [17, \"100..120\"]");
        let mut there = receiver.spawn(&[]);
        there.wait_ready();
        let sent = sender.run(&[]).ok();
        let came = end(there, frames);
        assert_counts!(sent, "sinks.far" => frames: frames, connections: 1);
        assert_eq!(came.count("sources.link.expected"), frames);
        assert_eq!(ledger::lost(&came.report, "link"), 0);
        let missing = |packet: u64| packet == 17 || (100..120).contains(&packet);
        assert!(
            data(&receiver) == counter(0..frames * PACKETS_PER_FRAME, missing),
            "{shared}"
        );
        // Sender and receiver must report the same missing frames.
        let metas = files(&receiver.path("out"), ".sigmf-meta");
        let meta: Value = serde_json::from_slice(&std::fs::read(&metas[0]).unwrap()).unwrap();
        let annotations = meta["annotations"].as_array().unwrap();
        let reported = annotations
            .iter()
            .filter(|one| one["core:label"] == "missing");
        let reported: u64 = reported
            .map(|one| one["core:sample_count"].as_u64().unwrap())
            .sum();
        assert_eq!(reported, 21 * PACKET, "{annotations:#?}");
    }
}

/// An unreliable connection loses frames for which the receiver has not posted a receive in time. Each of them must be
/// counted, and all other frames must be intact.
#[test]
fn unreliable_stream_counts_every_frame() {
    let (port, frames) = (free_tcp_port(), 50);
    let keys = format!("{CARD}\nservice = \"uc\"");
    let receiver = far(port, &keys, FILE);
    let sender = near(port, frames, &keys, "lose = [17, \"100..120\"]");
    let mut there = receiver.spawn(&[]);
    there.wait_ready();
    let sent = sender.run(&[]).ok();
    // The sender reports its number of frames when it ends. So frames lost at the end are also expected.
    there.wait_count("sources.link.expected", frames);
    let came = there.stop().ok();
    assert_eq!(sent.count("sinks.far.frames"), frames);
    assert_eq!(came.count("sources.link.expected"), frames);
    let delivered = came.count("sources.link.delivered");
    assert!(delivered > 0, "{:#}", came.report);
    assert_eq!(delivered + ledger::lost(&came.report, "link"), frames);
    let missing = |packet: u64| packet == 17 || (100..120).contains(&packet);
    let data = data(&receiver);
    assert_eq!(frames_in_order(&data, frames, missing), delivered);
}

#[test]
fn stream_after_link_cuts_has_no_loss_or_duplicates() {
    let (port, frames) = (free_tcp_port(), 20_000);
    let there = "transport = \"rdma\"\nnics = [\"emulated?cut-received@3000,cut-received@21000,timeout=200\"]\nqueue_pairs = 2";
    let here = "transport = \"rdma\"\nnics = [\"emulated?cut@500,cut@12000,kill@30000,timeout=200\"]\nqueue_pairs = 2";
    let receiver = far(port, there, FILE);
    let mut live = receiver.spawn(&[]);
    live.wait_ready();
    let sent = near(port, frames, here, "").run(&[]).ok();
    let came = end(live, frames);
    assert_counts!(sent, "sinks.far" => frames: frames, dropped: 0);
    assert!(sent.count("sinks.far.connections") > 3, "{}", sent.stderr);
    assert_eq!(came.count("sources.link.delivered"), frames);
    assert_eq!(ledger::lost(&came.report, "link"), 0);
    assert!(data(&receiver) == counter(0..frames * PACKETS_PER_FRAME, |_| false));
}

#[test]
fn stream_peer_killed_reconnects() {
    peer_killed_reconnects(CARD);
}

#[test]
fn tcp_peer_killed_reconnects() {
    peer_killed_reconnects(&format!("{TCP}\nconnections = 2"));
}

fn peer_killed_reconnects(keys: &str) {
    let (port, frames) = (free_tcp_port(), 20_000);
    let mut random = Random(6);
    // The stream is slow enough that the sender is connected each time a receiver is killed.
    let sender = paced(port, frames, "10 Mbit/s", keys, "");
    let mut receiver = far(port, keys, FILE);
    let mut there = receiver.spawn(&[]);
    there.wait_ready();
    let mut here = sender.spawn(&[]);
    let mut killed = 0;
    for _ in 0..3 {
        let min = 500 + random.below(3000);
        there.wait_count("sources.link.delivered", min);
        there.kill();
        killed += 1;
        receiver = far(port, keys, FILE);
        there = receiver.spawn(&[]);
    }
    there.wait_count("sources.link.delivered", 1);
    assert!(here.is_running(), "{}", here.stderr());
    let sent = here.wait().ok();
    // The sender counts each frame as sent once. The last receiver has received the last frames without a gap.
    assert_counts!(sent, "sinks.far" => frames: frames, dropped: 0);
    assert!(
        sent.count("sinks.far.connections") > killed,
        "{}",
        sent.stderr
    );
    let report = there.report();
    let had = ledger::count(&report, "sources.link.delivered");
    // Run the sender again and kill it midway, then run it once more. The frame numbers of each run restart.
    let another = paced(port, frames, "1 Mbit/s", keys, "");
    let mut again = another.spawn(&[]);
    there.wait_count("sources.link.delivered", had + 300);
    assert!(again.is_running());
    again.kill();
    let last = near(port, 50, keys, "").run(&[]).ok();
    assert_eq!(last.count("sinks.far.frames"), 50);
    there.wait_count("sources.link.epochs", 3);
    let came = there.stop().ok();
    assert_eq!(ledger::lost(&came.report, "link"), 0, "{:#}", came.report);
    let data = data(&receiver);
    let delivered = came.count("sources.link.delivered");
    assert_eq!(data.len() as u64, delivered * FRAME);
    // The expected data is the end of the first run, the start of the second run, and all of the third run.
    let second = delivered - had - 50;
    let expected = [
        counter(
            (frames - had) * PACKETS_PER_FRAME..frames * PACKETS_PER_FRAME,
            |_| false,
        ),
        counter(0..second * PACKETS_PER_FRAME, |_| false),
        counter(0..50 * PACKETS_PER_FRAME, |_| false),
    ];
    assert!(
        data == expected.concat(),
        "the file must contain {had} frames of the first stream, then {second} frames of the second stream"
    );
}

#[test]
fn slow_remote_reader_applies_backpressure() {
    for keys in [CARD, TCP] {
        let (port, frames) = (free_tcp_port(), 1500);
        let receiver = far(port, keys, "driver = \"null\"\ndelay = \"500 us\"");
        let mut live = receiver.spawn(&[]);
        live.wait_ready();
        let sent = near(port, frames, keys, "").run(&[]).ok();
        let came = end(live, frames);
        assert_eq!(sent.count("rings.raw.ring_full"), 0);
        assert_eq!(sent.count("sinks.far.frames"), frames);
        assert!(sent.count("sinks.far.stalls") > 0, "{:#}", sent.report);
        assert_eq!(came.count("sinks.disk.frames"), frames);
        assert_eq!(ledger::lost(&came.report, "link"), 0);
    }
}

#[test]
fn peer_missing_is_reported_and_run_ends() {
    let port = free_tcp_port();
    let sender = near(port, 10, CARD, "");
    let mut here = sender.spawn(&NO_DRAIN);
    here.wait_log("is not available");
    let outcome = here.stop();
    assert_contains!(outcome.stderr => &format!("receiver 127.0.0.1:{port}"));
    assert_eq!(
        outcome.count("sinks.far.frames") + outcome.count("sinks.far.dropped"),
        outcome.count("rings.raw.published")
    );
}

#[test]
fn sender_without_token_or_from_other_address_is_rejected() {
    const TOKEN: &str = "c0ffee00c0ffee00c0ffee00";
    let (port, frames) = (free_tcp_port(), 50);
    let keys = format!("{CARD}\ntoken_file = \"link.token\"\nfrom = \"127.0.0.1\"");
    let receiver = far(port, &keys, FILE);
    receiver.write("link.token", &format!("{TOKEN}\n"));
    let mut live = receiver.spawn(&[]);
    live.wait_ready();
    for keys in [
        CARD.to_owned(),
        format!("{CARD}\ntoken = \"c0ffee00c0ffee00c0ffee01\""),
    ] {
        let sender = near(port, frames, &keys, "");
        let mut here = sender.spawn(&NO_DRAIN);
        live.wait_log("refused a connection from 127.0.0.1:");
        here.wait_log("token: set the `token` of this source");
        let log = here.stop().stderr;
        assert!(!log.contains("c0ffee"), "{log}");
    }
    assert_eq!(
        ledger::count(&live.report(), "sources.link.counts.links"),
        0
    );
    let keys = format!("{CARD}\ntoken = \"{TOKEN}\"");
    let sent = near(port, frames, &keys, "").run(&[]).ok();
    assert_eq!(sent.count("sinks.far.frames"), frames);
    let status = live.get("/status").body;
    let came = end(live, frames);
    assert!(data(&receiver) == counter(0..frames * PACKETS_PER_FRAME, |_| false));
    for text in [&came.stderr, &sent.stderr, &status] {
        assert!(!text.contains(TOKEN), "{text}");
    }
    // The connection comes from another address, so it is closed before any byte is read.
    let receiver = far(port, &format!("{CARD}\nfrom = [\"10.0.0.0/8\"]"), FILE);
    let mut live = receiver.spawn(&[]);
    live.wait_ready();
    let sender = near(port, frames, CARD, "");
    let here = sender.spawn(&NO_DRAIN);
    live.wait_log("the sender's address is not in `from`");
    live.wait_count("sources.link.counts.refused", 1);
    let _ = here.stop();
    assert_eq!(live.stop().ok().count("sources.link.delivered"), 0);
}
