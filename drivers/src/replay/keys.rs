//! The keys of a `replay` source.

use crate::packet::PacketKeys;
use daq_core::config::List;
use daq_core::config::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// One file or several.
pub(super) type Paths = List<PathBuf>;

/// The speed of a replay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Speed {
    /// This many times the recorded speed.
    Times(f64),
    /// As fast as the data can be read.
    Free,
}

impl<'de> Deserialize<'de> for Speed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Speed;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number such as 1.0, or \"free\"")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Speed, E> {
                match text {
                    "free" => Ok(Speed::Free),
                    _ => Err(E::custom(format!(
                        "\"{text}\" is not a valid speed: set a number such as 1.0, or \"free\"; try \"free\""
                    ))),
                }
            }

            fn visit_f64<E: Error>(self, times: f64) -> Result<Speed, E> {
                Ok(Speed::Times(times))
            }

            fn visit_u64<E: Error>(self, times: u64) -> Result<Speed, E> {
                Ok(Speed::Times(times as f64))
            }

            fn visit_i64<E: Error>(self, times: i64) -> Result<Speed, E> {
                Ok(Speed::Times(times as f64))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl JsonSchema for Speed {
    fn schema_name() -> Cow<'static, str> {
        "Speed".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "anyOf": [{ "type": "number", "exclusiveMinimum": 0 }, { "const": "free" }],
            "examples": [1.0, 10.0, "free"],
        })
    }
}

/// The keys of a `replay` source, without the table `format`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplayConfig {
    /// The recording, or an array of recordings replayed one after another: a capture (`.pcap` or `.pcapng`), a SigMF
    /// recording (its `.sigmf-meta` or `.sigmf-data` file), or a directory, whose SigMF recording is replayed
    /// segment by segment in the order of the names. The keys `window`, `max_gap`, `resync_after`, `close_after` and `samples`
    /// apply only to captures; the metadata of SigMF recordings contain the type and layout of the samples.
    pub path: Paths,
    /// The recording to replay from a directory with several: the common start of its segments' names, before the number.
    pub name: Option<String>,
    /// Replay speed: a factor relative to the recorded speed, based on the recorded times; or `"free"`, as fast as the data can
    /// be read.
    #[serde(default = "normal")]
    pub speed: Speed,
    /// Whether to repeat the recording until the run is stopped. Each pass opens a new epoch and repeats the recorded times.
    /// The speed is kept; the first packet of a pass follows the last packet of the previous pass immediately.
    #[serde(default, rename = "loop")]
    pub repeats: bool,
    /// Whether the replay waits for free slots. If false, packets without a free slot are counted as `ring_full`, as with an
    /// instrument that cannot wait.
    #[serde(default = "yes")]
    pub backpressure: bool,
    /// Captures: replay only packets sent to this UDP port.
    pub port: Option<u16>,
    /// Captures: replay only packets sent to this IP address.
    pub destination: Option<IpAddr>,
    /// The keys about packets and frames.
    #[serde(rename = "..packet_keys")]
    #[schemars(flatten)]
    pub packet_keys: PacketKeys,
}

const fn normal() -> Speed {
    Speed::Times(1.0)
}

const fn yes() -> bool {
    true
}

/// Returns whether the file name extension denotes a capture (true) or SigMF (false).
fn extension_is_capture(path: &Path) -> Option<bool> {
    let extension = path.extension()?.to_str()?;
    match extension {
        "pcap" | "pcapng" | "cap" => Some(true),
        "sigmf-meta" | "sigmf-data" => Some(false),
        _ => None,
    }
}

impl ReplayConfig {
    /// Returns whether the paths are captures, whose packets need a format. The extensions of the file names decide; if they
    /// are unknown, the paths are captures if a format is set.
    pub(super) fn is_capture(&self, has_format: bool) -> bool {
        let paths = &self.path.0;
        paths
            .iter()
            .find_map(|path| extension_is_capture(path))
            .unwrap_or(has_format && !paths.iter().any(|path| path.is_dir()))
    }

