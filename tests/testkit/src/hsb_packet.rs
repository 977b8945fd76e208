//! Builds packets of an emulated sensor.

/// An RDMA write packet.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Number of the queue pair.
    pub queue_pair: u32,
    /// Packet sequence number.
    pub psn: u32,
    /// Address to write to.
    pub address: u64,
    /// Key of the memory region.
    pub rkey: u32,
    /// Immediate value, if the opcode has one.
    pub immediate: Option<u32>,
    /// The payload.
    pub payload: Vec<u8>,
}

impl Default for Packet {
    fn default() -> Self {
        Self {
            queue_pair: 5,
            psn: 0,
            address: 0,
            rkey: 9,
            immediate: None,
            payload: vec![7; 256],
        }
    }
}

impl Packet {
    /// Returns the bytes from the transport header to the checksum.
    pub fn bytes(&self) -> Vec<u8> {
        let opcode = 0x2a + u8::from(self.immediate.is_some());
        let mut bytes = vec![opcode, 0, 0xff, 0xff];
        bytes.extend(self.queue_pair.to_be_bytes());
        bytes.extend(self.psn.to_be_bytes());
        bytes.extend(self.address.to_be_bytes());
        bytes.extend(self.rkey.to_be_bytes());
        bytes.extend(u32::try_from(self.payload.len()).unwrap().to_be_bytes());
        if let Some(immediate) = self.immediate {
            bytes.extend(immediate.to_be_bytes());
        }
        bytes.extend(&self.payload);
        bytes.extend([0xc7; 4]);
        bytes
    }
}

/// Returns the metadata of the sensor's frame `frame`, which began at `seconds` and `nanoseconds`.
pub fn metadata(frame: u16, seconds: u64, nanoseconds: u32, written: u64) -> [u8; 128] {
    let mut bytes = [0; 128];
    bytes[12..20].copy_from_slice(&seconds.to_be_bytes());
    bytes[20..24].copy_from_slice(&nanoseconds.to_be_bytes());
    bytes[24..32].copy_from_slice(&written.to_be_bytes());
    bytes[34..36].copy_from_slice(&frame.to_be_bytes());
    bytes
}
