//! Measures streams over TCP from ring to ring, beside a baseline loop of `send` and `recv` calls into an equal ring. Both
//! ends run in this process and are connected over loopback.
//!
//! ```text
//!   baseline loop:  memory of a ring's size ── send ═══ recv ──▶ memory of a ring's size
//!   ring to ring:   sim ─▶ ring ─▶ sink stream ════════ source stream ─▶ ring ─▶ null
//! ```

use super::chart::Chart;
use super::table::{Cell, size};
use super::{BenchError, Common, MAX_BYTES, Publish, bytes, count, cpu};
use daq_diagnostics::fixture::Scratch;
use daq_diagnostics::fixture::{Environment, PROGRESS_TIMEOUT, RunningPipeline, failed, free_port};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Size of each ring in bytes, rounded to a multiple of the slot size.
const RING: usize = 32 << 20;
const MAX_SLOTS: usize = 256;
/// Names of the threads whose CPU time is measured, for the sending and the receiving end.
const LOOP_THREADS: [&str; 2] = ["daq-loop-tx", "daq-loop-rx"];
const STREAM_THREADS: [&str; 2] = ["daq-tx", "daq-rx"];

/// Options of `daq bench tcp`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of TCP connections. Each end serves all of its connections with one thread.
    #[arg(long, default_value = "1", value_parser = count::<1, 32>)]
    connections: usize,
    /// Maximum number of frames in flight per connection.
    #[arg(long, default_value = "128", value_parser = count::<1, 16384>)]
    depth: usize,
    /// Also measure streams with `checksums = true`.
    #[arg(long)]
    checksums: bool,
    /// Frame sizes, multiples of 8 bytes, at most 64 MiB.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "512 B,4 KiB,64 KiB,1 MiB,4 MiB",
        value_parser = bytes::<8, MAX_BYTES, 8>
    )]
    sizes: Vec<usize>,
}

/// What moves the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Baseline,
    Stream,
    /// A stream with checksums.
    Checked,
}

impl Method {
    const ALL: [Self; 3] = [Self::Baseline, Self::Stream, Self::Checked];

    /// Returns the methods to measure.
    fn selected(args: &Args) -> &'static [Self] {
        &Self::ALL[..if args.checksums { 3 } else { 2 }]
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline loop",
            Self::Stream => "ring to ring",
            Self::Checked => "ring to ring, checksums",
        }
    }
}

/// Compares the two methods for all sizes.
pub(super) fn tcp(common: &Common, args: &Args, publish: Publish<'_>) -> Result<(), BenchError> {
    let scratch = Scratch::new("tcp", "", None)?;
    let environment = Environment::new(common.registry.clone(), scratch, None)?;
    let window = common.window.0;
    let compared = common.compare(&args.sizes, Method::selected(args), |&bytes, method| {
        let figures = match method {
            Method::Baseline => baseline(bytes, args.connections, window)?,
            Method::Stream | Method::Checked => {
                let has_checksums = *method == Method::Checked;
                stream(&environment, bytes, (args, has_checksums), window)?
            }
        };
        Ok(Some(figures))
    })?;
    let title = format!(
        "TCP over loopback, connections: {}, {} per measurement; each end has one thread, whose CPU time is given",
        args.connections, common.window
    );
    let columns =
        "method | size | MB/s | frames/s | sender CPU s/GB | receiver CPU s/GB | × baseline loop";
    let table = compared.table(&title, columns, |row| {
        let [rate, sender, receiver] = row.figures;
        vec![
            row.method.name().into(),
            size(*row.scenario),
            Cell::Number(rate / 1e6, 1),
            Cell::Number(rate / *row.scenario as f64, 0),
            Cell::Number(sender, 3),
            Cell::Number(receiver, 3),
            Cell::Number(rate / row.all[0][0], 3),
        ]
    });
    let chart = Chart::rates("Throughput over TCP", "MB/s")
        .over("size", "frame size")
        .by(&["method"], "MB/s")
        .own(&["ring to ring"]);
    publish(table.with(chart));
    Ok(())
}

/// Reads the progress and the CPU time of both ends, at the start and at the end of a measurement.
struct Progress {
    at: Instant,
    bytes: u64,
    cpu: [Option<Duration>; 2],
}

impl Progress {
    fn now(bytes: u64, threads: [&str; 2]) -> Self {
        Self {
            at: Instant::now(),
            bytes,
            cpu: threads.map(|name| cpu::of_threads("self", Some(name))),
        }
    }

    /// Returns the bytes per second, and the CPU seconds per 10⁹ bytes of sender and receiver.
    fn since(&self, before: &Self) -> [f64; 3] {
        let bytes = (self.bytes - before.bytes) as f64;
        let cpu = |end: usize| {
            let spent = self.cpu[end].zip(before.cpu[end]);
            spent.map_or(f64::NAN, |(after, before)| {
                after.saturating_sub(before).as_secs_f64() / (bytes / 1e9)
            })
        };
        let seconds = (self.at - before.at).as_secs_f64();
        [bytes / seconds, cpu(0), cpu(1)]
    }
}

const fn slots(bytes: usize) -> usize {
    let slots = RING / bytes;
    if slots < 8 {
        8
    } else if slots > MAX_SLOTS {
        MAX_SLOTS
    } else {
        slots
    }
}

