//! The physical axis of the points of a channel, and its description in metadata.

use super::image::{Image, Module};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The physical axis of the points of a channel.
#[derive(Clone, Debug, PartialEq)]
pub enum Axis {
    /// A time axis.
    Time {
        /// Points per second and channel; `None` if unknown.
        rate: Option<f64>,
    },
    /// A frequency axis: point `i` is at `start + i * step`.
    Frequency {
        /// Frequency of point 0 in Hz; `None` if the sample rate of the input is unknown.
        start: Option<f64>,
        /// Distance between two points in Hz; `None` if the sample rate of the input is unknown.
        step: Option<f64>,
    },
    /// Named values: point `i` is the value with name `i`.
    Fields(Vec<String>),
    /// The pixels of an image.
    Pixels(Image),
}

/// The description of an axis in metadata: only numbers, texts and lists of them. Unknown values are absent.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Described {
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    names: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    width: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    height: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    colors: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    module_x: Vec<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    module_y: Vec<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    module_rotate: Vec<u16>,
}

impl Axis {
    /// Returns the name of the kind of axis in metadata.
    const fn kind(&self) -> &'static str {
        match self {
            Self::Time { .. } => "time",
            Self::Frequency { .. } => "frequency",
            Self::Fields(_) => "fields",
            Self::Pixels(_) => "pixels",
        }
    }
}

/// As in the metadata of files and in messages: an object with the member `kind`, and members for all known values.
impl Serialize for Axis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut described = Described {
            kind: self.kind().to_owned(),
            ..Described::default()
        };
        match self {
            Self::Time { rate } => described.rate = *rate,
            Self::Frequency { start, step } => {
                (described.start, described.step) = (*start, *step);
            }
            Self::Fields(names) => described.names = Some(names.clone()),
            Self::Pixels(image) => {
                (described.width, described.height) = (Some(image.width), Some(image.height));
                described.colors.clone_from(&image.colors);
                described.module_x = image.modules.iter().map(|module| module.x).collect();
                described.module_y = image.modules.iter().map(|module| module.y).collect();
                described.module_rotate =
                    image.modules.iter().map(|module| module.rotate).collect();
            }
        }
        described.serialize(serializer)
    }
}

/// An axis of an unknown kind, or an image without a size, is a time axis.
impl<'de> Deserialize<'de> for Axis {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let described = Described::deserialize(deserializer)?;
        Ok(
            match (&*described.kind, described.width, described.height) {
                ("frequency", ..) => Self::Frequency {
                    start: described.start,
                    step: described.step,
                },
                ("fields", ..) => Self::Fields(described.names.unwrap_or_default()),
                ("pixels", Some(width @ 1..), Some(height @ 1..)) => {
                    let places = described.module_x.into_iter().zip(described.module_y);
                    let modules = places.zip(described.module_rotate);
                    let modules = modules.map(|((x, y), rotate)| Module { x, y, rotate });
                    Self::Pixels(Image {
                        width,
                        height,
                        colors: described.colors,
                        modules: modules.collect(),
                    })
                }
                _ => Self::Time {
                    rate: described.rate,
                },
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_described_and_read_again() {
        let modules = vec![
            Module {
                x: 1,
                y: 2,
                rotate: 90,
            },
            Module::default(),
        ];
        let image = |modules| Image {
            width: 4,
            height: 3,
            colors: Some("BayerRG".to_owned()),
            modules,
        };
        for (axis, text) in [
            (
                Axis::Time { rate: Some(1e6) },
                r#"{"kind":"time","rate":1000000.0}"#,
            ),
            (Axis::Time { rate: None }, r#"{"kind":"time"}"#),
            (
                Axis::Frequency {
                    start: Some(-5.0),
                    step: Some(2.5),
                },
                r#"{"kind":"frequency","start":-5.0,"step":2.5}"#,
            ),
            (
                Axis::Fields(vec!["min".to_owned()]),
                r#"{"kind":"fields","names":["min"]}"#,
            ),
            (
                Axis::Pixels(image(Vec::new())),
                r#"{"kind":"pixels","width":4,"height":3,"colors":"BayerRG"}"#,
            ),
            (
                Axis::Pixels(image(modules)),
                r#"{"kind":"pixels","width":4,"height":3,"colors":"BayerRG","module_x":[1,0],"module_y":[2,0],"module_rotate":[90,0]}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&axis).unwrap(), text);
            assert_eq!(serde_json::from_str::<Axis>(text).unwrap(), axis);
        }
    }
}
