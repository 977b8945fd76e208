//! `daq tap` prints the newest frames of a ring of a running pipeline.

use super::exit;
use super::ls::socket_directories;
use clap::{Args as ClapArgs, ValueEnum};
use daq_core::layout::{ArrayType, Layout, Order};
use daq_core::units::Span;
use daq_pipelines::attach::client::{Client, ClientError, Tapped};
use daq_pipelines::attach::sockets;
use daq_pipelines::console::print_error;
use daq_pipelines::numbers::{Number, numbers};
use serde_json::{Map, Value};
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Interval at which a frame is requested again if there was no new one. The daemon copies no frames more often.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Time without a new frame after which a message is printed.
const SILENCE: Duration = Duration::from_secs(3);

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
  csv   one line per point: frame, time in ns, point, and the samples of all channels
  npy   one NumPy file per frame, one after the other: np.load(file) reads the next one
  raw   the bytes of each frame

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
        Err(End::Client(ClientError::Closed { .. })) if args.count.is_none() => 0,
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
        0 if others.is_empty() => {
            let searched = directories.iter().map(|path| path.display().to_string());
            let searched = searched.collect::<Vec<_>>().join(" and ");
            Err(format!(
                "no pipeline runs: no sockets in {searched}; start it with `daq run`, or set --state-dir"
            ))
        }
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
    let mut last = Instant::now();
    let mut is_reported = false;
    while args.count.is_none_or(|count| printed < count) {
        let Some(tapped) = client.tap(&args.ring, after)? else {
            if last.elapsed() > SILENCE && !std::mem::replace(&mut is_reported, true) {
                print_error!(
                    "no new frame in ring `{}` for {} s; waiting",
                    args.ring,
                    SILENCE.as_secs()
                );
            }
            std::thread::sleep(RETRY_INTERVAL);
            continue;
        };
        (last, is_reported) = (Instant::now(), false);
        let frame = Frame::read(tapped)?;
        after = Some(frame.index);
        match args.format {
            Form::Raw => output.write_all(&frame.bytes)?,
            Form::Npy => frame.npy(&mut output)?,
            Form::Csv => frame.csv(&mut output, printed == 0)?,
            Form::Json => frame.json(&args.ring, &mut output)?,
        }
        output.flush()?;
        printed += 1;
        if args.count.is_none_or(|count| printed < count) {
            std::thread::sleep(args.every.0.saturating_sub(last.elapsed()));
        }
    }
    Ok(())
}

/// A frame with its description.
struct Frame {
    index: u64,
    /// The description of the frame.
    properties: Map<String, Value>,
    layout: Layout,
    array: ArrayType,
    /// The bytes of the frame that the array contains.
    bytes: Vec<u8>,
}

impl Frame {
    fn read(tapped: Tapped) -> io::Result<Self> {
        let length = tapped.file.metadata()?.len();
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        // All clients share the position of the file.
        tapped.file.read_exact_at(&mut bytes, 0)?;
        let (array, used) = ArrayType::of_frame(&tapped.layout, bytes.len());
        bytes.truncate(used);
        Ok(Self {
            index: tapped.index,
            properties: tapped.properties,
            layout: tapped.layout,
            array,
            bytes,
        })
    }

    fn npy(&self, output: &mut impl Write) -> io::Result<()> {
        output.write_all(&self.array.header())?;
        output.write_all(&self.bytes)
    }

    /// Returns the shape of the samples; complex samples are arrays of two numbers.
    fn shape(&self, numbers: usize) -> Vec<usize> {
        let (channels, parts) = (self.layout.channels as usize, self.layout.parts());
        let points = numbers / (channels * parts).max(1);
        let mut shape = match self.layout.order {
            Order::Interleaved => vec![points, channels],
            Order::Planar if numbers == self.layout.numbers() => vec![channels, points],
            // The channels of a short frame cannot be separated.
            Order::Planar => return vec![numbers],
        };
        if parts == 2 {
            shape.push(2);
        }
        shape
    }

    /// Prints one line with the metadata and the samples.
    fn json(mut self, ring: &str, output: &mut impl Write) -> Result<(), End> {
        let numbers = numbers(self.layout.scalar, &self.bytes);
        let samples = nested(&self.shape(numbers.len()), &numbers)?;
        let mut line = Map::new();
        line.insert("ring".to_owned(), ring.into());
        line.append(&mut self.properties);
        line.insert("samples".to_owned(), samples);
        serde_json::to_writer(&mut *output, &line)?;
        Ok(output.write_all(b"\n")?)
    }

