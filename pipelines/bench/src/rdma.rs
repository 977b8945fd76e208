//! Measures RDMA between two hosts, and reports tables of size, MB/s and µs. The benchmark measures single queue pairs
//! that write to memory, and whole pipelines from ring to ring, as `daq run` builds them. The ratio of the two shows
//! the cost of the protocol and the rings.
//!
//! ```text
//!   connecting side ── requests, one per line ───────▶ listening side     (control: TCP)
//!        ══ writes, or frames ════════════════════▶    memory, or a source
//! ```

mod control;
mod raw;
mod stream;

use super::chart::Chart;
use super::comparison::{Refused, Row};
use super::cores::joined;
use super::figures::percentiles;
use super::table::{Cell, Table, size};
use super::{BenchError, Common, MAX_BYTES, Publish, bytes, count};
use control::{ControlConnection, Reply, Request};
use daq_core::gpu::driver::Device;
use daq_core::staging::Sending;
use daq_core::units::ByteSize;
use daq_diagnostics::fixture::Scratch;
use daq_diagnostics::fixture::{Environment, failed};
use daq_pipelines::profiles::MeasuredCard;
use daq_rdma::nics::{self, NicNames};
use daq_rdma::verbs::Nic;
use raw::Raw;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use stream::Bench;

/// Minimum speed-up over staging for which the direct path is preferred.
const MIN_SPEEDUP: f64 = 1.05;
/// Maximum number of round trips per request that the listening side accepts.
const MAX_ROUND_TRIPS: usize = 1 << 20;

/// Options of `daq bench rdma`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Listen at this address for the measuring side, and exit when the measuring side exits.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "to")]
    listen: Option<SocketAddr>,
    /// Connect to the listening side at this address and measure.
    #[arg(long, value_name = "ADDRESS")]
    to: Option<SocketAddr>,
    /// Network cards, for example `mlx5_0:PORT@GID`. Both sides need the same number of cards. `emulated:ADDRESS` is an
    /// emulated card. The default is the first card, or an emulated one. The measurements of queue pairs alone (without
    /// rings) use only the first card.
    #[arg(long, value_delimiter = ',')]
    nics: Vec<String>,
    /// Round trips per method and round.
    #[arg(long, default_value = "1000", value_parser = count::<8, 500_000>)]
    round_trips: usize,
    /// Save the largest frame size at which the card sends faster from GPU memory than from host memory. A sink `stream`
    /// with `path = "auto"` uses this value. Requires exactly one card.
    #[arg(long, conflicts_with = "listen")]
    pub(crate) keep: bool,
    /// Directory for the saved value. The default is the state directory by the rules of systemd and XDG.
    #[arg(long, value_name = "DIR", requires = "keep")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Message sizes, multiples of 8 bytes, at most 64 MiB.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "8 B,64 B,512 B,4 KiB,32 KiB,256 KiB,1 MiB,4 MiB",
        value_parser = bytes::<8, MAX_BYTES, 8>
    )]
    sizes: Vec<usize>,
}

/// One method to transfer data from memory to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Method {
    /// Whether the sender's memory and the receiver's memory are on a GPU.
    gpus: [bool; 2],
    /// Value of the key `path` of source and sink; `None` for a single queue pair.
    path: Option<&'static str>,
}

impl Method {
    /// Returns all methods: queue pairs first, then pipelines.
    fn all() -> Vec<Self> {
        let gpus = [[false, false], [false, true], [true, false], [true, true]];
        let raw = gpus.map(|gpus| Self { gpus, path: None });
        let streams = gpus.into_iter().flat_map(|gpus| {
            let paths: &[&str] = if gpus == [false; 2] {
                &["auto"]
            } else {
                &["staged", "direct"]
            };
            paths.iter().map(move |path| Self {
                gpus,
                path: Some(path),
            })
        });
        raw.into_iter().chain(streams).collect()
    }

