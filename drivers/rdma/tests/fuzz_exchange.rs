//! Whatever the other end of a TCP exchange says: no panic, no length without a bound, and what is taken is said again in
//! the same words.
//!
//! `DAQ_FUZZ_SECONDS` says for how long each target runs (1 by default).

#![allow(clippy::unwrap_used, reason = "panicking is how tests report")]

use daq_rdma::connect::exchange::{Frame, HEADER_BYTES, MAX_BODY, frame_length};
use std::time::Duration;

fn time() -> Duration {
    let seconds = std::env::var("DAQ_FUZZ_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(1))
}

fn take(bytes: &[u8]) {
    let mut have = 0;
    // As a reader does it: no more than is frame_length, until no more is.
    while let Ok(whole) = frame_length(&bytes[..have]) {
        assert!((HEADER_BYTES..=HEADER_BYTES + MAX_BODY).contains(&whole));
        if have == whole {
            break;
        }
        if whole > bytes.len() {
            return;
        }
        assert!(whole > have, "it wants less than before");
        have = whole;
    }
    if let Ok(frame) = Frame::decode(&bytes[..have]) {
        let again = frame.encode();
        assert_eq!(Frame::decode(&again).unwrap(), frame);
        assert_eq!(frame_length(&again).unwrap(), again.len());
    }
}

#[test]
fn fuzz_frames() {
    bolero::check!()
        .with_type::<(bool, u8, Vec<u8>)>()
        .with_test_time(time())
        .for_each(|(is_raw, kind, body)| {
            take(body);
            if !is_raw {
                // A head as it should be, so that bodies are reached.
                let mut bytes = Frame::Ready.encode();
                bytes[6] = kind % 7;
                bytes[8..12].copy_from_slice(&u32::try_from(body.len()).unwrap().to_le_bytes());
                bytes.extend(body);
                take(&bytes);
            }
        });
}
