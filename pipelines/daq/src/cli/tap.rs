//! `daq tap` prints the newest frames of a ring of a running pipeline.

mod frame;

use super::exit;
use super::ls::{no_sockets, socket_directories};
use clap::{Args as ClapArgs, ValueEnum};
use daq_core::units::Span;
use daq_pipelines::attach::client::{Client, ClientError};
use daq_pipelines::attach::sockets;
use daq_pipelines::console::print_error;
use frame::Frame;
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Interval at which a frame is requested again if there was no new one. The daemon copies no frames more often.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Time without the first frame after which a message is printed.
const FIRST_SILENCE: Duration = Duration::from_secs(1);
/// Time without another frame after which a message is printed.
const SILENCE: Duration = Duration::from_secs(10);

/// Arguments of `daq tap`.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct Args {
    /// Name of the ring; `daq ls` lists the rings.
    ring: String,
    /// Format of the output.
    #[arg(long, value_enum, default_value = "json")]
    format: Form,
    /// Minimum time between two frames.
    #[arg(long, value_name = "TIME", default_value = "1 s")]
    every: Span,
    /// Exit after N frames. Default: continue until the run ends.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Name of the pipeline, if several pipelines have a ring of this name.
    #[arg(long, value_name = "NAME")]
    pipeline: Option<String>,
    /// State directory of the pipeline, as given to `daq run`. Default: set by systemd or XDG variables.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// Help text about formats.
const AFTER_HELP: &str = "\
Formats:
  json  one line per frame: number, time, missing packets, and the samples in nested arrays
  csv   one line per point: frame, time in ns, point, and the samples of all channels; samples of missing packets are empty.
        If the channels of a short planar frame cannot be separated, one line per number, after another header
  npy   one NumPy file per frame, one after the other: np.load(file) reads the next one
  raw   the bytes of each frame
With npy and raw, samples of missing packets have the fill value of the ring, and stderr lists the missing packets. This is
also the case with csv for frames with unknown packet sizes or with more than 1000 ranges of missing packets.

Frames in between are skipped. The pipeline does not wait for this command.
Examples:
  daq tap spectra --format csv --count 1
  daq tap raw --format npy --count 1 > frame.npy";

/// The format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    Json,
    Csv,
    Npy,
    Raw,
}

/// Why the command ended early.
#[derive(Debug)]
enum End {
    /// The output was closed, for example by `head`.
    OutputClosed,
    Output(io::Error),
    Client(ClientError),
    Defect(String),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::Output(error),
        }
    }
}

