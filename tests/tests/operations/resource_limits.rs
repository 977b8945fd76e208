//! Tests resource limits and failures: file descriptors, file sizes, disks that fail or hang, and files that others
//! change.

use daq_testkit::{Daq, Live, Outcome, assert_contains, files, ledger, program, skip, wait_for};
use serde_json::Value;
use std::fs::OpenOptions;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

/// Returns a slow source, one sink and an HTTP server.
fn pipeline(sink: &str) -> String {
    format!(
        "[source.adc]\ndriver = \"sim\"\nring = \"raw\"\npattern = \"counter\"\npacket = 1024\npace = \"40 Mbit/s\"\n\
         [ring.raw]\nslot = \"8 KiB\"\nslots = 64\n[sink.disk]\ninput = \"raw\"\n{sink}\n\
         [http]\nlisten = \"127.0.0.1:0\"\n"
    )
}

const FILE: &str = "driver = \"file\"\npath = \"out\"\nsegment = \"1 MiB\"\nbuffer = \"64 KiB\"";
const ZARR: &str = "driver = \"zarr\"\npath = \"out\"\nchunk = \"256 KiB\"\nflush = \"200 ms\"";

/// Starts `daq run` in a shell that first sets a limit, for example with `ulimit -n 96`.
fn spawn_limited(daq: &Daq, limit: &str, arguments: &str) -> Live {
    let mut command = Command::new("sh");
    let script =
        format!("{limit}; exec \"$0\" run daq.toml --report json --state-dir state {arguments}");
    daq.prepare(&mut command)
        .args(["-c", &script])
        .arg(daq_testkit::binary());
    daq.spawn_command(command)
}

#[test]
fn http_idle_connections_leave_descriptors_for_files() {
    let sink = format!("{FILE}\nrotate = \"200 ms\"");
    let daq = Daq::new(&pipeline(&sink));
    let mut live = spawn_limited(&daq, "ulimit -n 96", "");
    live.wait_count("sinks.disk.files", 1);
    let address = live.address();
    let _idle: Vec<_> = (0..120)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let files = ledger::count(&live.report(), "sinks.disk.files");
    live.wait_count("sinks.disk.files", files + 3);
    let _ = live.stop().ok();
}

#[test]
fn state_file_truncated_while_running_does_not_end_run() {
    let daq = Daq::new(&pipeline("driver = \"null\""));
    let mut live = daq.spawn(&[]);
    live.wait_count("sinks.disk.frames", 1);
    let states = files(&daq.path("state/daq"), ".ledger");
    assert_eq!(states.len(), 1, "{states:?}");
    let file = OpenOptions::new().write(true).open(&states[0]).unwrap();
    file.set_len(0).unwrap();
    live.wait_log("truncated the counter file of this run");
    let seen = ledger::count(&live.report(), "sinks.disk.frames");
    live.wait_count("sinks.disk.frames", seen + 100);
    let outcome = live.stop().ok();
    assert!(outcome.count("sinks.disk.frames") > seen);
}

#[test]
fn file_size_limit_is_reported_as_sink_error() {
    for sink in [FILE, ZARR] {
        let daq = Daq::new(&pipeline(sink));
        // The limit is 64 KiB, because the shell counts in units of 512 bytes.
        let outcome = spawn_limited(&daq, "ulimit -f 128", "").wait();
        assert_eq!(outcome.code, 74, "{}", outcome.stderr);
        assert!(outcome.report.is_object());
        assert!(outcome.stderr.contains("ulimit -f"), "{}", outcome.stderr);
    }
}

