//! The value of a kernel's `device` key.

use crate::kernel::Side;
use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;

/// The value of a kernel's `device` key: the processor that runs the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceKey(pub Side);

impl DeviceKey {
    /// Returns the CUDA ordinal of the GPU; `None` for the CPU.
    pub const fn gpu(self) -> Option<u32> {
        match self.0 {
            Side::Cpu => None,
            Side::Cuda(ordinal) => Some(ordinal),
        }
    }
}

impl<'de> Deserialize<'de> for DeviceKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let gpu = |text: &str| text.strip_prefix("cuda:")?.parse().ok();
        match text.as_str() {
            "cpu" => Ok(Self(Side::Cpu)),
            other => gpu(other)
                .map(|ordinal| Self(Side::Cuda(ordinal)))
                .ok_or_else(|| {
                    D::Error::custom(format!(
                        "unknown device \"{text}\"; write \"cpu\" or a GPU such as \"cuda:0\""
                    ))
                }),
        }
    }
}

impl JsonSchema for DeviceKey {
    fn schema_name() -> Cow<'static, str> {
        "KernelDevice".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": "^(cpu|cuda:[0-9]+)$" })
    }
}