    fn name(self) -> String {
        let ends = ends(self.gpus);
        match self.path {
            None => format!("queue pair alone, {ends}"),
            Some("auto") => format!("ring to ring, {ends}"),
            Some(path) => format!("ring to ring, {ends}, {path}"),
        }
    }

    const fn needs_gpu(self) -> bool {
        self.gpus[0] || self.gpus[1]
    }

    /// Returns the method with the same memory and a queue pair alone.
    const fn alone(self) -> Self {
        Self { path: None, ..self }
    }
}

/// Describes the memory of the sender and that of the receiver.
fn ends(gpus: [bool; 2]) -> String {
    let [from, to] = gpus.map(|is_gpu| if is_gpu { "GPU" } else { "host" });
    format!("{from} → {to}")
}

/// The resources of one side.
struct Host<'a> {
    common: &'a Common,
    args: &'a Args,
    nic: Arc<dyn Nic>,
    gpu: Result<&'static Device, String>,
    bench: Bench,
}

impl<'a> Host<'a> {
    fn new(common: &'a Common, args: &'a Args) -> Result<Self, BenchError> {
        let nics = if args.nics.is_empty() {
            vec![first_card()]
        } else {
            args.nics.clone()
        };
        let gpu = common.open();
        let scratch = Scratch::new("rdma", "", None)?;
        Ok(Self {
            common,
            args,
            nic: nics::open(&nics[0]).map_err(failed)?,
            bench: Bench {
                environment: Environment::new(
                    common.registry.clone(),
                    scratch,
                    gpu.as_ref().ok().copied(),
                )?,
                nics,
                device: common.device,
            },
            gpu: gpu.map_err(|error| error.to_string()),
        })
    }

    /// Returns the result that later plans use. Returns `None` if several devices took part, because the result cannot
    /// be assigned to one of them.
    fn measured(&self, turn: Turn) -> Option<MeasuredCard> {
        let sizes = &self.args.sizes;
        let staged_from = match turn {
            Turn::Unmeasured => return None,
            Turn::Never => None,
            // If staging is as fast from the smallest measured size on, it is assumed to be so for all smaller sizes.
            Turn::From(size) if sizes.iter().min() == Some(&size) => Some(0),
            Turn::From(size) => Some(size),
        };
        let [name] = self.bench.nics.as_slice() else {
            return None;
        };
        let card = NicNames::One(name.clone()).device();
        let card = card.unwrap_or_else(|| nics::EMULATED.to_owned());
        let sending = Sending {
            staged_from,
            max_bytes: sizes.iter().max().copied()?,
            basis: self.bench.environment.topology.measurement_basis(&card),
        };
        Some(MeasuredCard {
            device: self.bench.device,
            card,
            sending,
        })
    }

