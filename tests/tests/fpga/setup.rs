//! Configurations with a device and its readers, and the expected bytes.

use daq_emulators::litepcie;
use daq_emulators::pattern::{Pattern, verify};
use daq_tests::{Daq, files};

/// Bytes per slot, and per packet by default.
pub const SLOT: usize = 4096;

/// A source with a device: keys of the source, keys of its table `emulated`, the rest of the configuration.
pub fn config(source: &str, card: &str, rest: &str) -> String {
    let card = if card.is_empty() {
        String::new()
    } else {
        format!("[source.adc.emulated]\n{card}\n")
    };
    format!(
        "[source.adc]\ndriver = \"fpga\"\nring = \"raw\"\nsamples = {{ type = \"int16\" }}\n{source}\n{card}{rest}\n\
         [http]\nlisten = \"127.0.0.1:0\"\n"
    )
}

/// A ring in host memory and a file sink.
pub fn host(slots: usize) -> String {
    format!(
        "[ring.raw]\nmemory = \"host\"\nslot = {SLOT}\nslots = {slots}\n\
         [sink.disk]\ndriver = \"file\"\ninput = \"raw\"\npath = \"raw\"\n"
    )
}

/// An emulated XDMA in the daemon's process.
pub const XDMA: &str = "device = \"emulated:xdma\"";
/// The same for LitePCIe.
pub const LITEPCIE: &str = "device = \"emulated:litepcie\"\ncsr = \"csr.csv\"";

/// A stream of `packets` packets of one slot each.
pub fn packets(packets: u64) -> String {
    format!("packet = {SLOT}\npackets = {packets}\n")
}

/// A directory with that configuration and the `csr.csv` of the LitePCIe device.
pub fn daq(text: &str) -> Daq {
    let daq = Daq::new(text);
    daq.write("csr.csv", litepcie::CSR);
    daq
}

/// All data in the files of a directory.
pub fn data(daq: &Daq, directory: &str) -> Vec<u8> {
    files(&daq.path(directory), ".sigmf-data")
        .iter()
        .flat_map(|path| std::fs::read(path).unwrap())
        .collect()
}

/// Panics unless `data` equals the stream from its first byte on.
pub fn assert_stream(data: &[u8]) {
    assert_eq!(verify(Pattern::Counter, SLOT as u64, 0, data), None);
}

/// Returns the number of each frame in `data`. Panics if a frame has bytes of another frame, or if the numbers do not
/// rise.
pub fn numbers(pattern: Pattern, data: &[u8]) -> Vec<u64> {
    assert_eq!(data.len() % SLOT, 0, "whole frames");
    let (words, slot) = (SLOT as u64 / 8, SLOT as u64);
    let mut numbers: Vec<u64> = Vec::new();
    for frame in data.chunks(SLOT) {
        let first = u64::from_le_bytes(frame[..8].try_into().unwrap());
        let number = match pattern {
            Pattern::Counter => first / words,
            Pattern::Sequence => first,
        };
        assert_eq!(
            verify(pattern, slot, number * slot, frame),
            None,
            "the frame {number}"
        );
        assert!(
            numbers.last().is_none_or(|last| *last < number),
            "{number} after {numbers:?}"
        );
        numbers.push(number);
    }
    numbers
}
