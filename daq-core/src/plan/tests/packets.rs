//! Tests of output rings of kernels that keep the packets of their input.

use super::*;
use crate::frame::PacketSizes;

/// A kernel whose output has the packets of the input, unless `joins` is set.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Widen {
    #[serde(default)]
    joins: bool,
}

impl KernelSpec for Widen {
    fn layout(&self, input: &Layout) -> Result<Layout, Problem> {
        Ok(Layout {
            scalar: crate::layout::Scalar::Float32,
            ..input.clone()
        })
    }

    fn input_facts(&self, _: &Layout) -> InputFacts {
        InputFacts {
            keeps_packets: !self.joins,
            ..InputFacts::default()
        }
    }

    fn build(&self, _: &KernelContext) -> Result<Box<dyn Kernel>, KernelError> {
        Err(KernelError::Defect("is never built".to_owned()))
    }
}

const WIDEN: KernelEntry = KernelEntry::of::<Widen>("widen", "", "");

#[test]
fn output_of_kernel_has_packets_of_its_input() {
    for (keys, keeps) in [("", true), ("\njoins = true", false)] {
        let kernel = format!("use = \"widen\"{keys}");
        let text = PIPELINE.replace("use = \"quarter\"", &kernel);
        let plan = plan_with(&text, &registry().with(&WIDEN), &host()).unwrap();
        let ring = |name: &str| plan.ring(name).unwrap();
        let (input, output) = (ring("raw"), ring("small"));
        assert!(input.packets_per_frame > 0 && input.packet_sizes.rest > 0);
        let factor = 32 / u32::try_from(input.layout.scalar.bits()).unwrap();
        let expected = if keeps {
            let sizes = PacketSizes {
                first: input.packet_sizes.first * factor,
                rest: input.packet_sizes.rest * factor,
                ..input.packet_sizes
            };
            (input.packets_per_frame, sizes)
        } else {
            (0, PacketSizes::default())
        };
        let found = (output.packets_per_frame, output.packet_sizes);
        assert_eq!(found, expected, "{keys}");
    }
}
