//! Configurations of a card with what reads it, and what its bytes must be.

use daq_drivers::cards::litepcie;
use daq_drivers::cards::pattern::{Pattern, verify};
use daq_tests::{Daq, files};

/// Bytes of a slot, and of a packet where a test says nothing else.
pub const SLOT: usize = 4096;

/// A source of a card: keys of the source, keys of its table `card`, the rest of the configuration.
pub fn config(source: &str, card: &str, rest: &str) -> String {
    let card = if card.is_empty() {
        String::new()
    } else {
        format!("[source.adc.card]\n{card}\n")
    };
    format!(
        "[source.adc]\ndriver = \"fpga\"\nring = \"raw\"\nsamples = {{ type = \"int16\" }}\n{source}\n{card}{rest}\n\
         [http]\nlisten = \"127.0.0.1:0\"\n"
    )
}

/// The ring in host memory and a file of it.
pub fn host(slots: usize) -> String {
    format!(
        "[ring.raw]\nmemory = \"host\"\nslot = {SLOT}\nslots = {slots}\n\
         [sink.disk]\ndriver = \"file\"\ninput = \"raw\"\npath = \"raw\"\n"
    )
}

/// A simulated XDMA in the daemon's process.
pub const XDMA: &str = "device = \"inproc:xdma\"";
/// LitePCIe's likewise.
pub const LITEPCIE: &str = "device = \"inproc:litepcie\"\ncsr = \"csr.csv\"";

/// A stream of `packets` packets of a slot each.
pub fn packets(packets: u64) -> String {
    format!("packet = {SLOT}\npackets = {packets}\n")
}

/// A directory with that configuration and the `csr.csv` of LitePCIe's card.
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

/// Panics unless `data` is the stream from its first byte on.
pub fn assert_stream(data: &[u8]) {
    assert_eq!(verify(Pattern::Counter, SLOT as u64, 0, data), None);
}

/// The number of each frame in `data`, all of whose bytes are those of that frame of the stream; panics where they are
/// not, or the numbers do not rise.
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
