//! Creates configurations with a device and its readers, and the expected bytes.

use daq_emulators::litepcie;
use daq_emulators::pattern::{Pattern, verify};
use daq_testkit::{Daq, files};

/// Bytes per slot. By default, packets have the same size.
pub const SLOT: usize = 4096;

/// Returns a source with a device: the keys `source`, the keys `card` of its table `emulated`, and the rest of the
/// configuration.
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

/// Returns a ring in host memory and a file sink.
pub fn host(slots: usize) -> String {
    format!(
        "[ring.raw]\nmemory = \"host\"\nslot = {SLOT}\nslots = {slots}\n\
         [sink.disk]\ndriver = \"file\"\ninput = \"raw\"\npath = \"raw\"\n"
    )
}

/// Keys of an XDMA device that is emulated in the daemon's process.
pub const XDMA: &str = "device = \"emulated:xdma\"";
/// Keys of a LitePCIe device that is emulated in the daemon's process.
pub const LITEPCIE: &str = "device = \"emulated:litepcie\"\ncsr = \"csr.csv\"";

/// Returns the keys of a stream of `packets` packets with the size of one slot.
pub fn packets(packets: u64) -> String {
    format!("packet = {SLOT}\npackets = {packets}\n")
}

/// Creates a directory with the configuration `text` and the `csr.csv` of the LitePCIe device.
pub fn daq(text: &str) -> Daq {
    let daq = Daq::new(text);
    daq.write("csr.csv", litepcie::CSR);
    daq
}

/// Returns all data in the files of a directory.
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

/// Returns the number of each frame in `data`. Panics if a frame contains bytes of another frame, or if the numbers do
/// not increase.
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
