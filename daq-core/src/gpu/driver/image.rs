//! Checks that device code is complete. The check is required because the driver reads the code without knowing its
//! length.

/// Size of the file header in bytes.
const HEADER: usize = 64;
/// Size of a section header in bytes.
const SECTION: u64 = 64;
/// Size of a segment header in bytes.
const SEGMENT: u64 = 56;
/// Types of sections that have a size but no bytes in the file: `SHT_NOBITS`, and NVIDIA's types for a kernel's global,
/// local and shared variables without an initial value.
const WITHOUT_BYTES: [u32; 4] = [8, 0x7000_0007, 0x7000_0009, 0x7000_000a];

/// Checks that `image` is text or a complete cubin. The error is a clause that describes the fault.
///
/// The layout is that of "ELF-64 Object File Format": `Elf64_Ehdr`, `Elf64_Phdr` and `Elf64_Shdr`.
pub(super) fn check(image: &[u8]) -> Result<(), String> {
    if image.starts_with(b"\x7fELF") {
        return Elf(image).check();
    }
    let text = image.strip_suffix(&[0]).unwrap_or(image);
    match text.iter().position(|byte| *byte == 0) {
        Some(at) => Err(format!(
            "the file is neither a cubin nor PTX: byte {at} is NUL; create the file with nvcc --cubin or --ptx"
        )),
        None => Ok(()),
    }
}

struct Elf<'a>(&'a [u8]);

impl Elf<'_> {
    fn check(&self) -> Result<(), String> {
        if self.0.len() < HEADER {
            return Err(self.truncated("the file header", 0, HEADER as u64));
        }
        if self.0[4..6] != [2, 1] {
            return Err("the file is not a 64-bit little-endian ELF file".to_owned());
        }
        self.segments()?;
        self.sections()
    }

    fn segments(&self) -> Result<(), String> {
        let (table, count) = (self.u64(32), self.u16(56));
        if count == 0 {
            return Ok(());
        }
        Self::check_header(SEGMENT, self.u16(54), "segment")?;
        self.holds("the segment table", table, u64::from(count) * SEGMENT)
    }

    fn sections(&self) -> Result<(), String> {
        let (table, count) = (self.u64(40), self.u16(60));
        if table == 0 && count == 0 {
            return Ok(());
        }
        Self::check_header(SECTION, self.u16(58), "section")?;
        self.holds("the section table", table, SECTION)?;
        let count = match count {
            // If the number does not fit a u16, it is stored as the size of the first section.
            0 => self.u64(place(table) + 32),
            count => u64::from(count),
        };
        let bytes = count.saturating_mul(SECTION);
        self.holds("the section table", table, bytes)?;
        // The first section header is a placeholder.
        for index in 1..count {
            let header = place(table + index * SECTION);
            if !WITHOUT_BYTES.contains(&self.u32(header + 4)) {
                let (offset, bytes) = (self.u64(header + 24), self.u64(header + 32));
                self.holds(&format!("section {index}"), offset, bytes)?;
            }
        }
        Ok(())
    }

    fn check_header(bytes: u64, stated: u16, what: &str) -> Result<(), String> {
        if u64::from(stated) == bytes {
            return Ok(());
        }
        Err(format!(
            "the file is damaged: a {what} header must have {bytes} bytes, but the file states {stated}"
        ))
    }

    fn holds(&self, what: &str, offset: u64, bytes: u64) -> Result<(), String> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.0.len() as u64 => Ok(()),
            _ => Err(self.truncated(what, offset, bytes)),
        }
    }

    fn truncated(&self, what: &str, offset: u64, bytes: u64) -> String {
        format!(
            "the file is truncated or damaged: {what} needs {bytes} bytes from byte {offset} on, but the file has {} bytes; copy or compile the file again",
            self.0.len()
        )
    }

    /// Returns the bytes at offset `at`, which must be inside the header or a checked table.
    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.0[at..at + N]);
        bytes
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.bytes(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes(at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes(at))
    }
}

