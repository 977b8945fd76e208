//! Generates the header `generated/parameters.cuh`.

use super::STRUCTURES;
use std::fmt::Write;

/// The structures that are the parameters of kernels.
const KERNELS: [&str; 9] = [
    "Conversion",
    "Selection",
    "Statistics",
    "Joining",
    "Spectra",
    "Polyphase",
    "Correlation",
    "Reordering",
    "Beams",
];
const TOP: &str = "// Parameters of the built-in kernels. A test generates this file from pipelines/src/kernels/parameters.rs, which\n\
                   // describes the fields. Do not edit it.\n\nstruct Complex;\n";

/// Description of a structure.
pub(super) struct Structure {
    pub(super) about: &'static [&'static str],
    pub(super) name: &'static str,
    pub(super) bytes: usize,
    pub(super) fields: &'static [Field],
}

/// Description of a field.
pub(super) struct Field {
    /// The type in Rust and, for an address, the type in device code.
    pub(super) types: &'static [&'static str],
    pub(super) name: &'static str,
    pub(super) offset: usize,
}

impl Field {
    /// Returns the type in device code.
    fn kind(&self) -> &'static str {
        match self.types {
            [.., "f64"] => "double",
            [.., kind] => kind,
            [] => "void",
        }
    }
}

impl Structure {
    /// Returns the parameters that stand for the structure, and the expression that makes the structure from them.
    fn flat(&self, prefix: &str) -> (Vec<String>, String) {
        let (mut parameters, mut values) = (Vec::new(), Vec::new());
        for field in self.fields {
            let name = format!("{prefix}_{}", field.name);
            if let Some(inner) = STRUCTURES.iter().find(|inner| inner.name == field.kind()) {
                let (more, value) = inner.flat(&name);
                parameters.extend(more);
                values.push(value);
            } else {
                parameters.push(format!("{} {name}", field.kind()));
                values.push(name);
            }
        }
        (parameters, format!("{{{}}}", values.join(", ")))
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        let name = self.name;
        writeln!(text)?;
        for line in self.about {
            writeln!(text, "//{line}")?;
        }
        writeln!(text, "struct {name} {{")?;
        // Pointers of one type cannot share a declaration.
        let is_one = |a: &Field, b: &Field| a.kind() == b.kind() && !a.kind().ends_with('*');
        for fields in self.fields.chunk_by(is_one) {
            let names = fields.iter().map(|field| field.name.to_owned());
            writeln!(text, "    {} {};", fields[0].kind(), joined(names, ",", ""))?;
        }
        let size = format!("sizeof({name}) == {}", self.bytes);
        let offsets = self.fields.iter().map(|field| {
            let (field, offset) = (field.name, field.offset);
            format!("OFFSET_OF({name}, {field}) == {offset}")
        });
        let checks = joined(std::iter::once(size).chain(offsets), " &&", "");
        writeln!(text, "}};\nstatic_assert({checks});")?;
        if KERNELS.contains(&name) {
            let (parameters, value) = self.flat("given");
            let name = name.to_uppercase();
            let parameters = joined(parameters, ",", " \\");
            writeln!(text, "#define {name}_PARAMETERS \\\n    {parameters}")?;
            writeln!(text, "#define {name}_GIVEN {value}")?;
        }
        Ok(())
    }
}

/// Joins parts by `separator`, in lines of at most 120 characters that end with `end`.
fn joined(parts: impl IntoIterator<Item = String>, separator: &str, end: &str) -> String {
    let (mut text, mut column) = (String::new(), 4);
    for part in parts {
        if text.is_empty() {
        } else if column + part.len() > 110 {
            text = format!("{text}{separator}{end}\n    ");
            column = 4;
        } else {
            text = format!("{text}{separator} ");
        }
        column += part.len() + separator.len() + 1;
        text += &part;
    }
    text
}

/// Returns the text of the header.
pub(in super::super) fn header() -> String {
    let mut text = TOP.to_owned();
    for structure in STRUCTURES {
        structure.write(&mut text).unwrap();
    }
    text
}

#[test]
fn arguments_are_fields_in_order() {
    use super::{Conversion, RingSlots, Spectra, Statistics};
    use daq_core::gpu::driver::Argument::{F64, U32, U64};
    let ring = |base| RingSlots {
        base,
        stride: base + 1,
        slots: 2,
        first: 3,
    };
    let conversion = Conversion {
        from: ring(10),
        to: ring(20),
        factor: 0.5,
        offset: 1.5,
        points: 30,
        channels: 31,
        parts: 32,
        scalar: 33,
        tile_points: 34,
        wide: 35,
        planar: 36,
        sign: 37,
    };
    assert_eq!(
        conversion.arguments(),
        [
            U64(10),
            U64(11),
            U32(2),
            U32(3),
            U64(20),
            U64(21),
            U32(2),
            U32(3),
            F64(0.5),
            F64(1.5),
            U64(30),
            U32(31),
            U32(32),
            U32(33),
            U32(34),
            U32(35),
            U32(36),
            U32(37),
        ]
    );
    let given = |name: &str| {
        let structure = STRUCTURES
            .iter()
            .find(|structure| structure.name == name)
            .unwrap();
        structure.flat("given").0.len()
    };
    assert_eq!(given("Statistics"), Statistics::default().arguments().len());
    assert_eq!(given("Spectra"), Spectra::default().arguments().len());
}