    fn gpu(&self, is_wanted: bool) -> Result<Option<&'static Device>, BenchError> {
        if !is_wanted {
            return Ok(None);
        }
        self.gpu.clone().map(Some).map_err(failed)
    }

    /// Serves one connected peer until the peer has no more requests.
    fn serve(&self, wire: &mut ControlConnection) -> Result<(), BenchError> {
        let here = wire.ends()?[0].ip();
        loop {
            let served = match wire.receive()? {
                Request::Raw {
                    is_gpu,
                    size,
                    round_trips,
                } => self.gpu(is_gpu).and_then(|gpu| {
                    let shape = (size.clamp(8, MAX_BYTES), round_trips.min(MAX_ROUND_TRIPS));
                    raw::serve(wire, &self.nic, gpu, here, shape)
                }),
                Request::Stream { is_gpu, size, path } => self.gpu(is_gpu).and_then(|_| {
                    let size = size.clamp(8, MAX_BYTES);
                    self.bench.serve(wire, here, (is_gpu, size, &path))
                }),
                // The message ends a measurement that was never started.
                Request::End => continue,
                Request::Bye => return Ok(()),
            };
            wire.send(&match served {
                Ok(()) => Reply::Done,
                Err(error) => Reply::Refused {
                    why: format!("the listening side failed: {error}"),
                },
            })?;
        }
    }

    /// Returns the bandwidth in bytes per second and, for a queue pair alone, the percentiles of the latency in µs.
    fn measure(
        &self,
        wire: &mut ControlConnection,
        method: Method,
        size: usize,
    ) -> Result<[f64; 4], BenchError> {
        let [is_gpu, is_target_gpu] = method.gpus;
        let gpu = self.gpu(is_gpu)?;
        let window = self.common.window.0;
        if let Some(path) = method.path {
            // Only a side with GPU memory has several paths.
            let of_side = |is_gpu| if is_gpu { path } else { "auto" };
            let request = Request::Stream {
                is_gpu: is_target_gpu,
                size,
                path: of_side(is_target_gpu).to_owned(),
            };
            let rate = ask(wire, &request, |address| {
                let sender = (is_gpu, size, of_side(is_gpu));
                self.bench.send(sender, address, window)
            })?;
            return Ok([rate, f64::NAN, f64::NAN, f64::NAN]);
        }
        let request = |round_trips| Request::Raw {
            is_gpu: is_target_gpu,
            size,
            round_trips,
        };
        let rate = ask(wire, &request(0), |address| {
            Raw::connect(&self.nic, gpu, address, size)?.bandwidth(size, window)
        })?;
        let warm = self.args.round_trips / 10;
        let count = self.args.round_trips + warm;
        let times = ask(wire, &request(count), |address| {
            Raw::connect(&self.nic, gpu, address, size)?.round_trips(size, count)
        })?;
        let [p50, p99, p999] = percentiles(&times[warm..]);
        Ok([rate, p50, p99, p999])
    }
}

/// Sends a request to the listening side, measures when that side is ready, and waits until that side has finished.
fn ask<T>(
    wire: &mut ControlConnection,
    request: &Request,
    measure: impl FnOnce(SocketAddr) -> Result<T, BenchError>,
) -> Result<T, BenchError> {
    wire.send(request)?;
    let port = match wire.receive()? {
        Reply::Ready { port } => port,
        Reply::Refused { why } => return Err(failed(why)),
        Reply::Done => return Err(failed("the other side ended before the measurement began")),
    };
    let measured = measure((wire.ends()?[1].ip(), port).into());
    wire.send(&Request::End)?;
    let reply = wire.receive()?;
    match (measured, reply) {
        (Ok(_), Reply::Refused { why }) => Err(failed(why)),
        (measured, _) => measured,
    }
}

/// Returns the first RDMA device of this host, or an emulated one.
fn first_card() -> String {
    let devices = daq_rdma::sys::devices().unwrap_or_default();
    let first = devices.into_iter().next();
    first.unwrap_or_else(|| nics::EMULATED.to_owned())
}

/// Measures and publishes tables, or serves the other side's measurement. Returns the result that later plans use.
/// Returns `None` on the listening side, or if one of the two methods to send from a GPU was not measured.
pub(super) fn rdma(
    common: &Common,
    args: &Args,
    publish: Publish<'_>,
) -> Result<Option<MeasuredCard>, BenchError> {
    if let Some(address) = args.listen {
        return listen(common, args, &bound(address)?).map(|()| None);
    }
    if let Some(address) = args.to {
        return connect(common, args, address, publish);
    }
    let listener = bound((Ipv4Addr::LOCALHOST, 0).into())?;
    let address = listener.local_addr().map_err(failed)?;
    std::thread::scope(|scope| {
        // The thread of the listening side drops the listener, so that the connecting side does not wait for a failed
        // listening side.
        let there = scope.spawn(move || listen(common, args, &listener));
        let here = connect(common, args, address, publish);
        // If the connecting side failed before it connected, this connection ends the wait of the listening side.
        if here.is_err() {
            drop(TcpStream::connect(address));
        }
        joined(there).and(here)
    })
}

fn bound(address: SocketAddr) -> Result<TcpListener, BenchError> {
    TcpListener::bind(address)
        .map_err(|error| failed(format!("cannot listen at {address}: {error}")))
}

