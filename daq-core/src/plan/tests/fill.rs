//! The values of missing packets.

use super::*;
use crate::layout::Scalar;
use crate::ring::Fill;

/// A source of numbers of one type.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Typed {
    samples: Samples,
}

impl SourceSpec for Typed {
    fn facts(&self) -> SourceFacts {
        SourceFacts {
            supports_backpressure: true,
            ..SourceFacts::default()
        }
    }

    fn frames(&self, slot_bytes: usize) -> Result<FrameFacts, Problem> {
        let layout = self.samples.layout(slot_bytes);
        let layout = layout.map_err(|_| Problem::section("odd bytes"))?;
        Ok(FrameFacts::new(Geometry::new(1, slot_bytes), layout))
    }

    fn build(&self, _: &SourceContext) -> Result<Producers, SourceError> {
        Err(SourceError::new("typed", "is never built"))
    }
}

const TYPED: SourceEntry = SourceEntry::of::<Typed>("typed", "", "");

fn plan_of_type(scalar: &str, fill: &str) -> Result<Plan, String> {
    let text = format!(
        "[source.a]\ndriver = \"typed\"\nring = \"raw\"\nsamples = {{ type = \"{scalar}\" }}\n\
         [ring.raw]\nslot = \"960 B\"\nfill = {fill}\n\
         [sink.disk]\ndriver = \"void\"\ninput = \"raw\"\n"
    );
    plan_with(&text, &registry().with(&TYPED), &host())
}

#[test]
fn fill_with_nan_needs_floats() {
    for scalar in Scalar::ALL {
        let plan = plan_of_type(scalar.name(), "\"nan\"");
        if scalar.is_float() {
            assert_eq!(plan.unwrap().rings[0].fill, Fill::nan(), "{scalar}");
        } else {
            let error = plan.map(|_| ()).unwrap_err();
            let numbers = format!("numbers of type {scalar}, of which none is NaN");
            assert_contains!(error => "`fill` is \"nan\"", &numbers, "fill = \"nan\"", "write \"zero\" or a byte");
        }
        // Bytes of ones are allowed for every type.
        for fill in ["\"zero\"", "255"] {
            assert!(plan_of_type(scalar.name(), fill).is_ok(), "{scalar} {fill}");
        }
    }
}

#[test]
fn output_ring_of_integers_cannot_be_filled_with_nan() {
    let text = PIPELINE.replace("[ring.raw]", "[ring.raw]\nfill = \"nan\"");
    let error = plan_of(&text, &host()).map(|_| ()).unwrap_err();
    assert_contains!(error => "ring `raw` has numbers of type int8");
    let text = PIPELINE.replace("[ring.small]", "[ring.small]\nfill = \"nan\"");
    assert!(plan_of(&text, &host()).is_ok(), "the output has floats");
}

#[test]
fn pattern_is_nan_in_every_float_format() {
    let bytes = Fill::nan().pattern().repeat(2);
    let [four, eight] = [&bytes[..4], &bytes[..]];
    assert!(f32::from_le_bytes(four.try_into().unwrap()).is_nan());
    assert!(f32::from_be_bytes(four.try_into().unwrap()).is_nan());
    assert!(f64::from_le_bytes(eight.try_into().unwrap()).is_nan());
    assert!(f64::from_be_bytes(eight.try_into().unwrap()).is_nan());
    // Exponents of ones with a fraction that is not zero: binary16 and bfloat16.
    let half = u16::from_le_bytes([four[0], four[1]]);
    assert!(half & 0x7c00 == 0x7c00 && half & 0x03ff != 0);
    assert!(half & 0x7f80 == 0x7f80 && half & 0x007f != 0);
}
