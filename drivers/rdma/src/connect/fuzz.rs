//! Fuzz test of the frames of the TCP exchange. Arbitrary bytes must not cause a panic or an unbounded length. A frame
//! that can be decoded must be equal after it was encoded and decoded again.
//!
//! `DAQ_FUZZ_SECONDS` is the run time of each target in seconds (default 1).

use super::exchange::{Frame, HEADER_BYTES, MAX_BODY, frame_length};
use std::time::Duration;

fn time() -> Duration {
    let seconds = std::env::var("DAQ_FUZZ_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(1))
}

fn take(bytes: &[u8]) {
    let mut have = 0;
    // Reads as a receiver does: only up to the frame length that is known so far, until the frame is complete.
    while let Ok(whole) = frame_length(&bytes[..have]) {
        assert!((HEADER_BYTES..=HEADER_BYTES + MAX_BODY).contains(&whole));
        if have == whole {
            break;
        }
        if whole > bytes.len() {
            return;
        }
        assert!(whole > have, "the frame length decreased");
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
                // A valid header, so that the body is decoded too.
                let mut bytes = Frame::Ready.encode();
                bytes[6] = kind % 7;
                bytes[8..12].copy_from_slice(&u32::try_from(body.len()).unwrap().to_le_bytes());
                bytes.extend(body);
                take(&bytes);
            }
        });
}
