use super::*;

fn good(packets: usize) -> Seen {
    Seen {
        messages: 2,
        fullest: packets,
        matched: 2 * packets as u64,
        ..Seen::default()
    }
}

#[test]
fn even_messages_are_received_in_batches() {
    let mut tune = Tune::default();
    for _ in 0..10 {
        tune.saw(good(44));
    }
    assert_eq!(tune.guess(), (MAX_BATCH_PACKETS / 44, 44));
    for _ in 0..SMALLER {
        tune.saw(good(1));
    }
    assert_eq!(tune.guess(), (64, 1));
}

#[test]
fn uneven_messages_are_received_singly() {
    let mut tune = Tune::default();
    tune.saw(good(8));
    tune.saw(Seen {
        uneven: true,
        ..good(8)
    });
    assert_eq!(tune.guess(), (1, 8));
    tune.saw(good(8));
    assert_eq!(tune.guess(), (1, 8));
    tune.saw(good(8));
    assert_eq!(tune.guess(), (2, 8));
}

#[test]
fn prediction_backs_off_after_misses() {
    let mut tune = Tune::default();
    let bad = Seen {
        messages: 1,
        fullest: 1,
        moved: 1,
        ..Seen::default()
    };
    for rest in [32, 64, 128] {
        for _ in 0..BAD {
            assert!(tune.guesses());
            tune.saw(bad);
        }
        for _ in 0..rest {
            assert!(!tune.guesses());
        }
    }
    assert!(tune.guesses());
    tune.saw(good(1));
    assert_eq!(tune.next_rest, 32);
}
