//! `convert` converts samples of any type to float32 or int16.
//!
//! Every number `x` of the input, real and imaginary parts alike, becomes
//!
//! ```python
//! y = (x * scale + offset).astype("float32")
//! ```
//!
//! The arithmetic is float64 for int32, uint32, int64 and float64, whose values float32 cannot represent exactly, and
//! float32 for all other types. Channels, points and axis do not change. Each frame gives one output with the same
//! sequence number, timestamp and flags. If the order does not change, the output has the packets of the input, so that readers
//! know which samples are missing.
//!
//! With `type = "int16"`, `y` is rounded to the nearest integer, half to even, and limited to -32768 … 32767. Numbers of the
//! type int16be become native ones without a change of their values.
//!
//! CPU and GPU produce identical bits. If the order does not change, each GPU thread reads and writes four numbers at a
//! time; four packed numbers fill whole bytes, which the thread reads as aligned words. If the order changes, tiles of
//! 1024 samples of up to 32 channels are transposed in shared memory. A burst needs one launch, plus one launch for each
//! frame that is too short.

mod cpu;
mod cuda;
pub(crate) mod packed;
#[cfg(test)]
mod tests;

use super::quantise::{check_factor, check_offset};
use super::{device, not_empty, refused, require};
use daq_core::config::Problem;
use daq_core::entry::KernelEntry;
use daq_core::frame::PacketSizes;
use daq_core::kernel::{InputFacts, Kernel, KernelContext, KernelError, KernelSpec, Side};
use daq_core::layout::{Layout, Order, Scalar};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use std::fmt;

/// Registry entry of `convert`.
pub const ENTRY: KernelEntry = KernelEntry::of::<Convert>(
    "convert",
    "Converts samples of any type to float32 or int16, with a scale and an offset",
    "\
[kernel.NAME]
use = \"convert\"
input = \"INPUT\"
output = \"OUTPUT\"
# Factor for every number; \"full\" maps the full scale of an integer type to 1.
# scale = 1.0
# Offset that is added after the multiplication.
# offset = 0.0
# Type of the output: \"float32\", or \"int16\", which is rounded and limited.
# type = \"float32\"
# Order of channels in the output, \"planar\" or \"interleaved\"; default: as in the input.
# order = \"planar\"
",
);

/// The keys of a `convert` kernel.
///
/// ```
/// use daq_core::kernel::KernelSpec;
/// use daq_core::layout::{Order, Samples, Scalar};
/// use daq_pipelines::kernels::Convert;
///
/// let input = Samples { scalar: Scalar::Int16, channels: 2, ..Samples::default() }.layout(4096).unwrap();
/// let output = Convert { order: Some(Order::Planar), ..Convert::default() }.layout(&input)?;
/// assert_eq!((output.scalar, output.channels, output.points), (Scalar::Float32, 2, 1024));
/// assert_eq!((output.order, output.frame_bytes()), (Order::Planar, 8192));
/// # Ok::<(), daq_core::config::Problem>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Convert {
    /// Factor by which every number is multiplied; default 1.0.
    ///
    /// `"full"` means 1 / 2^(bits - 1), which maps the codes of a signed integer type to -1 … 1, and those of an unsigned
    /// type together with `offset = -1.0`. Only for integer types.
    pub scale: Scale,
    /// Offset added to every number after the multiplication; default 0.0.
    pub offset: f64,
    /// Type of the output: `"float32"`, or `"int16"`, to which numbers are rounded and limited. `"int16"` converts int16be to
    /// the byte order of this host without a change of the values. Default `"float32"`.
    #[serde(rename = "type")]
    pub scalar: ConvertedType,
    /// Order of channels and points in the output, `"interleaved"` or `"planar"`; default: the order of the input.
    pub order: Option<Order>,
}

/// Type of the numbers of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ConvertedType {
    /// Float32.
    #[default]
    Float32,
    /// Int16, rounded to the nearest integer and limited to its range.
    Int16,
}