fn listen(common: &Common, args: &Args, listener: &TcpListener) -> Result<(), BenchError> {
    let host = Host::new(common, args)?;
    let (stream, _) = listener.accept().map_err(failed)?;
    host.serve(&mut ControlConnection::new(stream)?)
}

fn connect(
    common: &Common,
    args: &Args,
    address: SocketAddr,
    publish: Publish<'_>,
) -> Result<Option<MeasuredCard>, BenchError> {
    let host = Host::new(common, args)?;
    let stream = TcpStream::connect(address);
    let stream = stream.map_err(|error| {
        failed(format!(
            "cannot connect to {address}: {error}; first start `daq bench rdma --listen {address}` on that host"
        ))
    })?;
    let mut wire = ControlConnection::new(stream)?;
    let methods = Method::all();
    let mut refused = Refused::default();
    let compared = common.compare(&args.sizes, &methods, |&size, &method| {
        // A method that has failed once is not measured again.
        if refused.contains(&method.name()) {
            return Ok(None);
        }
        match host.measure(&mut wire, method, size) {
            Err(error) if method.needs_gpu() => {
                refused.add(method.name(), error);
                Ok(None)
            }
            measured => measured.map(Some),
        }
    })?;
    wire.send(&Request::Bye)?;
    // The results of a method are incomplete if it failed later.
    let rows = compared.rows();
    let results = Results {
        rows: rows
            .filter(|row| !refused.contains(&row.method.name()))
            .collect(),
    };
    let about = format!("over {} to {address}", host.bench.nics.join(", "));
    let title = format!(
        "bandwidth {about}, {} per measurement; queue pairs alone keep {} writes in flight; ring to ring includes producing and acknowledging frames",
        common.window,
        raw::WINDOW
    );
    publish(results.rates(compared.title(&title)));
    let title = format!(
        "latency {about}: half a round trip of writes with immediate, {} per round",
        args.round_trips
    );
    publish(results.latencies(compared.title(&title)));
    publish(results.paths(&args.sizes));
    refused.publish(publish);
    Ok(host.measured(results.turn(&args.sizes, [true, false])))
}

/// The results of the methods that were measured completely.
struct Results<'a> {
    /// Sorted by message size, then by method.
    rows: Vec<Row<'a, usize, Method, 4>>,
}