    /// Prints one line per point, with the samples of all channels.
    fn csv(&self, output: &mut impl Write, is_first: bool) -> Result<(), End> {
        let (channels, parts) = (self.layout.channels as usize, self.layout.parts());
        if is_first {
            write!(output, "frame,time_ns,point")?;
            for channel in 0..channels {
                if parts == 2 {
                    write!(output, ",re{channel},im{channel}")?;
                } else {
                    write!(output, ",c{channel}")?;
                }
            }
            writeln!(output)?;
        }
        let numbers = numbers(self.layout.scalar, &self.bytes);
        let points = numbers.len() / (channels * parts).max(1);
        let time = self.properties.get("time_ns").unwrap_or(&Value::Null);
        for point in 0..points {
            write!(output, "{},{time},{point}", self.index)?;
            for channel in 0..channels {
                let sample = match self.layout.order {
                    Order::Interleaved => point * channels + channel,
                    Order::Planar => channel * points + point,
                };
                for number in numbers.iter().skip(sample * parts).take(parts) {
                    write!(output, ",{number}")?;
                }
            }
            writeln!(output)?;
        }
        Ok(())
    }
}

/// Returns `numbers` as nested arrays of the given shape.
fn nested(shape: &[usize], numbers: &[Number]) -> Result<Value, End> {
    let [size, inner @ ..] = shape else {
        return Ok(serde_json::to_value(numbers.first())?);
    };
    let length = inner.iter().product::<usize>();
    let parts = (0..*size).map(|i| nested(inner, numbers.get(i * length..).unwrap_or_default()));
    Ok(Value::Array(parts.collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::layout::{Samples, Scalar};

    fn frame(scalar: Scalar, complex: bool, order: Order, bytes: &[u8]) -> Frame {
        let samples = Samples {
            scalar,
            complex,
            channels: 2,
            order,
            rate: None,
        };
        let layout = samples.layout(bytes.len()).unwrap();
        Frame {
            index: 7,
            properties: Map::from_iter([("time_ns".to_owned(), Value::from(5))]),
            array: ArrayType::of(&layout),
            layout,
            bytes: bytes.to_vec(),
        }
    }

    fn text(print: impl FnOnce(&mut Vec<u8>) -> Result<(), End>) -> String {
        let mut output = Vec::new();
        print(&mut output).unwrap();
        String::from_utf8(output).unwrap()
    }

    #[test]
    fn pairs_are_printed_as_csv_and_json() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 255];
        let pairs = || frame(Scalar::Int8, true, Order::Interleaved, &bytes);
        assert_eq!(
            text(|output| pairs().csv(output, true)),
            "frame,time_ns,point,re0,im0,re1,im1\n7,5,0,1,2,3,4\n7,5,1,5,6,7,-1\n"
        );
        assert_eq!(
            text(|output| pairs().json("raw", output)),
            "{\"ring\":\"raw\",\"time_ns\":5,\"samples\":[[[1,2],[3,4]],[[5,6],[7,-1]]]}\n"
        );
    }

    #[test]
    fn planar_floats_are_printed_as_csv_and_json() {
        let numbers = [0.5, 1.0, f32::NAN, 2.0];
        let bytes: Vec<_> = numbers
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        let planar = || frame(Scalar::Float32, false, Order::Planar, &bytes);
        assert_eq!(
            text(|output| planar().csv(output, false)),
            "7,5,0,0.5,NaN\n7,5,1,1,2\n"
        );
        let json = text(|output| planar().json("raw", output));
        assert!(
            json.ends_with("\"samples\":[[0.5,1.0],[null,2.0]]}\n"),
            "{json}"
        );
    }

    #[test]
    fn packed_samples_are_printed_as_numbers() {
        let packed = frame(Scalar::Uint4p, false, Order::Interleaved, &[0x21, 0x43]);
        let json = text(|output| packed.json("raw", output));
        assert!(json.ends_with("\"samples\":[[1,2],[3,4]]}\n"), "{json}");
    }

    #[test]
    fn npy_has_the_header_and_the_bytes() {
        let mut output = Vec::new();
        let bytes = [1, 0, 2, 0];
        frame(Scalar::Int16, false, Order::Interleaved, &bytes)
            .npy(&mut output)
            .unwrap();
        assert!(output.starts_with(b"\x93NUMPY") && output.ends_with(&bytes));
    }
}
