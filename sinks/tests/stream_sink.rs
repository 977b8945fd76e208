//! Tests configurations of a `stream` sink, and its behaviour without a receiver.

use crate::support::{context, layout, spec};
use daq_core::frame::FrameMeta;
use daq_core::layout::Scalar;
use daq_core::ledger::Counts;
use daq_core::sink::{Placements, SinkContext, SinkError};
use daq_testkit::ring::RingFixture;

const WHERE: &str = "transport = \"rdma\"\nto = \"127.0.0.1:1\"\nnics = [\"emulated\"]";

#[test]
fn stream_invalid_config_is_rejected_with_fix() {
    for (keys, message) in [
        (
            "transport = \"rdma\"
to = \"host\"\nnics = [\"a\"]",
            "not a host with a port",
        ),
        (
            "transport = \"rdma\"
to = \"host:0\"\nnics = [\"a\"]",
            "not a host with a port",
        ),
        (
            "transport = \"rdma\"
to = \"host:1\"\nnics = []",
            "no NIC is named",
        ),
        (
            "transport = \"rdma\"
to = \"host:1\"\nnics = [\"a\"]\nqueue_pairs = 0",
            "must be 1 to 255",
        ),
        (
            "transport = \"rdma\"
to = \"host:1\"\nnics = [\"a\", \"b\"]\nqueue_pairs = 200",
            "must be 1 to 255",
        ),
        (
            "transport = \"rdma\"
to = \"host:1\"\nnics = [\"a\"]\nservice = \"ud\"",
            "writes are not supported on ud",
        ),
        (
            "transport = \"rdma\"
to = \"host:1\"\nnics = [\"a\"]\nmode = \"send\"\nservice = \"uc\"",
            "messages are supported only on rc and ud",
        ),
        (
            "transport = \"rdma\"
to = \"host:1\"\nnics = [\"a\", \"b\"]\nmode = \"send\"\nservice = \"ud\"",
            "one queue pair",
        ),
        (
            "transport = \"rdma\"
to = \"host:1\"\nnics = [\"a\"]\ninline = \"1 MiB\"",
            "must be at most 4 KiB",
        ),
        (
            "transport = \"rdma\"
to = \"host:1\"\nnics = [\"a\"]\nchunk = \"1 KiB\"",
            "must be at least 4 KiB",
        ),
        (
            "transport = \"rdma\"
to = \"host:1\"\nnics = [\"a\"]\ndepth = 0",
            "must be from 1 to 16384",
        ),
        (
            "transport = \"rdma\"
to = \"host:1\"\nnics = [\"emulated\"]\nconnection = \"cm\"",
            "does not support emulated NICs",
        ),
        (
            "transport = \"rdma\"
to = \"host:1\"\nnics = [\"a\"]\nconnection = \"cm\"\nservice = \"uc\"",
            "only reliable connections",
        ),
        (
            "transport = \"rdma\"
to = \"host:1\"\nnics = [\"a\", \"b\"]\nconnection = \"cm\"",
            "only one NIC",
        ),
        (
            "transport = \"rdma\"
to = \"host:1\"\nnics = [\"a\"]\ntimeout = \"61 s\"",
            "must be at most 60 s",
        ),
    ] {
        let refused = spec("stream", "n", keys).err().unwrap();
        assert!(refused.contains(message), "{keys}: {refused}");
    }
}

#[test]
fn stream_valid_config_is_accepted() {
    for keys in [
        "transport = \"rdma\"
to = \"host:1\"\nnics = [\"a\"]\nqueue_pairs = 4\nconnection = \"cm\"",
        "transport = \"rdma\"
to = \"host:1\"\nnics = [\"a\"]\ntimeout = \"60 s\"",
        "transport = \"rdma\"
to = \"host:1\"\nnics = [\"a\", \"b\"]\nservice = \"uc\"",
    ] {
        assert!(spec("stream", "n", keys).is_ok(), "{keys}");
    }
}