    /// Returns every problem of the configuration.
    pub(super) fn problems(&self, has_format: bool) -> Vec<Problem> {
        let mut found = self.packet_keys.problems();
        let mut must = |holds: bool, key: &str, message: String, help: &str| {
            if !holds {
                found.push(Problem::at(key, message).help(help));
            }
        };
        let is_capture = self.is_capture(has_format);
        let paths = &self.path.0;
        must(
            !paths.is_empty(),
            "path",
            "nothing to replay".into(),
            "set a file such as \"recording.pcap\"",
        );
        for (i, path) in paths.iter().enumerate() {
            let at = if paths.len() == 1 {
                "path".to_owned()
            } else {
                format!("path.{i}")
            };
            must(
                !path.as_os_str().is_empty(),
                &at,
                "a path must not be empty".into(),
                "set the path of a file",
            );
            must(
                extension_is_capture(path).is_none_or(|other| other == is_capture),
                &at,
                "one source cannot replay both captures and SigMF recordings".into(),
                "use one source for each kind",
            );
        }
        if let Speed::Times(times) = self.speed {
            let message = format!("{times} is not a valid speed");
            must(
                times.is_finite() && times > 0.0,
                "speed",
                message,
                "set a positive number, or \"free\"",
            );
        }
        if is_capture {
            let help = "remove `name`: `path` already names the captures";
            must(
                self.name.is_none(),
                "name",
                "`name` selects only SigMF recordings, but `path` contains captures".into(),
                help,
            );
        } else {
            let help = "remove this key; it applies only to captures";
            for (given, key) in [
                (has_format, "format"),
                (self.packet_keys.samples.is_some(), "samples"),
                (self.port.is_some(), "port"),
                (self.destination.is_some(), "destination"),
            ] {
                must(
                    !given,
                    key,
                    format!("`{key}` has no effect on a SigMF recording"),
                    help,
                );
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daq_core::config::{Diagnostics, Document};

    fn read(text: &str) -> Result<ReplayConfig, String> {
        let mut diagnostics = Diagnostics::new();
        let text = format!("[source.adc]\n{text}");
        let document = Document::from_text("daq.toml", &text, &mut diagnostics);
        let mut section = document.sections("source").remove(0);
        let config = section.finish(&[], &mut diagnostics);
        config.ok_or_else(|| diagnostics.render(document.sources(), false))
    }

    fn keys(text: &str, has_format: bool) -> Vec<String> {
        read(text)
            .unwrap()
            .problems(has_format)
            .into_iter()
            .filter_map(|problem| problem.key)
            .collect()
    }

    #[test]
    fn paths_and_speeds_are_parsed() {
        let config = read("path = \"a.pcap\"").unwrap();
        assert_eq!(
            (config.path, config.speed, config.backpressure),
            (List(vec!["a.pcap".into()]), Speed::Times(1.0), true)
        );
        let config = read("path = [\"a.pcap\", \"b.pcap\"]\nspeed = 2").unwrap();
        assert_eq!((config.path.0.len(), config.speed), (2, Speed::Times(2.0)));
        assert_eq!(
            read("path = \"a\"\nspeed = \"free\"").unwrap().speed,
            Speed::Free
        );
        assert!(
            read("path = \"a\"\nspeed = \"fast\"")
                .unwrap_err()
                .contains("not a valid speed")
        );
        assert!(read("path = \"a\"\nspeeds = 1").is_err());
    }

    #[test]
    fn contradicting_keys_are_reported() {
        assert_eq!(
            keys("path = \"a.pcap\"\nspeed = 0\nname = \"x\"", true),
            ["speed", "name"]
        );
        assert_eq!(
            keys("path = \"a.sigmf-meta\"\nport = 1", true),
            ["format", "port"]
        );
        assert_eq!(
            keys("path = [\"a.pcap\", \"b.sigmf-data\"]", true),
            ["path.1"]
        );
        assert_eq!(
            keys(
                "path = []\nwindow = 0\nresync_after = 0\nclose_after = \"0 s\"",
                true
            ),
            ["window", "resync_after", "close_after", "path"]
        );
        assert_eq!(keys("path = \"a.sigmf-data\"", false), Vec::<String>::new());
        assert_eq!(keys("path = \"capture\"", true), Vec::<String>::new());
    }
}
