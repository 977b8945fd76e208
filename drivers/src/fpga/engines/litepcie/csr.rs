//! Reads the register addresses of a LitePCIe design from `csr.csv`, which LiteX writes when it builds a design.
//!
//! ```text
//!   csr_register,pcie_dma0_writer_enable,0xf0002000,1,rw
//!   constant,pcie_dma0_writer_interrupt,0,,
//!   memory_region,csr,0xf0000000,65536,io
//! ```
//! The addresses belong to the design's own bus. On PCI Express the region `csr` starts at offset 0 of BAR 0.

use std::collections::HashMap;

/// The offsets in BAR 0 of one channel's writer and of the interrupt registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Map {
    /// Offset of the writer's registers.
    pub writer: u64,
    /// The interrupt registers, or `None` if their offsets are unknown.
    pub msi: Option<Msi>,
    /// Width in bits of the addresses to which the writer can write.
    pub address_bits: u32,
}

/// The interrupt registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Msi {
    /// Offset of the register that enables interrupts.
    pub enable: u64,
    /// Offset of the register that acknowledges interrupts; `None` for cores with one vector per interrupt.
    pub clear: Option<u64>,
    /// Index of the writer's bit in the interrupt registers.
    pub bit: u32,
}

/// Default width of DMA addresses in bits.
pub(super) const ADDRESS_BITS: u32 = 32;

/// Parses a number in Python's format.
fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

impl Map {
    /// Returns the register offsets of `channel` from the text of a `csr.csv`. The error describes the missing entry.
    pub(super) fn read(text: &str, channel: usize) -> Result<Self, String> {
        let mut registers = HashMap::new();
        let mut constants = HashMap::new();
        let mut start = 0;
        for line in text.lines() {
            let fields: Vec<&str> = line.split(',').map(str::trim).collect();
            match fields[..] {
                ["csr_register", name, address, words, ..] => {
                    if let (Some(address), Some(words)) = (number(address), number(words)) {
                        registers.insert(name, (address, words));
                    }
                }
                ["constant", name, value, ..] => {
                    constants.insert(name, number(value));
                }
                ["memory_region", "csr", address, ..] => start = number(address).unwrap_or(0),
                _ => {}
            }
        }
        let at = |name: &str| {
            let (address, words) = *registers.get(name)?;
            Some((address.checked_sub(start).unwrap_or(address), words))
        };
        let writer = format!("pcie_dma{channel}_writer");
        let Some((enable, _)) = at(&format!("{writer}_enable")) else {
            let mut known: Vec<&str> = registers
                .keys()
                .filter(|name| name.ends_with("_writer_enable"))
                .copied()
                .collect();
            known.sort_unstable();
            return Err(if known.is_empty() {
                "the file lists no DMA writer (`pcie_dma0_writer_enable`): use the csr.csv of a design with \
                 `LitePCIeDMA`"
                    .to_owned()
            } else {
                format!(
                    "the file has no register `{writer}_enable`, only {}: correct `channel`",
                    known.join(", ")
                )
            });
        };
        // If the CSR bus is narrower, each value uses more registers, and the offsets differ.
        let value = at(&format!("{writer}_table_value"));
        if value.is_some_and(|value| value != (enable + 4, 2)) {
            return Err(format!(
                "`{writer}_table_value` must be two registers directly after `{writer}_enable`: build the design with \
                 `csr_data_width=32`"
            ));
        }
        let bit = match constants.get(&*format!("{writer}_interrupt")) {
            Some(Some(bit)) => u32::try_from(*bit).ok(),
            // Each channel has two interrupts, and the writer's is the first.
            _ => u32::try_from(2 * channel).ok(),
        };
        let msi = at("pcie_msi_enable").zip(bit.filter(|bit| *bit < 32));
        let width = constants.get("dma_addr_width").copied().flatten();
        Ok(Self {
            writer: enable,
            msi: msi.map(|((enable, _), bit)| Msi {
                enable,
                clear: at("pcie_msi_clear").map(|(clear, _)| clear),
                bit,
            }),
            address_bits: match width {
                Some(64) => 64,
                _ => ADDRESS_BITS,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
#--------------------------------------------------------------------------------
csr_base,pcie_dma0,0xf0002000,,
csr_base,pcie_msi,0xf0002800,,
csr_register,pcie_dma0_writer_enable,0xf0002000,1,rw
csr_register,pcie_dma0_writer_table_value,0xf0002004,2,rw
csr_register,pcie_dma0_writer_table_we,0xf000200c,1,rw
csr_register,pcie_dma1_writer_enable,0xf0003000,1,rw
csr_register,pcie_msi_enable,0xf0002800,1,rw
csr_register,pcie_msi_clear,0xf0002804,1,rw
csr_register,pcie_msi_vector,0xf0002808,1,ro
constant,config_clock_frequency,125000000,,
constant,pcie_dma0_writer_interrupt,1,,
memory_region,csr,0xf0000000,65536,io
";

    #[test]
    fn csr_csv_registers_are_found() {
        let msi = Msi {
            enable: 0x2800,
            clear: Some(0x2804),
            bit: 1,
        };
        let map = Map {
            writer: 0x2000,
            msi: Some(msi),
            address_bits: 32,
        };
        assert_eq!(Map::read(TEXT, 0), Ok(map));
        let text = TEXT.replace("pcie_msi_clear", "another").replace(
            "constant,config",
            "constant,dma_addr_width,64,,\nconstant,config",
        );
        let map = Map::read(&text, 1).unwrap();
        let msi = Msi {
            enable: 0x2800,
            clear: None,
            bit: 2,
        };
        assert_eq!((map.writer, map.msi), (0x3000, Some(msi)));
        assert_eq!(map.address_bits, 64);
    }

    #[test]
    fn csr_csv_missing_register_is_reported() {
        let error = Map::read(TEXT, 2).unwrap_err();
        assert!(
            error.contains("pcie_dma0_writer_enable, pcie_dma1"),
            "{error}"
        );
        let error = Map::read("constant,a,1,,\nfoo", 0).unwrap_err();
        assert!(error.contains("no DMA writer"), "{error}");
        let narrow = TEXT.replace("0xf0002004,2", "0xf0002004,8");
        let error = Map::read(&narrow, 0).unwrap_err();
        assert!(error.contains("csr_data_width"), "{error}");
    }
}
