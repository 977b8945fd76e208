//! The keys of a `replay` source.

use crate::list::List;
use crate::packet::frames;
use daq_core::config::Problem;
use daq_core::layout::Samples;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// One file or several.
pub type Paths = List<PathBuf>;

/// How fast a recording is replayed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Speed {
    /// So many times as fast as it was recorded.
    Times(f64),
    /// As fast as it can be read.
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
                        "\"{text}\" is no speed: give a number such as 1.0, or \"free\"; try \"free\""
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

/// The keys of a `replay` source, but for the table `format`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayConfig {
    /// What is replayed, or an array of such, one after the other: a capture (`.pcap` or `.pcapng`), a SigMF
    /// recording (its `.sigmf-meta` or `.sigmf-data` file), or a directory, whose SigMF recording is replayed
    /// segment by segment in the order of the names.
    pub path: Paths,
    /// Which recording of a directory that holds several: what its segments' names begin with, before the number.
    pub name: Option<String>,
    /// How many times as fast as it was recorded, by the recorded times; or `"free"`: as fast as it can be read.
    #[serde(default = "normal")]
    pub speed: Speed,
    /// Whether it is played again from the start, until the run is stopped. Each time opens an epoch, with the recorded
    /// times again. The speed is kept, and the last packet is followed by the first at once.
    #[serde(default, rename = "loop")]
    pub repeats: bool,
    /// Whether the recording waits for free slots; if not, what finds none is counted as `ring_full`, as with an
    /// instrument.
    #[serde(default = "yes")]
    pub hold: bool,
    /// Captures: only packets that were sent to this UDP port.
    pub port: Option<u16>,
    /// Captures: only packets that were sent to this IP address.
    pub destination: Option<IpAddr>,
    /// Captures: frames open at a time, so how far packets may come out of order; at least 1. Without it, as many as hold several
    /// receive batches of each thread, at least 8, as far as the ring has slots: `daq plan` prints the number and the reason.
    /// Where SPEAD sizes are learned, it is computed for the most packets that a slot may hold, not for those of the heaps: set
    /// `window` if `late` grows.
    pub window: Option<usize>,
    /// Captures: packets beyond twice the window that may be missing in a row: a longer gap, or a step back, is no
    /// loss but a count that begins anew, an epoch.
    #[serde(default = "frames::default_max_gap")]
    pub max_gap: u64,
    /// Captures: packets in a row that must agree on a number beyond twice the window before any of them is believed. They are
    /// kept aside until then, and rejected if they do not agree. At least 1.
    #[serde(default = "frames::default_resync_after")]
    pub agree: u32,
    /// Captures: what the payload means; without it, real int8 of one channel. SigMF recordings tell themselves.
    pub samples: Option<Samples>,
}

const fn normal() -> Speed {
    Speed::Times(1.0)
}

const fn yes() -> bool {
    true
}

/// Whether a path's name says that it is a capture, or that it is SigMF.
fn told(path: &Path) -> Option<bool> {
    let extension = path.extension()?.to_str()?;
    match extension {
        "pcap" | "pcapng" | "cap" => Some(true),
        "sigmf-meta" | "sigmf-data" => Some(false),
        _ => None,
    }
}

impl ReplayConfig {
    /// Whether it names captures, whose packets need a format: by the names, else by whether a format is given.
    pub fn is_capture(&self, has_format: bool) -> bool {
        let paths = &self.path.0;
        paths
            .iter()
            .find_map(|path| told(path))
            .unwrap_or(has_format && !paths.iter().any(|path| path.is_dir()))
    }

    /// Everything that is wrong with it.
    pub fn problems(&self, has_format: bool) -> Vec<Problem> {
        let mut found = frames::problems(self.window.unwrap_or(1), self.agree);
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
            "give a file such as \"recording.pcap\"",
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
                "no file has an empty name".into(),
                "give the path of a file",
            );
            must(
                told(path).is_none_or(|other| other == is_capture),
                &at,
                "captures and SigMF recordings are not replayed by one source".into(),
                "give each kind a source of its own",
            );
        }
        if let Speed::Times(times) = self.speed {
            let message = format!("{times} is no speed");
            must(
                times.is_finite() && times > 0.0,
                "speed",
                message,
                "give a positive number, or \"free\"",
            );
        }
        if is_capture {
            let help = "remove it: `path` names the captures";
            must(
                self.name.is_none(),
                "name",
                "captures are not chosen by `name`".into(),
                help,
            );
        } else {
            let help = "remove it; it is for packets in a capture";
            for (given, key) in [
                (has_format, "format"),
                (self.samples.is_some(), "samples"),
                (self.port.is_some(), "port"),
                (self.destination.is_some(), "destination"),
            ] {
                must(
                    !given,
                    key,
                    format!("a SigMF recording has no use for `{key}`"),
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

    fn read(text: &str) -> Result<ReplayConfig, String> {
        toml::from_str(text).map_err(|error| error.to_string())
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
            (config.path, config.speed, config.hold),
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
                .contains("no speed")
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
            keys("path = []\nwindow = 0\nagree = 0", true),
            ["window", "agree", "path"]
        );
        assert_eq!(keys("path = \"a.sigmf-data\"", false), Vec::<String>::new());
        assert_eq!(keys("path = \"capture\"", true), Vec::<String>::new());
    }
}