/// Measures the baseline loop.
fn baseline(bytes: usize, connections: usize, window: Duration) -> Result<[f64; 3], BenchError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let (mut senders, mut receivers) = (Vec::new(), Vec::new());
    for _ in 0..connections {
        let sender = TcpStream::connect(address).map_err(failed)?;
        sender.set_nodelay(true).map_err(failed)?;
        senders.push(sender);
        receivers.push(listener.accept().map_err(failed)?.0);
    }
    let (is_over, received) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let named = |end: usize| std::thread::Builder::new().name(LOOP_THREADS[end].to_owned());
        let (is_over, received) = (&is_over, &received);
        let ends = &senders;
        let sending = named(0).spawn_scoped(scope, move || {
            let ring = vec![1; slots(bytes) * bytes];
            let frames = ring.chunks_exact(bytes).cycle();
            for (frame, mut stream) in frames.zip(ends.iter().cycle()) {
                if is_over.load(Ordering::Relaxed) || stream.write_all(frame).is_err() {
                    return;
                }
            }
        });
        let ends = &receivers;
        let receiving = named(1).spawn_scoped(scope, move || {
            let mut ring = vec![0; slots(bytes) * bytes];
            for (i, mut stream) in ends.iter().cycle().enumerate() {
                let at = i % slots(bytes) * bytes;
                if stream.read_exact(&mut ring[at..at + bytes]).is_err() {
                    return;
                }
                received.fetch_add(bytes as u64, Ordering::Relaxed);
            }
        });
        let measured = sending.and(receiving).map_err(failed).and_then(|_| {
            let start = Instant::now();
            while received.load(Ordering::Relaxed) == 0 {
                if start.elapsed() > PROGRESS_TIMEOUT {
                    return Err(failed("no frame arrived over loopback"));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(window / 4);
            let read = || Progress::now(received.load(Ordering::Relaxed), LOOP_THREADS);
            let before = read();
            std::thread::sleep(window);
            Ok(read().since(&before))
        });
        is_over.store(true, Ordering::Relaxed);
        for stream in senders.iter().chain(&receivers) {
            // This ends calls that wait. An error means that the connection has ended already.
            let _ = stream.shutdown(Shutdown::Both);
        }
        measured
    })
}

/// Measures a stream from ring to ring.
fn stream(
    environment: &Environment,
    bytes: usize,
    (args, has_checksums): (&Args, bool),
    window: Duration,
) -> Result<[f64; 3], BenchError> {
    let host = Ipv4Addr::LOCALHOST;
    let port = free_port(host.into())?;
    let ring = format!("[ring.raw]\nslot = {bytes}\nslots = {}\n", slots(bytes));
    let (connections, depth) = (args.connections, args.depth);
    let tcp = format!("driver = \"stream\"\ntransport = \"tcp\"\nconnections = {connections}\n");
    let receiver = environment.start(&format!(
        "[source.rx]\n{tcp}ring = \"raw\"\nlisten = \"{host}:{port}\"\n{ring}\
         [sink.nothing]\ndriver = \"null\"\ninput = \"raw\"\nguarantee = true\n"
    ))?;
    let measured = environment
        .start(&format!(
            "[source.adc]\ndriver = \"sim\"\nring = \"raw\"\npattern = \"silence\"\npacket = {bytes}\n\
             backpressure = true\npace = \"free\"\nsamples = {{ type = \"float32\" }}\n{ring}\
             [sink.tx]\n{tcp}checksums = {has_checksums}\ndepth = {depth}\ninput = \"raw\"\nto = \"{host}:{port}\"\nguarantee = true\n"
        ))
        .and_then(|sender| {
            let measured = rate(&sender, bytes, window);
            let report = sender.end();
            let figures = measured?;
            report.map(|_| figures)
        });
    let report = receiver.end()?;
    let source = report.sources.get("rx").cloned().unwrap_or_default();
    if !source.loss().is_none() {
        return Err(failed(format!(
            "{}; this is a defect in daq",
            source.loss()
        )));
    }
    measured
}

/// Measures the frames that the receiver has acknowledged.
fn rate(sender: &RunningPipeline, bytes: usize, window: Duration) -> Result<[f64; 3], BenchError> {
    let sent = |min: u64| {
        let frames = sender.await_sent("tx", min)?;
        Ok::<_, BenchError>(Progress::now(frames * bytes as u64, STREAM_THREADS))
    };
    sent(1)?;
    std::thread::sleep(window / 4);
    let before = sent(1)?;
    std::thread::sleep(window);
    // Linux may not have scheduled the sender yet, so wait for another frame.
    Ok(sent(before.bytes / bytes as u64 + 1)?.since(&before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_per_second_and_per_gigabyte() {
        let at = Instant::now();
        let seconds = |seconds: f64| Some(Duration::from_secs_f64(seconds));
        let before = Progress {
            at,
            bytes: 1_000_000_000,
            cpu: [seconds(1.0), seconds(2.0)],
        };
        let after = Progress {
            at: at + Duration::from_secs(2),
            bytes: 5_000_000_000,
            cpu: [seconds(2.0), None],
        };
        let [rate, sender, receiver] = after.since(&before);
        assert_eq!((rate, sender, receiver.is_nan()), (2e9, 0.25, true));
        assert_eq!([slots(8), slots(1 << 20), slots(64 << 20)], [256, 32, 8]);
    }
}