/// Runs daq under strace, which makes system calls fail as `fault` defines. Returns `None` if strace is not installed.
fn injected(daq: &Daq, fault: &str) -> Option<Outcome> {
    let strace = program("strace")?;
    let call = fault.split(':').next().unwrap();
    let mut command = Command::new(strace);
    daq.prepare(&mut command)
        .args(["-f", "-qq", "-o", "/dev/null", "-e"])
        .arg(format!("trace={call}"))
        .arg("-e")
        .arg(format!("inject={fault}"))
        .arg(daq_testkit::binary())
        .args(["run", "daq.toml", "--report", "json", "--drain", "2 s"]);
    Some(daq.spawn_command(command).wait())
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn failure_after_segment_commit_leaves_it_intact() {
    let daq = Daq::new(&pipeline(FILE));
    // Each segment syncs its metadata, then the directory before the commit, then the directory after the commit.
    let Some(outcome) = injected(&daq, "fsync:error=EIO:when=3+") else {
        skip!("strace is not installed");
    };
    assert_eq!(outcome.code, 74, "{}", outcome.stderr);
    assert_contains!(outcome.stderr => "is complete, but its directory");
    assert_eq!(outcome.count("sinks.disk.files"), 1);
    let metas = files(&daq.path("out"), ".sigmf-meta");
    assert_eq!(metas.len(), 1);
    let data = std::fs::metadata(daq.path("out/disk-000000.sigmf-data")).unwrap();
    assert_eq!(json(&metas[0])["global"]["daq:bytes"], data.len());
    assert_eq!(data.len(), 8192 * (outcome.count("sinks.disk.frames")));
}

#[test]
fn failure_after_chunk_commit_counts_it_as_written() {
    let daq = Daq::new(&pipeline(ZARR));
    // A commit syncs the directories of eight arrays twice each. The second sync is after the commit.
    let Some(outcome) = injected(&daq, "fsync:error=EIO:when=16") else {
        skip!("strace is not installed");
    };
    assert_eq!(outcome.code, 74, "{}", outcome.stderr);
    let frames = json(&daq.path("out/disk-000000.zarr/frames/zarr.json"));
    let rows = frames["shape"][0].as_u64().unwrap();
    let taken = outcome.count("sinks.disk.frames");
    assert!(
        rows > 0,
        "the store must have at least one readable row of {taken} frames"
    );
    assert_eq!(rows + outcome.count("sinks.disk.lost"), taken);
}

#[test]
fn thread_limit_is_named() {
    let daq = Daq::new(&pipeline("driver = \"null\""));
    let Some(outcome) = injected(&daq, "clone3:error=EAGAIN:when=3") else {
        skip!("strace is not installed");
    };
    assert_eq!(outcome.code, 69, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("ulimit -u"), "{}", outcome.stderr);
}

#[test]
fn descriptor_limit_is_named() {
    for sink in ["driver = \"null\"", FILE, ZARR] {
        let daq = Daq::new(&pipeline(sink));
        let mut refused = 0;
        for limit in 4..64 {
            let outcome = spawn_limited(&daq, &format!("ulimit -n {limit}"), "--for 100ms").wait();
            let why = format!("ulimit -n {limit}: {}: {}", outcome.code, outcome.stderr);
            match outcome.code {
                0 => break,
                // The dynamic loader failed to open libraries, before daq started.
                127 => continue,
                // The run started, and later its sink could not open the next file.
                74 => assert!(outcome.report.is_object(), "{why}"),
                69 => refused += 1,
                _ => panic!("{why}"),
            }
            assert!(outcome.stderr.contains("Too many open files"), "{why}");
            assert!(outcome.stderr.contains("LimitNOFILE"), "{why}");
        }
        assert!(refused > 0, "{sink}");
    }
}

#[test]
fn memory_limit_for_ring_is_named() {
    let large = pipeline("driver = \"null\"").replace("\"8 KiB\"", "\"32 MiB\"");
    let outcome = spawn_limited(&Daq::new(&large), "ulimit -v 1500000", "--for 100ms").wait();
    assert_eq!(outcome.code, 69, "{}", outcome.stderr);
    assert_contains!(outcome.stderr => "cannot allocate 2", "`slots` or `slot`", "ulimit -v");
}

/// An ext4 filesystem in a file that is mounted through a loop device. It is thawed and unmounted on drop.
struct Disk(std::path::PathBuf);

impl Disk {
    fn new(daq: &Daq) -> Result<Self, String> {
        let (image, mount) = (daq.path("image"), daq.path("out"));
        std::fs::create_dir(&mount).unwrap();
        std::fs::File::create(&image)
            .unwrap()
            .set_len(100 << 20)
            .unwrap();
        let image = image.to_str().unwrap();
        let at = mount.to_str().unwrap();
        for command in [
            &["mkfs.ext4", "-q", "-F", image][..],
            &["mount", "-o", "loop", image, at],
        ] {
            let done = Command::new(command[0]).args(&command[1..]).output();
            match done {
                Ok(done) if done.status.success() => {}
                Ok(done) => return Err(String::from_utf8_lossy(&done.stderr).into_owned()),
                Err(error) => return Err(format!("{}: {error}", command[0])),
            }
        }
        Ok(Self(mount))
    }

    fn call(&self, program: &str, arguments: &[&str]) -> bool {
        let done = Command::new(program).args(arguments).arg(&self.0).output();
        done.is_ok_and(|done| done.status.success())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.call("fsfreeze", &["-u"]);
        self.call("umount", &["-l"]);
    }
}

#[test]
fn disk_hang_is_reported_and_does_not_block_exit() {
    for guarantee in [true, false] {
        let daq = Daq::new(&pipeline(&format!("{FILE}\nguarantee = {guarantee}")));
        let disk = match Disk::new(&daq) {
            Ok(disk) => disk,
            Err(why) => skip!("cannot create a filesystem on a loop device: {why}"),
        };
        let mut live = daq.spawn(&["--drain", "1 s"]);
        live.wait_count("sinks.disk.files", 1);
        if !disk.call("fsfreeze", &["-f"]) {
            skip!("fsfreeze does not work on this machine");
        }
        wait_for("an unhealthy answer", || {
            let answer = live.get("/-/healthy");
            (answer.code == 503 && answer.body.contains("disk")).then_some(())
        });
        if !guarantee {
            // The ring has 64 slots, and the sink holds one burst.
            live.wait_count("readers.disk.overrun", 500);
        }
        live.interrupt();
        live.wait_log("a write has not returned");
        // The process can exit only when the disk responds again.
        assert!(disk.call("fsfreeze", &["-u"]));
        let outcome = live.wait();
        assert_eq!(outcome.code, 74, "{}", outcome.stderr);
        assert!(outcome.report.is_object(), "{}", outcome.stderr);
        if !guarantee {
            assert!(outcome.count("readers.disk.overrun") >= 500);
            assert!(outcome.count("readers.disk.pending") <= 2 * 64);
        }
    }
}
