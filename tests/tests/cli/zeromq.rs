//! Runs the example of the page about previews with ZeroMQ.

use super::documents::{blocks, file_name};
use daq_testkit::{Daq, free_tcp_port, python, repository};
use std::process::{Command, Stdio};

/// A process that is killed when the test ends.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn previews_reach_a_zeromq_subscriber() {
    let python = python!("zmq", "numpy");
    let page = repository().join("docs/src/how-to/zeromq.md");
    let files: Vec<_> = blocks(&page).into_iter().map(|(_, block)| block).collect();
    let file = |name: &str| {
        files
            .iter()
            .find(|block| file_name(block) == Some(name))
            .unwrap()
    };
    let daq = Daq::new(file("preview.toml"));
    for name in ["preview.py", "view.py"] {
        daq.write(name, file(name));
    }
    let mut live = daq.spawn(&["--set", "http.listen=127.0.0.1:0"]);
    live.wait_ready();
    let address = format!("tcp://127.0.0.1:{}", free_tcp_port());
    let package = repository().join("python/src");
    let mut preview = Command::new(python.path());
    let preview = daq
        .prepare(&mut preview)
        .env("PYTHONPATH", package)
        .args(["preview.py", "spectra", &address])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _preview = Killed(preview);
    let shown = python.json_lines(file("view.py"), &[&address, "3"]);
    assert_eq!(shown.len(), 3);
    for frame in &shown {
        assert_eq!(
            (&frame["ring"], &frame["missing"]),
            (&"spectra".into(), &0.into())
        );
        // A tone of 10 kHz at a rate of 100 kHz, in spectra of 1024 points.
        let peak = frame["peak"].as_u64().unwrap();
        assert!((102..=103).contains(&peak), "{frame}");
    }
    let numbers: Vec<_> = shown
        .iter()
        .map(|frame| frame["number"].as_u64().unwrap())
        .collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    let outcome = live.stop().ok();
    assert!(outcome.count("sources.antenna.delivered") > 0);
}
