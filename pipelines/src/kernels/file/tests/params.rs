//! Tests the encoding of parameter values as bytes.

use super::super::params::{Kind, Member, refused};
use super::Value;
use proptest::prelude::*;

fn member(kind: Kind, bytes: usize, count: Option<usize>) -> Member {
    Member {
        offset: 8,
        bytes,
        count,
        kind,
    }
}

/// Returns a member's description with the layout that daq.cuh defines.
fn described(offset: u64, words: [u32; 4]) -> Vec<u8> {
    let mut bytes = offset.to_le_bytes().to_vec();
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    bytes
}

#[test]
fn parameter_descriptions_are_parsed() {
    assert_eq!(
        Member::read(&described(8, [4, 0, 3, 0])),
        Some(member(Kind::Float, 4, None))
    );
    assert_eq!(
        Member::read(&described(8, [2, 7, 1, 0])),
        Some(member(Kind::Signed, 2, Some(7)))
    );
    assert_eq!(
        Member::read(&described(8, [8, 1, 2, 0])),
        Some(member(Kind::Unsigned, 8, Some(1)))
    );
    for wrong in [
        [4, 0, 0, 0],
        [4, 0, 5, 0],
        [3, 0, 1, 0],
        [2, 0, 3, 0],
        [4, 0, 4, 0],
    ] {
        assert_eq!(Member::read(&described(8, wrong)), None, "{wrong:?}");
    }
    assert_eq!(Member::read(&[0; 23]), None);
}

fn set(member: &Member, value: &Value) -> Result<Vec<u8>, String> {
    let mut image = vec![0xaa; 32];
    member.set(&mut image, value)?;
    let end = member.offset + member.bytes * member.count.unwrap_or(1);
    // Bytes outside the member are unchanged.
    for (i, byte) in image.iter().enumerate() {
        assert!(i >= member.offset && i < end || *byte == 0xaa, "byte {i}");
    }
    Ok(image[member.offset..end].to_vec())
}

#[test]
fn parameter_values_are_written_at_compiler_offsets() {
    let float = member(Kind::Float, 4, None);
    assert_eq!(
        set(&float, &Value::Float(1.5)).unwrap(),
        1.5_f32.to_le_bytes()
    );
    assert_eq!(
        set(&float, &Value::Integer(-3)).unwrap(),
        (-3_f32).to_le_bytes()
    );
    let double = member(Kind::Float, 8, None);
    assert_eq!(
        set(&double, &Value::Float(1e300)).unwrap(),
        1e300_f64.to_le_bytes()
    );
    let bool = member(Kind::Boolean, 1, None);
    assert_eq!(set(&bool, &Value::Boolean(true)).unwrap(), [1]);
    let taps = member(Kind::Signed, 2, Some(3));
    let three = Value::Array(vec![
        Value::Integer(1),
        Value::Integer(-2),
        Value::Integer(300),
    ]);
    assert_eq!(set(&taps, &three).unwrap(), [1, 0, 0xfe, 0xff, 0x2c, 1]);
    let wide = member(Kind::Unsigned, 8, None);
    assert_eq!(
        set(&wide, &Value::Integer(u64::MAX.into())).unwrap(),
        [0xff; 8]
    );
}

#[test]
fn value_out_of_range_is_reported_with_range() {
    let int = member(Kind::Signed, 4, None);
    let floats = member(Kind::Float, 4, Some(4));
    let two = Value::Array(vec![Value::Integer(1), Value::Integer(2)]);
    for (member, value, says) in [
        (int, Value::Float(2.0), "write 2"),
        (int, Value::Float(2.5), "write an integer"),
        (int, Value::Boolean(true), "write a number"),
        (int, two.clone(), "write one value"),
        (int, Value::Integer(1 << 31), "-2147483648 to 2147483647"),
        (floats, two, "write 4"),
        (
            floats,
            Value::Float(0.5),
            "an array of 4 values, for example [0.5, …]",
        ),
        (
            member(Kind::Boolean, 1, None),
            Value::Integer(1),
            "true or false",
        ),
        (member(Kind::Float, 4, None), Value::Float(1e39), "a double"),
        (
            Member {
                offset: usize::MAX - 1,
                ..int
            },
            Value::Integer(1),
            "recompile",
        ),
        (Member { offset: 30, ..int }, Value::Integer(1), "recompile"),
    ] {
        let why = set(&member, &value).unwrap_err();
        assert!(why.contains(says), "{member} = {value}: {why}");
    }
    let value = Value::Integer(300);
    let byte = member(Kind::Unsigned, 1, Some(2));
    let array = Value::Array(vec![Value::Integer(3), value.clone()]);
    let why = set(&byte, &array).unwrap_err();
    assert!(
        why.contains("value 300 at index 1") && why.contains("0 to 255"),
        "{why}"
    );
    let message = refused("my.cu", "level", &value, &byte, "the value is out of range");
    assert_eq!(
        message,
        "`params.level` = 300: member `level` of `struct Params` in my.cu is unsigned char[2]; the value is out of range"
    );
}

proptest! {
    /// Checks that an integer is accepted if and only if the member's type can represent the value, and that the same
    /// value is read back.
    #[test]
    fn integers_within_type_range_are_accepted(
        value in prop_oneof![
            any::<i128>(),
            any::<i64>().prop_map(i128::from),
            // Values at the ends of the ranges of the integer types.
            (0..66_u32, -1..2_i128, prop_oneof![Just(1), Just(-1)])
                .prop_map(|(bits, beside, sign)| sign * (1_i128 << bits) + beside),
        ],
        bytes in prop_oneof![Just(1_usize), Just(2), Just(4), Just(8)],
        signed in any::<bool>(),
    ) {
        let kind = if signed { Kind::Signed } else { Kind::Unsigned };
        let holds = match (signed, bytes) {
            (true, 1) => i8::try_from(value).is_ok(),
            (true, 2) => i16::try_from(value).is_ok(),
            (true, 4) => i32::try_from(value).is_ok(),
            (true, _) => i64::try_from(value).is_ok(),
            (false, 1) => u8::try_from(value).is_ok(),
            (false, 2) => u16::try_from(value).is_ok(),
            (false, 4) => u32::try_from(value).is_ok(),
            (false, _) => u64::try_from(value).is_ok(),
        };
        let got = set(&member(kind, bytes, None), &Value::Integer(value));
        prop_assert_eq!(got.is_ok(), holds);
        if let Ok(got) = got {
            prop_assert_eq!(&got[..], &value.to_le_bytes()[..bytes]);
        }
    }

    /// Checks that a float is rounded to the nearest value and never becomes infinite.
    #[test]
    fn floats_are_rounded_to_nearest(value in any::<f64>()) {
        let got = set(&member(Kind::Float, 4, None), &Value::Float(value));
        match got {
            Ok(got) => {
                let got = f32::from_le_bytes(got.try_into().unwrap());
                prop_assert_eq!(got.is_infinite(), value.is_infinite());
                prop_assert!(value.is_nan() && got.is_nan() || f64::from(got) == value
                    || (f64::from(got) - value).abs() <= value.abs() * f64::from(f32::EPSILON) + f64::from(f32::MIN_POSITIVE));
            }
            Err(_) => prop_assert!(value.is_finite() && value.abs() > f64::from(f32::MAX)),
        }
    }
}
