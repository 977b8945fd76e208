//! Real NATS servers on loopback ports, and an independent client.

use daq_testkit::{Daq, Python, free_tcp_port, program, wait_for};
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Returns why the tests cannot run on this machine or with this binary.
pub fn obstacle() -> Option<String> {
    if program("nats-server").is_none() {
        return Some("no program nats-server; run tests/run to install it".to_owned());
    }
    let daq = Daq::new(&sink_config(1, "events", ""));
    let log = daq.cli(&["plan", "daq.toml"]);
    let text = log.stdout + &log.stderr;
    text.contains("without the NATS client")
        .then(|| "daq was built without the feature nats".to_owned())
}

/// Skips the test if there is no server, or daq has no client.
macro_rules! nats {
    () => {
        if let Some(why) = super::server::obstacle() {
            daq_testkit::skip!("{why}");
        }
    };
}
pub(super) use nats;

/// A server with its own directory. Dropping it kills it.
pub struct Server {
    child: Option<Child>,
    /// The port for clients.
    pub port: u16,
    config: PathBuf,
    log: PathBuf,
    _directory: tempfile::TempDir,
}

impl Server {
    /// Starts a server with JetStream and the further lines `extra` in its configuration.
    pub fn new(extra: &str) -> Self {
        Self::on(free_tcp_port(), extra)
    }

    /// Starts a server that listens on `port`.
    pub fn on(port: u16, extra: &str) -> Self {
        let mut server = Self::idle(port, extra);
        server.start();
        server.wait();
        server
    }

    /// Prepares a server without starting it.
    pub fn idle(port: u16, extra: &str) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("daq-nats-")
            .tempdir()
            .unwrap();
        let store = directory.path().join("store");
        let config = directory.path().join("nats.conf");
        let text = format!(
            "listen: \"127.0.0.1:{port}\"\nserver_name: \"s{port}\"\njetstream {{ store_dir: \"{}\" }}\n{extra}\n",
            store.display()
        );
        std::fs::write(&config, text).unwrap();
        Self {
            child: None,
            port,
            config,
            log: directory.path().join("log"),
            _directory: directory,
        }
    }

    /// Starts the server, again with the same files.
    pub fn start(&mut self) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .unwrap();
        let child = Command::new("nats-server")
            .arg("-c")
            .arg(&self.config)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    /// Waits until the server greets clients.
    pub fn wait(&mut self) {
        wait_for("nats-server", || {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(
                ended.is_none(),
                "{}",
                std::fs::read_to_string(&self.log).unwrap()
            );
            let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
            stream
                .set_read_timeout(Some(Duration::from_secs(5)))
                .unwrap();
            let mut greeting = [0; 4];
            stream.read_exact(&mut greeting).ok()?;
            let _ = stream.write_all(b"CONNECT {\"verbose\":false}\r\n");
            (&greeting == b"INFO").then_some(())
        });
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns a simulated sensor, whose frames of 64 bytes the sink `tx` publishes to the subject `obs.decisions` of the stream OBS.
/// `keys` are further keys of the sink.
pub fn sink_config(port: u16, ring: &str, keys: &str) -> String {
    format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n\
         [source.adc]\ndriver = \"sim\"\nring = \"{ring}\"\npattern = \"counter\"\nsamples = {{ type = \"int16\", channels = 1 }}\n\
         packet = \"64 B\"\nbackpressure = true\n\
         [ring.{ring}]\nmemory = \"host\"\nslot = \"64 B\"\nslots = 1024\n\
         [sink.tx]\ndriver = \"nats\"\ninput = \"{ring}\"\nguarantee = true\nservers = \"127.0.0.1:{port}\"\nstream = \"OBS\"\n\
         subject = \"obs.decisions\"\n{keys}\n"
    )
}

/// Returns a source `rx` that receives the stream OBS, and a sink that writes its frames to files.
pub fn source_config(port: u16, keys: &str) -> String {
    format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n\
         [source.rx]\ndriver = \"nats\"\nring = \"received\"\nservers = \"127.0.0.1:{port}\"\nstream = \"OBS\"\nconsumer = \"rx\"\n\
         samples = {{ type = \"int16\", channels = 1 }}\n{keys}\n\
         [ring.received]\nmemory = \"host\"\nslot = \"64 B\"\nslots = 256\n\
         [sink.disk]\ndriver = \"file\"\ninput = \"received\"\nguarantee = true\npath = \"out\"\nbuffer = \"256 KiB\"\n"
    )
}

/// Returns a Python program that connects to a server with nats-py as `nc` and runs `body`, which may use `js` and await.
pub fn script(body: &str) -> String {
    let body = body
        .lines()
        .fold(String::new(), |body, line| body + "    " + line + "\n");
    format!(
        "import asyncio, json, sys, nats\nfrom nats.js import api\n\
         async def main():\n    nc = await nats.connect(f'nats://127.0.0.1:{{sys.argv[1]}}')\n    js = nc.jetstream(timeout=30)\n{body}    await nc.close()\n\
         asyncio.run(main())\n"
    )
}

/// Returns `frames` frames of `bytes` bytes of the simulated sensor, from number `first` on.
pub fn expected(first: u64, frames: u64, bytes: u64) -> Vec<u8> {
    (first * bytes..(first + frames) * bytes)
        .map(daq_drivers::sim::expected_byte)
        .collect()
}

/// The messages of the stream OBS, as nats-py reads them.
pub fn stored(python: &Python, port: u16) -> Vec<serde_json::Value> {
    let body = "\
# A cluster that elects a leader drops requests.
js = nc.jetstream(timeout=5)
for _ in range(12):
    try:
        sub = await js.pull_subscribe('', stream='OBS', config=api.ConsumerConfig(ack_policy=api.AckPolicy.NONE))
        break
    except nats.errors.TimeoutError:
        pass
left = (await js.stream_info('OBS')).state.messages
while left:
    for m in await sub.fetch(min(left, 500), timeout=20):
        left -= 1
        h = m.headers or {}
        print(json.dumps({'sequence': m.metadata.sequence.stream, 'subject': m.subject, 'headers': h, 'data': m.data.hex()}))";
    python.json_lines(&script(body), &[port.to_string()])
}