/// Converts a file offset that is known to be inside the image.
fn place(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Creates a file with a header, a section of `bytes` bytes, a section without bytes in the file, the table of
    /// sections and one segment at the end.
    fn elf(bytes: usize) -> Vec<u8> {
        let sections = 3_usize;
        let table = HEADER + bytes;
        let segments = table + sections * 64;
        let mut image = vec![0; segments + 56];
        let mut put = |at: usize, value: &[u8]| image[at..at + value.len()].copy_from_slice(value);
        put(0, b"\x7fELF\x02\x01\x01");
        put(32, &(segments as u64).to_le_bytes());
        put(40, &(table as u64).to_le_bytes());
        put(54, &56_u16.to_le_bytes());
        put(56, &1_u16.to_le_bytes());
        put(58, &64_u16.to_le_bytes());
        put(60, &u16::try_from(sections).unwrap().to_le_bytes());
        for (index, kind, offset, size) in [
            (1, 1_u32, HEADER as u64, bytes as u64),
            (2, 8, u64::MAX, 1 << 40),
        ] {
            let header = table + index * 64;
            put(header + 4, &kind.to_le_bytes());
            put(header + 24, &offset.to_le_bytes());
            put(header + 32, &size.to_le_bytes());
        }
        image
    }

    fn refused(image: &[u8]) -> String {
        check(image).expect_err("refused")
    }

    #[test]
    fn image_complete_is_accepted() {
        assert_eq!(check(&elf(100)), Ok(()));
        assert_eq!(check(b".version 8.0\n"), Ok(()));
        assert_eq!(check(b".version 8.0\n\0"), Ok(()));
    }

    #[test]
    fn image_of_unknown_format_is_rejected() {
        assert!(refused(b"\x50\xed\x55\xba\x01\x00\x10\x00").contains("byte 5 is NUL"));
        let mut image = elf(100);
        image[4] = 1;
        assert!(refused(&image).contains("64-bit"));
    }

    #[test]
    fn image_with_section_beyond_end_is_rejected() {
        let header = HEADER + 100 + 64;
        for (at, value) in [(24, u64::MAX), (24, 1 << 32), (32, u64::MAX), (32, 1 << 20)] {
            let mut image = elf(100);
            image[header + at..][..8].copy_from_slice(&value.to_le_bytes());
            assert!(refused(&image).contains("section 1"), "{at} {value}");
        }
    }

    #[test]
    fn image_with_table_beyond_end_is_rejected() {
        for (at, part) in [(32, "the segment table"), (40, "the section table")] {
            for value in [1 << 20, u64::MAX, u64::MAX - 8] {
                let mut image = elf(100);
                image[at..][..8].copy_from_slice(&value.to_le_bytes());
                assert!(refused(&image).contains(part), "{at} {value}");
            }
        }
        for (at, part) in [(54, "segment"), (58, "section")] {
            let mut image = elf(100);
            image[at] = 32;
            assert!(refused(&image).contains(&format!("a {part} header")));
        }
    }

    #[test]
    fn image_with_extended_section_count_is_accepted() {
        let counted = |count: u64| {
            let mut image = elf(100);
            image[60..62].copy_from_slice(&[0, 0]);
            image[HEADER + 100 + 32..][..8].copy_from_slice(&count.to_le_bytes());
            image
        };
        assert_eq!(check(&counted(3)), Ok(()));
        for count in [5, 1 << 40, u64::MAX] {
            assert!(refused(&counted(count)).contains("the section table"));
        }
    }

    #[test]
    fn compiled_image_is_accepted_unless_truncated() {
        use crate::gpu::driver::{Compiler, Source, Target};
        let compiler = match Compiler::find() {
            Ok(compiler) => compiler,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let source = Source {
            name: "some.cu",
            text: "__device__ int total[1000]; __device__ int first = 7; __constant__ float factor[9];\n\
                   extern \"C\" __global__ void some(int *to) {\n\
                   __shared__ int part[256]; part[threadIdx.x] = to[threadIdx.x]; __syncthreads();\n\
                   total[threadIdx.x] += part[255 - threadIdx.x] * factor[to[0] % 9] + first; }\n",
            headers: &[],
        };
        for capability in [(8, 0), (9, 0)] {
            let (major, minor) = capability;
            let image = compiler
                .compile(&source, Target::Cubin(major, minor), &[])
                .unwrap();
            assert_eq!(check(&image), Ok(()), "{capability:?}");
            for left in 4..image.len() {
                assert!(check(&image[..left]).is_err(), "{capability:?}: {left}");
            }
        }
    }

    proptest! {
        #[test]
        fn image_truncated_is_rejected(bytes in 0_usize..300, cut in 1_usize..600) {
            let image = elf(bytes);
            // A file shorter than four bytes is not recognised as ELF.
            let left = image.len().saturating_sub(cut).max(4);
            prop_assert!(check(&image[..left]).is_err());
        }

        #[test]
        fn image_with_random_damage_is_rejected_or_harmless(at in 0_usize..480, byte: u8) {
            let mut image = elf(100);
            let at = at % image.len();
            image[at] = byte;
            // A read outside the image would panic.
            let _ = check(&image);
        }
    }
}
