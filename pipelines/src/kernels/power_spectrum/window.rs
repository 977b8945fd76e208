//! Window functions.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{self, Deserializer, MapAccess, Visitor};
use std::f64::consts::{PI, TAU};
use std::fmt;

/// Window by which a block is multiplied before its transform.
///
/// The values equal those of `scipy.signal.get_window`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Window {
    /// Shape.
    pub shape: WindowShape,
    /// Whether the window equals itself in reverse. By default windows are periodic, as required for spectra: the window of
    /// N points is one period of a symmetric window of N + 1 points.
    pub symmetric: bool,
}

/// Shape of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum WindowShape {
    /// 0.5 − 0.5 cos t.
    #[default]
    Hann,
    /// 0.54 − 0.46 cos t.
    Hamming,
    /// 0.42 − 0.5 cos t + 0.08 cos 2t.
    Blackman,
    /// 0.35875 − 0.48829 cos t + 0.14128 cos 2t − 0.01168 cos 3t.
    BlackmanHarris,
    /// 0.3635819 − 0.4891775 cos t + 0.1365995 cos 2t − 0.0106411 cos 3t.
    Nuttall,
    /// Five cosine terms; the amplitude of a tone is exact between two bins.
    Flattop,
    /// 1.
    Rectangular,
    /// Kaiser window with the parameter `beta`.
    Kaiser(f64),
    /// Gaussian with a standard deviation in points.
    Gaussian(f64),
    /// Rectangle whose edges are half a Hann window; `alpha` is the fraction of the window that the edges take.
    Tukey(f64),
}

/// Names of the shapes, and the name of the parameter that a shape needs.
const SHAPES: [(&str, Option<&str>); 10] = [
    ("hann", None),
    ("hamming", None),
    ("blackman", None),
    ("blackman-harris", None),
    ("nuttall", None),
    ("flattop", None),
    ("rectangular", None),
    ("kaiser", Some("beta")),
    ("gaussian", Some("std")),
    ("tukey", Some("alpha")),
];

/// Maximum `beta` of a Kaiser window. Larger values overflow float64.
const MAX_BETA: f64 = 600.0;

/// Minimum `std` of a Gaussian window in points. With smaller values, all points of a window with an even number of
/// points may be 0.
const MIN_STD: f64 = 0.1;

impl From<WindowShape> for Window {
    fn from(shape: WindowShape) -> Self {
        Self {
            shape,
            symmetric: false,
        }
    }
}

impl Window {
    /// Returns `w[n]` of a window of `size` points.
    ///
    /// ```
    /// use daq_pipelines::kernels::power_spectrum::{Window, WindowShape};
    /// let hann = Window::default();
    /// assert_eq!((hann.at(0, 8), hann.at(4, 8)), (0.0, 1.0));
    /// let kaiser = Window { shape: WindowShape::Kaiser(14.0), symmetric: true };
    /// assert_eq!(kaiser.at(0, 8), kaiser.at(7, 8));
    /// ```
    pub fn at(self, n: usize, size: usize) -> f64 {
        // Number of steps from the first to the last point of the symmetric window.
        let steps = if self.symmetric { size - 1 } else { size };
        if steps == 0 {
            return 1.0;
        }
        // Position from 0 to 1, and from -1 to 1.
        let x = n as f64 / steps as f64;
        let from_centre = 2.0 * x - 1.0;
        let cosines = |terms: &[f64]| -> f64 {
            let angles = (0_u32..).map(|k| (f64::from(k) * TAU * x).cos());
            terms.iter().zip(angles).map(|(a, cos)| a * cos).sum()
        };
        match self.shape {
            WindowShape::Hann => cosines(&[0.5, -0.5]),
            WindowShape::Hamming => cosines(&[0.54, -0.46]),
            WindowShape::Blackman => cosines(&[0.42, -0.5, 0.08]),
            WindowShape::BlackmanHarris => cosines(&[0.35875, -0.48829, 0.14128, -0.01168]),
            WindowShape::Nuttall => {
                cosines(&[0.363_581_9, -0.489_177_5, 0.136_599_5, -0.010_641_1])
            }
            WindowShape::Flattop => cosines(&[
                0.215_578_95,
                -0.416_631_58,
                0.277_263_158,
                -0.083_578_947,
                0.006_947_368,
            ]),
            WindowShape::Rectangular => 1.0,
            WindowShape::Kaiser(beta) => {
                let inside = (1.0 - from_centre * from_centre).max(0.0).sqrt();
                bessel(beta * inside) / bessel(beta)
            }
            WindowShape::Gaussian(std) => {
                let distance = from_centre * steps as f64 / 2.0 / std;
                (-0.5 * distance * distance).exp()
            }
            WindowShape::Tukey(alpha) => {
                // Distance from the nearer edge, relative to the width of an edge.
                let inside = 2.0 * x.min(1.0 - x) / alpha;
                if inside < 1.0 {
                    0.5 - 0.5 * (PI * inside).cos()
                } else {
                    1.0
                }
            }
        }
    }