#[test]
fn stream_over_tcp_needs_no_nic_and_rejects_keys_of_rdma() {
    const TCP: &str = "transport = \"tcp\"\nto = \"127.0.0.1:1\"\n";
    let tcp = spec("stream", "n", &format!("{TCP}connections = 2")).unwrap();
    let facts = tcp.facts();
    assert_eq!((facts.accepts, facts.nic), (Placements::Host, None));
    for (keys, fix) in [
        ("nics = [\"a\"]", "remove `nics`"),
        ("queue_pairs = 2", "set `connections`"),
        ("mode = \"write\"", "remove `mode`"),
        ("inline = \"64 B\"", "remove `inline`"),
        ("chunk = \"1 MiB\"", "remove `chunk`"),
        ("path = \"direct\"", "remove `path`"),
        ("connections = 33", "1 to 32, not 33"),
    ] {
        let refused = spec("stream", "n", &format!("{TCP}{keys}")).err().unwrap();
        assert!(refused.contains(fix), "{keys}: {refused}");
    }
    assert!(spec("stream", "n", &format!("{TCP}checksums = true")).is_ok());
    for (keys, fix) in [
        ("connections = 2", "set `queue_pairs`"),
        ("checksums = true", "remove `checksums`"),
    ] {
        let refused = spec("stream", "n", &format!("{WHERE}\n{keys}"));
        let refused = refused.err().unwrap();
        assert!(refused.contains(fix), "{refused}");
    }
    let auto = "transport = \"rdma\"\nto = \"127.0.0.1:1\"";
    let auto = spec("stream", "n", auto).unwrap();
    assert_eq!(auto.facts().nic.as_deref(), Some("auto"));
}

#[test]
fn stream_gpu_memory_is_read_if_requested_or_measured() {
    for (path, accepted) in [
        ("auto", Placements::Measured),
        ("staged", Placements::Host),
        ("direct", Placements::Any),
    ] {
        let spec = spec("stream", "n", &format!("{WHERE}\npath = \"{path}\"")).unwrap();
        let facts = spec.facts();
        assert_eq!(facts.accepts, accepted, "{path}");
        assert_eq!(facts.claims[0].to_string(), "device receiver 127.0.0.1:1");
    }
}

#[test]
fn stream_missing_nics_and_receivers_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let make = || context(dir.path(), "n", layout(Scalar::Int8, false, 1, 64), 0, 0);
    let card = spec(
        "stream",
        "n",
        "transport = \"rdma\"
to = \"127.0.0.1:1\"\nnics = [\"no such card\"]",
    )
    .unwrap();
    let refused = card.build(make()).err().unwrap();
    assert!(
        matches!(refused, SinkError::Unavailable { ref what, .. } if what == "card no such card"),
        "{refused:?}"
    );

    for keys in [WHERE, "transport = \"tcp\"\nto = \"127.0.0.1:1\""] {
        let spec = spec("stream", "n", keys).unwrap();
        let context = SinkContext {
            counts: Counts::in_memory(&spec.facts().counts),
            ..make()
        };
        let (ledger, counts) = (context.ledger.clone(), context.counts.clone());
        let mut sink = spec.build(context).unwrap();
        let mut ring = RingFixture::host("raw", 4, 64);
        ring.write(&[(FrameMeta::whole(0, 64), vec![0; 64])]);
        let lease = ring.reader.poll(1).unwrap();
        // No process listens on port 1.
        let away = sink.consume(&lease, 0).unwrap_err();
        assert!(
            matches!(away, SinkError::Away { ref what, .. } if what == "receiver 127.0.0.1:1"),
            "{away}"
        );
        assert_eq!(away.to_string().matches("127.0.0.1:1").count(), 1, "{away}");
        drop(lease);
        sink.tick().unwrap();
        sink.finish().unwrap();
        let connections = counts.read().get("connections");
        assert_eq!((ledger.frames.get(), connections), (0, 0));
    }
}