impl ConvertedType {
    const fn scalar(self) -> Scalar {
        match self {
            Self::Float32 => Scalar::Float32,
            Self::Int16 => Scalar::Int16,
        }
    }
}

/// A factor, or the word `full`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// A fixed factor.
    Factor(f64),
    /// 1 / 2^(bits - 1) of an integer type.
    Full,
}

impl Default for Scale {
    fn default() -> Self {
        Self::Factor(1.0)
    }
}

impl<'de> Deserialize<'de> for Scale {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Scale;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or \"full\"")
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Scale, E> {
                Ok(Scale::Factor(value))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Scale, E> {
                Ok(Scale::Factor(value as f64))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Scale, E> {
                Ok(Scale::Factor(value as f64))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Scale, E> {
                // Values from environment variables and `--set` are strings.
                match (value, value.parse()) {
                    ("full", _) => Ok(Scale::Full),
                    (_, Ok(factor)) => Ok(Scale::Factor(factor)),
                    _ => Err(E::invalid_value(de::Unexpected::Str(value), &self)),
                }
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl JsonSchema for Scale {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Scale".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "anyOf": [{ "type": "number" }, { "const": "full" }] })
    }
}

impl Convert {
    /// Checks everything that does not depend on the input.
    fn check(&self) -> Result<(), Problem> {
        if let Scale::Factor(factor) = self.scale {
            check_factor(factor, "samples", ", or \"full\"")?;
        }
        require(
            (self.scale, self.scalar) != (Scale::Full, ConvertedType::Int16),
            "scale",
            "`scale` cannot be \"full\" for int16, because all numbers would become -1, 0 or 1",
            "write a number, or set type = \"float32\"",
        )?;
        check_offset(self.offset)
    }
}

impl Convert {
    /// Returns the factor for numbers of type `scalar`.
    fn factor(&self, scalar: Scalar) -> Result<f64, Problem> {
        match (self.scale, scalar) {
            (Scale::Factor(factor), _) => Ok(factor),
            (Scale::Full, _) if !scalar.is_float() => Ok(2.0 / (scalar.bits() as f64).exp2()),
            (Scale::Full, _) => Err(Problem::at(
                "scale",
                format!("\"full\" requires an integer type; {scalar} has no full scale"),
            )
            .help("write a number")),
        }
    }
}

/// Returns the sizes of the packets in the output; `None` if the order of the numbers changes, or if packets do not end at whole
/// bytes of the output.
fn converted_packets(input: &Layout, output: &Layout, sizes: PacketSizes) -> Option<PacketSizes> {
    let sizes = sizes.scaled(input.scalar.bits(), output.scalar.bits());
    sizes.filter(|_| !is_reordered(input, output.order))
}

/// Returns whether numbers in the order `output` have other positions than in `input`.
fn is_reordered(input: &Layout, output: Order) -> bool {
    input.order != output && input.channels > 1
}

impl KernelSpec for Convert {
    fn problems(&self) -> Vec<Problem> {
        self.check().err().into_iter().collect()
    }

    fn layout(&self, input: &Layout) -> Result<Layout, Problem> {
        not_empty(input)?;
        self.factor(input.scalar)?;
        Ok(Layout {
            scalar: self.scalar.scalar(),
            order: self.order.unwrap_or(input.order),
            ..input.clone()
        })
    }

    fn input_facts(&self, input: &Layout) -> InputFacts {
        let order = self.order.unwrap_or(input.order);
        InputFacts {
            runs_on_gpu: device::can_count(input),
            keeps_packets: !is_reordered(input, order),
            memory: cpu::memory(input, order),
            ..InputFacts::default()
        }
    }

    fn build(&self, context: &KernelContext) -> Result<Box<dyn Kernel>, KernelError> {
        let input = &context.input;
        let factor = self.factor(input.scalar).map_err(refused)?;
        let output = self.layout(input).map_err(refused)?;
        match context.side {
            Side::Cpu => Ok(cpu::build(input, &output, factor, self.offset)),
            Side::Cuda(ordinal) => cuda::build(ordinal, input, &output, factor, self.offset),
        }
    }
}