    /// Returns the sum of `each(w[n])` over a window of `size` points.
    pub(super) fn sum(self, size: usize, each: impl Fn(f64) -> f64) -> f64 {
        (0..size).map(|n| each(self.at(n, size))).sum()
    }
}

/// Returns the modified Bessel function of the first kind and order 0.
fn bessel(x: f64) -> f64 {
    let quarter = x * x / 4.0;
    let (mut sum, mut term, mut k) = (1.0, 1.0, 1.0);
    loop {
        term *= quarter / (k * k);
        if term <= sum * f64::EPSILON / 4.0 {
            return sum;
        }
        sum += term;
        k += 1.0;
    }
}

/// The keys of a window that is declared as a table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    kind: String,
    beta: Option<f64>,
    std: Option<f64>,
    alpha: Option<f64>,
    #[serde(default)]
    symmetric: bool,
}

impl Keys {
    fn window<E: de::Error>(&self) -> Result<Window, E> {
        let names = SHAPES.map(|(name, _)| format!("\"{name}\"")).join(", ");
        let (_, wanted) = SHAPES
            .iter()
            .find(|(name, _)| *name == self.kind)
            .ok_or_else(|| {
                E::custom(format!(
                    "unknown window \"{}\"; known are {names}",
                    self.kind
                ))
            })?;
        let given = [
            ("beta", self.beta),
            ("std", self.std),
            ("alpha", self.alpha),
        ];
        for (key, value) in given {
            if value.is_some() && *wanted != Some(key) {
                return Err(E::custom(format!(
                    "the window \"{}\" has no `{key}`",
                    self.kind
                )));
            }
        }
        let shape = match (
            self.kind.as_str(),
            given.into_iter().find_map(|(_, value)| value),
        ) {
            ("hamming", _) => WindowShape::Hamming,
            ("blackman", _) => WindowShape::Blackman,
            ("blackman-harris", _) => WindowShape::BlackmanHarris,
            ("nuttall", _) => WindowShape::Nuttall,
            ("flattop", _) => WindowShape::Flattop,
            ("rectangular", _) | ("tukey", Some(0.0)) => WindowShape::Rectangular,
            ("kaiser", Some(beta)) if (0.0..=MAX_BETA).contains(&beta) => WindowShape::Kaiser(beta),
            ("gaussian", Some(std)) if std >= MIN_STD && std.is_finite() => {
                WindowShape::Gaussian(std)
            }
            ("tukey", Some(alpha)) if alpha > 0.0 && alpha <= 1.0 => WindowShape::Tukey(alpha),
            ("kaiser", given) => return Err(self.wrong("beta", given, "a number from 0 to 600")),
            ("gaussian", given) => {
                return Err(self.wrong("std", given, "a number of points, at least 0.1"));
            }
            ("tukey", given) => return Err(self.wrong("alpha", given, "a number from 0 to 1")),
            _ => WindowShape::Hann,
        };
        Ok(Window {
            shape,
            symmetric: self.symmetric,
        })
    }

    fn wrong<E: de::Error>(&self, key: &str, given: Option<f64>, range: &str) -> E {
        let kind = &self.kind;
        E::custom(match given {
            Some(value) => {
                format!("`{key}` of the window \"{kind}\" cannot be {value}; write {range}")
            }
            None => format!(
                "the window \"{kind}\" needs `{key}`, {range}; write {{ kind = \"{kind}\", {key} = … }}"
            ),
        })
    }
}

impl<'de> Deserialize<'de> for Window {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Window;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a window, or a table with `kind` and parameters")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Window, E> {
                let kind = String::deserialize(StrDeserializer::new(name))?;
                Keys {
                    kind,
                    beta: None,
                    std: None,
                    alpha: None,
                    symmetric: false,
                }
                .window()
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Window, A::Error> {
                Keys::deserialize(MapAccessDeserializer::new(map))?.window()
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl JsonSchema for Window {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Window".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let names = SHAPES.map(|(name, _)| name);
        let plain: Vec<&str> = SHAPES
            .into_iter()
            .filter_map(|(name, parameter)| parameter.is_none().then_some(name))
            .collect();
        json_schema!({ "anyOf": [
            { "enum": plain },
            {
                "type": "object",
                "required": ["kind"],
                "additionalProperties": false,
                "properties": {
                    "kind": { "enum": names, "description": "Name of the window." },
                    "beta": { "type": "number", "description": "Parameter of `kaiser`, 0 to 600: larger values give lower side lobes and a wider main lobe." },
                    "std": { "type": "number", "description": "Parameter of `gaussian`: standard deviation in points." },
                    "alpha": { "type": "number", "description": "Parameter of `tukey`, 0 to 1: fraction of the window that the edges take." },
                    "symmetric": { "type": "boolean", "default": false, "description": "Symmetric instead of periodic, as `fftbins=False` in scipy." }
                }
            }
        ] })
    }
}
