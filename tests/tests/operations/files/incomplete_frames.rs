//! Tests frames with missing packets. Every source must count them, and readers with `incomplete = "drop"` must not
//! receive them.

use daq_testkit::{Daq, assert_contains};

const FRAME: usize = 16_384;
const FILL: u8 = 165;

fn config(frames: &str) -> String {
    format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n\
         [source.adc]\ndriver = \"sim\"\nring = \"raw\"\npattern = \"counter\"\npacket = \"4 KiB\"\n{frames}\n\
         samples = {{ type = \"int16\" }}\n\
         [source.adc.faults]\nloss = 0.05\n\
         [ring.raw]\nmemory = \"host\"\nslot = {FRAME}\nslots = 32\nfill = {FILL}\n\
         [sink.all]\ndriver = \"file\"\ninput = \"raw\"\npath = \"all/\"\n\
         [sink.whole]\ndriver = \"file\"\ninput = \"raw\"\npath = \"whole/\"\nincomplete = \"drop\"\n\
         [sink.lossy]\ndriver = \"null\"\ninput = \"raw\"\nguarantee = false\nincomplete = \"drop\"\n"
    )
}

#[test]
fn incomplete_drop_delivers_only_complete_frames() {
    const FRAMES: u64 = 1000;
    let daq = Daq::new(&config(&format!("frames = {FRAMES}")));
    let outcome = daq.run(&[]).ok();
    let all = daq.data("all");
    assert_eq!(all.len() as u64, FRAMES * FRAME as u64);
    let is_whole = |frame: &&[u8]| {
        frame
            .chunks(4096)
            .all(|packet| packet.iter().any(|byte| *byte != FILL))
    };
    let whole: Vec<_> = all.chunks(FRAME).filter(is_whole).collect();
    let incomplete = FRAMES - whole.len() as u64;
    assert!(incomplete > 0);
    assert!(
        daq.data("whole") == whole.concat(),
        "the file contains other frames"
    );
    let count = |path: &str| outcome.count(path);
    assert_eq!(count("sources.adc.incomplete"), incomplete);
    for (reader, dropped) in [("all", 0), ("whole", incomplete)] {
        let of = |key: &str| count(&format!("readers.{reader}.{key}"));
        assert_eq!(
            (of("read"), of("dropped_incomplete"), of("pending")),
            (FRAMES - dropped, dropped, 0),
            "{reader}: {:#}",
            outcome.report
        );
    }
    let of = |key: &str| count(&format!("readers.lossy.{key}"));
    assert_eq!(
        of("read") + of("overrun") + of("dropped_incomplete"),
        FRAMES
    );
    let plan = daq.cli(&["plan", "--no-hardware", "daq.toml"]).ok().stdout;
    assert!(plan.contains("every complete frame"), "{plan}");
}

#[test]
fn incomplete_drop_ledger_balances_while_running() {
    let daq = Daq::new(&config("pace = \"100 Mbit/s\""));
    let mut live = daq.spawn(&[]);
    live.wait_count("readers.whole.dropped_incomplete", 5);
    for _ in 0..50 {
        // Panics if a ledger does not balance.
        live.report();
    }
    let metrics = live.get("/metrics").body;
    assert_contains!(metrics => "daq_reader_dropped_incomplete_frames_total{");
    let _ = live.stop().ok();
}
