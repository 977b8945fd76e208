//! Tests the HTTP server beside a simulated GPU that hangs.

use daq_core::frame::FrameMeta;
use daq_core::layout::Samples;
use daq_core::ledger::Report;
use daq_core::region::Region;
use daq_core::ring::RingOptions;
use daq_pipelines::history::History;
use daq_pipelines::http::{self, Health, HttpState, ScopedRing};
use daq_testkit::ring::RingFixture;
use daq_testkit::{Simulated, TIMEOUT, get, this_test, wait_for};
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

/// Copies of the GPU that hang. The first copy writes the frame.
const HANG: &str = "hang=copy@2,hang=copy@3,hang=copy@4";

#[test]
fn hung_gpu_blocks_neither_the_http_server_nor_its_stop() {
    let _ = Simulated::new(HANG).alone(this_test!(), |device| {
        let options = RingOptions::new("raw", 4, 64);
        let region = Region::cuda(device, options.region_bytes()).unwrap();
        let mut fixture = RingFixture::in_region(region, options);
        fixture.write(&[(FrameMeta::whole(0, 64), vec![7; 64])]);
        let ring = ScopedRing {
            ring: fixture.ring.clone(),
            layout: Samples::default().layout(64).unwrap(),
            parts: Vec::new(),
        };
        let state = HttpState {
            name: "hung".to_owned(),
            hosts: Vec::new(),
            report: Arc::new(Report::default),
            health: Arc::new(Health::default),
            history: Arc::new(History::new(BTreeMap::new(), Vec::new(), 0)),
            plan: serde_json::Value::Null,
            last_run: None,
            rings: BTreeMap::from([("raw".to_owned(), ring)]),
        };
        let server = http::serve("127.0.0.1:0".parse().unwrap(), state).unwrap();
        let address = server.address();
        let browse = |path: &str| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            stream
        };
        // The second view is requested while the thread of the scope hangs.
        let mut scopes = Vec::new();
        for width in [100, 200] {
            let mut stream = browse(&format!("/rings/raw/scope?width={width}"));
            let mut begin = [0; 15];
            stream.read_exact(&mut begin).unwrap();
            assert_eq!(&begin, b"HTTP/1.1 200 OK");
            scopes.push(stream);
        }
        let _download = browse("/rings/raw/frame.npy");
        wait_for("the threads", || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap();
            let name = |task: std::io::Result<std::fs::DirEntry>| {
                std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default()
            };
            let names: Vec<_> = tasks.map(name).collect();
            let has = |wanted: &str| names.iter().any(|name| name.trim() == wanted);
            (has("daq-scope") && has("daq-download")).then_some(())
        });
        for path in ["/metrics", "/status", "/-/healthy"] {
            assert_eq!(get(address, path).unwrap().code, 200, "{path}");
        }
        assert!(!device.is_hung());
        server.stop();
        assert!(device.is_hung(), "the threads that hang are left running");
        // The driver frees the ring when the process exits.
        daq_core::leak::leak(fixture);
    });
}
