//! Tests of the keys and of the resulting geometry.

use super::*;
use daq_core::layout::Scalar;
use daq_testkit::assert_fields;

fn config(text: &str) -> SimConfig {
    let config: SimConfig = toml::from_str(text).unwrap();
    assert_eq!(config.problems(), [], "{text}");
    config
}

fn keys(text: &str) -> Vec<String> {
    let config: SimConfig = toml::from_str(text).unwrap();
    config
        .problems()
        .into_iter()
        .filter_map(|problem| problem.key)
        .collect()
}

#[test]
fn empty_section_is_a_free_running_ramp() {
    let config = config("");
    assert_eq!((config.pace(), config.backpressure()), (Pace::Free, true));
    assert_eq!(config.signal_config().pattern, Pattern::Ramp);
    assert_eq!(config.samples.scalar, Scalar::Int8);
    let geometry = config.geometry(1 << 20).unwrap();
    assert_fields!(geometry => packets_per_frame: 128, packet_bytes: 8192, window: 4);
    assert_eq!(config.preferred_slot(), 1 << 20);
    assert_eq!(
        (config.packet_rate(&geometry), config.packet_ns(&geometry)),
        (None, None)
    );
}

#[test]
fn rate_disables_waiting() {
    let config = config(
        "samples = { type = \"int16\", complex = true, channels = 2, rate = \"1 MHz\" }\nspeed = 2.0",
    );
    assert_eq!(
        (config.pace(), config.backpressure()),
        (Pace::Realtime, false)
    );
    let geometry = config.geometry(1 << 16).unwrap();
    // The sample rate is 1 MHz in two channels of 4 bytes, so 8 MB/s.
    assert_eq!(config.packet_rate(&geometry), Some(2.0 * 8e6 / 8192.0));
    assert_eq!(config.packet_ns(&geometry), Some(1_024_000.0));
    let paced: SimConfig =
        toml::from_str("pace = \"8 Mbit/s\"\npacket = \"1 kB\"\nbackpressure = true").unwrap();
    let geometry = paced.geometry(10_000).unwrap();
    assert_eq!(
        (paced.packet_rate(&geometry), paced.packet_ns(&geometry)),
        (Some(1000.0), Some(1e6))
    );
    assert!(paced.backpressure());
}

#[test]
fn frames_hold_complete_packets_and_points() {
    // (samples, packet, slot) and (packets per frame, packet bytes, frame bytes)
    let cases = [
        ("", "", 10_000, (1, 10_000, 10_000)),
        (
            "type = \"int16\", channels = 3",
            "",
            65_536,
            (1, 65_532, 65_532),
        ),
        (
            "type = \"int16\", channels = 3",
            "packet = \"600 B\"",
            65_536,
            (109, 600, 65_400),
        ),
        (
            "type = \"int16\", channels = 3, order = \"planar\"",
            "packet = \"400 B\"",
            65_536,
            (162, 400, 64_800),
        ),
        ("", "packet = \"1 B\"", 4096, (4096, 1, 4096)),
        // A group of points of three channels of 12 bits has 9 bytes.
        (
            "type = \"uint12p\", channels = 3",
            "pattern = \"counter\"",
            8192,
            (1, 8190, 8190),
        ),
    ];
    for (samples, packet, slot, expected) in cases {
        let config = config(&format!("samples = {{ {samples} }}\n{packet}"));
        let geometry = config.geometry(slot).unwrap();
        assert_eq!(
            (
                geometry.packets_per_frame,
                geometry.packet_bytes,
                geometry.frame_bytes
            ),
            expected,
            "{samples} {packet}"
        );
        assert!(config.samples.layout(geometry.frame_bytes).is_ok());
        let preferred = config.preferred_slot();
        assert!(
            config
                .geometry(preferred)
                .is_ok_and(|geometry| geometry.frame_bytes == preferred)
        );
    }
}

#[test]
fn types_without_signal_need_pattern_counter() {
    for scalar in Scalar::ALL {
        let has_signal = can_encode(scalar);
        let problems = |keys: &str| {
            let text = format!("samples = {{ type = \"{scalar}\", rate = \"1 MHz\" }}\n{keys}");
            toml::from_str::<SimConfig>(&text).unwrap().problems()
        };
        assert!(problems("pattern = \"counter\"").is_empty(), "{scalar}");
        for keys in ["", "noise = 0.1"] {
            let found = problems(keys);
            assert_eq!(found.is_empty(), has_signal, "{scalar}");
            if let Some(problem) = found.first() {
                assert_eq!(problem.key.as_deref(), Some("samples.type"));
                assert!(problem.message.contains(scalar.name()), "{problem}");
            }
        }
    }
}

#[test]
fn unsuitable_ring_is_reported() {
    let cases = [
        ("packet = \"8 KiB\"", 4096, "packet"),
        (
            "packet = \"7 B\"\nsamples = { type = \"int16\" }",
            4096,
            "packet",
        ),
        (
            "samples = { type = \"float64\", channels = 100 }",
            256,
            "samples",
        ),
        (
            "packet = \"14 B\"\nsamples = { type = \"int16\", channels = 300, order = \"planar\" }",
            1024,
            "packet",
        ),
        ("packet = \"8 B\"\nsequence_bits = 8", 4096, "sequence_bits"),
        (
            "packet = \"1 KiB\"\n[faults]\nreorder = 0.1\nreorder_by = 13",
            4096,
            "faults.reorder_by",
        ),
    ];
    for (text, slot, key) in cases {
        let problem = config(text).geometry(slot).unwrap_err();
        assert_eq!(problem.key.as_deref(), Some(key), "{problem}");
        assert!(problem.help.is_some());
    }
    assert!(
        config("packet = \"1 KiB\"\n[faults]\nreorder = 0.1\nreorder_by = 12")
            .geometry(4096)
            .is_ok()
    );
}

#[test]
fn all_problems_are_reported_together() {
    let found = keys(
        "samples = { channels = 0, rate = \"0 Hz\" }\npattern = \"ramp\"\nnoise = 0.1\npacket = 0\nwindow = 1\n\
         speed = -1.0\npackets = 1\nframes = 1\nsequence_bits = 7\nstart = 1000\nrestart_at = 0\n\
         jump = { at = 0, by = 0 }\nfaults = { loss = 2.0 }",
    );
    let expected = [
        "samples.channels",
        "samples.rate",
        "pattern",
        "packet",
        "window",
        "speed",
        "frames",
        "sequence_bits",
        "start",
        "jump.by",
        "jump.at",
        "restart_at",
        "faults.loss",
    ];
    assert_eq!(found, expected);
    assert_eq!(keys("pace = \"realtime\""), ["pace"]);
    assert_eq!(keys("pace = \"0 bit/s\""), ["pace"]);
    assert_eq!(keys("speed = 2.0"), ["speed"]);
    assert_eq!(
        keys("jump = { at = 5, by = 128 }\nsequence_bits = 8"),
        ["jump.by"]
    );
    assert_eq!(
        keys("tones = [{ frequency = \"1 kHz\", amplitude = 1.0 }]"),
        ["tones.0.frequency"]
    );
    assert!(toml::from_str::<SimConfig>("unknown = \"8 KiB\"").is_err());
}