impl From<ClientError> for End {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

impl From<serde_json::Error> for End {
    fn from(error: serde_json::Error) -> Self {
        match error.io_error_kind() {
            Some(kind) => io::Error::from(kind).into(),
            None => Self::Defect(error.to_string()),
        }
    }
}

pub(super) fn tap(args: &Args) -> u8 {
    if matches!(args.format, Form::Npy | Form::Raw) && io::stdout().is_terminal() {
        print_error!(
            "error: this format is not text; redirect the output: daq tap {} … > FILE",
            args.ring
        );
        return exit::USAGE;
    }
    let client = match find(args) {
        Ok(client) => client,
        Err(error) => {
            print_error!("error: {error}");
            return exit::UNAVAILABLE;
        }
    };
    match print(args, client) {
        Ok(()) | Err(End::OutputClosed) => 0,
        // The run has ended.
        Err(End::Client(ClientError::Closed { .. })) if args.count.is_none() => {
            print_error!("the run has ended");
            0
        }
        Err(End::Client(error)) => {
            print_error!("error: {error}");
            exit::UNAVAILABLE
        }
        Err(End::Output(error)) => {
            print_error!("error: cannot write to stdout: {error}");
            exit::IO
        }
        Err(End::Defect(error)) => {
            print_error!("error: {error}");
            exit::INTERNAL
        }
    }
}

/// Connects to the pipeline that has the ring.
fn find(args: &Args) -> Result<Client, String> {
    let directories = socket_directories(args.state_dir.as_deref());
    let mut found = Vec::new();
    let mut others = Vec::new();
    let mut failed = Vec::new();
    for path in sockets(&directories) {
        let connected = Client::connect(&path).and_then(|mut client| Ok((client.list()?, client)));
        let (pipeline, client) = match connected {
            Ok(connected) => connected,
            Err(ClientError::Killed { .. }) => continue,
            Err(error) => {
                failed.push(error.to_string());
                continue;
            }
        };
        let name = pipeline["pipeline"].as_str().unwrap_or_default().to_owned();
        let rings = pipeline["rings"].as_array().into_iter().flatten();
        let rings: Vec<_> = rings.filter_map(|ring| ring["name"].as_str()).collect();
        let is_wanted = args.pipeline.as_ref().is_none_or(|wanted| *wanted == name);
        if is_wanted && rings.contains(&args.ring.as_str()) {
            found.push((name, client));
        } else {
            others.push(format!("{} of pipeline `{name}`", rings.join(", ")));
        }
    }
    match found.len() {
        1 => Ok(found.swap_remove(0).1),
        0 if !failed.is_empty() => Err(failed.join("; ")),
        0 if others.is_empty() => Err(no_sockets(&directories)),
        0 => {
            let of = args
                .pipeline
                .as_ref()
                .map(|name| format!(" of pipeline `{name}`"));
            let of = of.unwrap_or_default();
            Err(format!(
                "no ring `{}`{of}; the rings are {}",
                args.ring,
                others.join("; ")
            ))
        }
        _ => {
            let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
            Err(format!(
                "several pipelines have a ring `{}`; choose one with --pipeline: {}",
                args.ring,
                names.join(", ")
            ))
        }
    }
}

/// Prints frames until the count is reached or the run ends.
fn print(args: &Args, mut client: Client) -> Result<(), End> {
    let mut output = BufWriter::with_capacity(1 << 20, io::stdout().lock());
    let mut after = None;
    let mut printed = 0;
    let mut columns = String::new();
    let mut silence = Silence::new(FIRST_SILENCE);
    while args.count.is_none_or(|count| printed < count) {
        let Some(tapped) = client.tap(&args.ring, after)? else {
            if silence.is_due() {
                print_error!("{}", waiting(&args.ring, after.is_none(), &mut client)?);
            }
            std::thread::sleep(RETRY_INTERVAL);
            continue;
        };
        let begin = Instant::now();
        let frame = Frame::read(tapped)?;
        if let Some(warning) = frame.warning(args.format) {
            print_error!("{warning}");
        }
        after = Some(frame.index);
        match args.format {
            Form::Raw => output.write_all(&frame.bytes)?,
            Form::Npy => frame.npy(&mut output)?,
            Form::Csv => frame.csv(&mut output, &mut columns)?,
            Form::Json => frame.json(&args.ring, &mut output)?,
        }
        output.flush()?;
        printed += 1;
        if args.count.is_none_or(|count| printed < count) {
            std::thread::sleep(args.every.0.saturating_sub(begin.elapsed()));
        }
        silence = Silence::new(SILENCE);
    }
    Ok(())
}

/// The time for which this command waits for the next frame.
struct Silence {
    since: Instant,
    limit: Duration,
    is_reported: bool,
}

impl Silence {
    fn new(limit: Duration) -> Self {
        Self {
            since: Instant::now(),
            limit,
            is_reported: false,
        }
    }

    /// Returns true once, when the time has passed the limit.
    fn is_due(&mut self) -> bool {
        self.since.elapsed() > self.limit && !std::mem::replace(&mut self.is_reported, true)
    }
}

/// Returns why no frame was printed for some time, and how the user can end the command.
fn waiting(ring: &str, is_first: bool, client: &mut Client) -> Result<String, ClientError> {
    let pipeline = client.list()?;
    let mut rings = pipeline["rings"].as_array().into_iter().flatten();
    let published = rings.find(|described| described["name"] == ring);
    let published = published.and_then(|described| described["published"].as_u64());
    let what = if !is_first {
        format!(
            "no new frame in ring `{ring}` for {} s; waiting for the next frame",
            SILENCE.as_secs()
        )
    } else if published > Some(0) {
        format!(
            "frames of ring `{ring}` are overwritten before they can be copied; increase `slots` in [ring.{ring}]; \
             waiting for a frame that can be copied"
        )
    } else {
        let hint = match pipeline["http"].as_str() {
            Some(address) => format!("; `daq top {address}` shows whether data arrives"),
            None => String::new(),
        };
        format!("waiting for the first frame of ring `{ring}`{hint}")
    };
    Ok(format!("{what}; press Ctrl-C to end"))
}