impl Results<'_> {
    /// Returns the bandwidth in bytes per second; NaN if it was not measured.
    fn rate(&self, size: usize, method: Method) -> f64 {
        let mut rows = self.rows.iter();
        let row = rows.find(|row| *row.scenario == size && *row.method == method);
        row.map_or(f64::NAN, |row| row.figures[0])
    }

    /// Returns the rows sorted by method, then by message size.
    fn by_method(&self) -> impl Iterator<Item = &Row<'_, usize, Method, 4>> {
        let methods = Method::all().into_iter();
        methods.flat_map(|method| self.rows.iter().filter(move |row| *row.method == method))
    }

    fn rates(&self, title: String) -> Table {
        let rows = self.by_method().map(|it| {
            let (rate, alone) = (it.figures[0], self.rate(*it.scenario, it.method.alone()));
            vec![
                it.method.name().into(),
                size(*it.scenario),
                Cell::Number(rate / 1e6, 2),
                Cell::Number(rate / *it.scenario as f64, 0),
                Cell::Number(rate / alone, 3),
            ]
        });
        let columns = "method | size | MB/s | messages/s | × queue pair alone";
        let table = Table::of(title, columns, rows);
        let gpus = [[false, false], [false, true], [true, false], [true, true]];
        gpus.iter().fold(table, |table, gpus| {
            let ends = ends(*gpus);
            let methods = Method::all().into_iter();
            let methods = methods.filter(|method| method.gpus == *gpus);
            let chart = Chart::rates(format!("Bandwidth, {ends}"), "MB/s")
                .over("size", "message size")
                .by(&["method"], "MB/s")
                .own(&["ring to ring"])
                .only(methods.map(Method::name).collect());
            table.with(chart)
        })
    }

    fn latencies(&self, title: String) -> Table {
        let rows = self.by_method().filter(|it| it.method.path.is_none());
        let rows = rows.map(|it| {
            let [_, quantiles @ ..] = it.figures;
            let (p50, p99) = (Cell::Number(quantiles[0], 2), Cell::Number(quantiles[1], 2));
            vec![it.method.name().into(), size(*it.scenario), p50, p99]
        });
        let chart = Chart::times("Latency of queue pairs: half a round trip", "µs")
            .over("size", "message size")
            .by(&["method"], "p50 µs")
            .own(&[""]);
        Table::of(title, "method | size | p50 µs | p99 µs", rows).with(chart)
    }

    /// Returns a table of the sizes from which staged frames are about as fast as direct frames. Staged frames are copied
    /// through host memory. Direct frames are read and written in GPU memory by the network cards.
    fn paths(&self, sizes: &[usize]) -> Table {
        let rows = [[false, true], [true, false], [true, true]].map(|gpus| {
            let from = match self.turn(sizes, gpus) {
                Turn::Unmeasured => "not measured".to_owned(),
                Turn::Never => "at no measured size".to_owned(),
                Turn::From(size) => ByteSize(size as u64).to_string(),
            };
            vec![ends(gpus).into(), from.into()]
        });
        Table::of("direct or staged", "memory | staged is as fast from", rows)
    }

    /// Returns the size from which staging is about as fast for these kinds of memory.
    fn turn(&self, sizes: &[usize], gpus: [bool; 2]) -> Turn {
        let rate = |size: usize, path| {
            let path = Some(path);
            self.rate(size, Method { gpus, path })
        };
        let pairs = sizes.iter();
        let pairs = pairs.map(|size| (*size, rate(*size, "staged"), rate(*size, "direct")));
        turn(&pairs.collect::<Vec<_>>())
    }
}

/// The message size from which the staged path is never much slower than the direct path. From this size on, the staged
/// path is preferred, because it works on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// One of the two paths was not measured.
    Unmeasured,
    /// The staged path is slower even at the largest size.
    Never,
    /// From this size in bytes on, the staged path is about as fast.
    From(usize),
}

fn turn(pairs: &[(usize, f64, f64)]) -> Turn {
    let is_measured = |(_, staged, direct): &(usize, f64, f64)| !(staged + direct).is_nan();
    if pairs.is_empty() || !pairs.iter().all(is_measured) {
        return Turn::Unmeasured;
    }
    let mut pairs = pairs.to_vec();
    pairs.sort_unstable_by_key(|(size, _, _)| *size);
    let tail = pairs
        .iter()
        .rev()
        .take_while(|(_, staged, direct)| *staged * MIN_SPEEDUP >= *direct);
    tail.last()
        .map_or(Turn::Never, |(size, _, _)| Turn::From(*size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staging_threshold_is_first_size_without_later_loss() {
        let nan = f64::NAN;
        assert_eq!(turn(&[(8, 1.0, 2.0), (64, 3.0, 2.0)]), Turn::From(64));
        assert_eq!(turn(&[(64, 3.0, 2.0), (8, 1.0, 2.0)]), Turn::From(64));
        assert_eq!(turn(&[(8, 3.0, 2.0), (64, 1.0, 2.0)]), Turn::Never);
        assert_eq!(turn(&[(8, 3.0, 2.0), (64, 4.0, 2.0)]), Turn::From(8));
        assert_eq!(turn(&[(8, 3.0, nan)]), Turn::Unmeasured);
        assert_eq!(turn(&[]), Turn::Unmeasured);
        assert_eq!(turn(&[(8, 1.0, 1.2), (64, 1.0, 1.04)]), Turn::From(64));
    }

    #[test]
    fn every_method_has_baseline_of_single_queue() {
        let methods = Method::all();
        assert_eq!(methods.len(), 11);
        for method in &methods {
            assert!(methods.contains(&method.alone()), "{}", method.name());
        }
    }
}
