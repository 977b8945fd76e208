//! Compares random sequences of requests with a model of the memory.

use super::*;
use proptest::prelude::*;

/// Size of the memory that requests may write, in bytes.
const AREA_BYTES: usize = 96 << 10;
/// Maximum sizes in bytes of the two parts of a receive: the record, and then the message. The memory of the receives
/// follows the memory that requests may write.
const RECORD: usize = 64;
const MESSAGE: usize = 12 << 10;
const MAX_LENGTH: usize = 12;

#[derive(Clone, Debug)]
enum Step {
    Write {
        at: usize,
        bytes: usize,
        immediate: Option<u32>,
    },
    WriteInline {
        at: usize,
        bytes: usize,
        immediate: Option<u32>,
    },
    Send {
        at: usize,
        bytes: usize,
        immediate: Option<u32>,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let write =
        (0..AREA_BYTES, 0..AREA_BYTES, any::<Option<u32>>()).prop_map(|(at, bytes, immediate)| {
            let bytes = bytes.min(AREA_BYTES - at);
            Step::Write {
                at,
                bytes,
                immediate,
            }
        });
    let inline = (0..AREA_BYTES - 64, 0..=64_usize, any::<Option<u32>>()).prop_map(
        |(at, bytes, immediate)| Step::WriteInline {
            at,
            bytes,
            immediate,
        },
    );
    let send = (
        0..AREA_BYTES - MESSAGE,
        0..=MESSAGE + RECORD,
        any::<Option<u32>>(),
    )
        .prop_map(|(at, bytes, immediate)| Step::Send {
            at,
            bytes,
            immediate,
        });
    prop_oneof![write, inline, send]
}

/// Returns the contents of the sender's memory. Adjacent bytes differ.
fn pattern(seed: u8) -> Vec<u8> {
    let bytes = (0..=u8::MAX).cycle().map(|i| i.wrapping_mul(7));
    let lines = (0..=u8::MAX).cycle().flat_map(|line| [line; 251]);
    let mixed = bytes
        .zip(lines)
        .map(|(byte, line)| byte.wrapping_add(line) ^ seed);
    mixed.take(AREA_BYTES).collect()
}

fn run(service: Service, steps: &[Step], lost: &[u64], seed: u8) {
    let bytes = AREA_BYTES + MAX_LENGTH * (RECORD + MESSAGE);
    let text: Vec<_> = lost.iter().map(|n| format!("lose@{n}")).collect();
    let faults: Faults = text.join(",").parse().unwrap();
    let mut two = two(service, &faults, &Faults::none(), bytes);
    let ours = pattern(seed);
    crate::emulated::sys::store(two.near.region(), 0, &ours).unwrap();
    let slice = |i: usize| AREA_BYTES + i * (RECORD + MESSAGE);
    for i in 0..=steps.len() {
        let sges = [
            two.far.sge(slice(i), RECORD),
            two.far.sge(slice(i) + RECORD, MESSAGE),
        ];
        two.to.post_receive(i as u64, &sges).unwrap();
    }
    let mut model = vec![0; bytes];
    let mut arrivals = Vec::new();
    for (id, step) in steps.iter().enumerate() {
        let is_lost = service != Service::Rc && lost.contains(&(id as u64 + 1));
        let address = |at: usize| two.far.address() + at as u64;
        let key = two.far.rkey();
        let (at, bytes, immediate, verb) = match *step {
            Step::Write {
                at,
                bytes,
                immediate,
            }
            | Step::WriteInline {
                at,
                bytes,
                immediate,
            } => {
                let verb = Verb::write(address(at), key, immediate);
                (at, bytes, immediate, verb)
            }
            Step::Send {
                at,
                bytes,
                immediate,
            } => (at, bytes, immediate, Verb::Send { immediate }),
        };
        let halves = [
            two.near.sge(at, bytes / 2),
            two.near.sge(at + bytes / 2, bytes - bytes / 2),
        ];
        let payload = match step {
            Step::WriteInline { .. } => Payload::Inline(&ours[at..at + bytes]),
            _ => Payload::Memory(&halves),
        };
        let work = WorkRequest {
            id: id as u64,
            verb,
            payload,
            signaled: true,
        };
        two.from.post_send(&work).unwrap();
        if is_lost {
            continue;
        }
        let is_send = matches!(step, Step::Send { .. });
        let to = if is_send { slice(arrivals.len()) } else { at };
        model[to..to + bytes].copy_from_slice(&ours[at..at + bytes]);
        if is_send || immediate.is_some() {
            arrivals.push((bytes, immediate));
        }
    }
    let last = WorkRequest {
        id: steps.len() as u64,
        verb: Verb::Send {
            immediate: Some(77),
        },
        payload: Payload::Inline(&[]),
        signaled: true,
    };
    two.from.post_send(&last).unwrap();
    arrivals.push((0, Some(77)));
    for (i, (bytes, immediate)) in arrivals.into_iter().enumerate() {
        let done = next(&mut *two.to);
        assert_eq!((done.id, done.side), (i as u64, Side::Received));
        assert_eq!((done.status, done.immediate), (Status::Success, immediate));
        assert_eq!(done.bytes as usize, bytes);
    }
    assert!(load(two.far.region(), 0, bytes) == model, "memory differs");
    for id in 0..=steps.len() {
        let done = next(&mut *two.from);
        assert_eq!((done.id, done.status), (id as u64, Status::Success));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn memory_equals_reference_model(
        steps in proptest::collection::vec(step(), 0..MAX_LENGTH - 1),
        lost in proptest::collection::vec(1..MAX_LENGTH as u64 - 1, 0..4),
        is_reliable: bool,
        seed: u8,
    ) {
        let lost: Vec<_> = lost.into_iter().filter(|n| *n <= steps.len() as u64).collect();
        let service = if is_reliable { Service::Rc } else { Service::Uc };
        run(service, &steps, &lost, seed);
    }
}
