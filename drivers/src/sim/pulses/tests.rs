//! Compares pulses with their closed form, and checks their statistics.

use super::*;

const RATE: f64 = 1e6;

fn samples(channels: u32) -> Samples {
    Samples {
        channels,
        rate: Some(Frequency(RATE)),
        ..Samples::default()
    }
}

fn micros(us: u64) -> Period {
    Period(us * 1_000_000)
}

fn pulses() -> Pulses {
    Pulses {
        rate: Frequency(10_000.0),
        amplitude: 0.25,
        rise: micros(1),
        decay: micros(8),
        channels: None,
        shared: 0.5,
    }
}

#[test]
fn table_is_the_sum_of_all_periods() {
    let hits = [
        (0, 10.25, 0.5),
        (0, 12.0, 0.25),
        (1, 40.0, 1.0),
        (0, 99.5, 2.0),
    ]
    .map(|(channel, at, height)| Hit {
        channel,
        at,
        height,
    });
    for (rise, decay) in [(1, 8), (0, 8), (3, 400)] {
        let pulses = Pulses {
            rise: micros(rise),
            decay: micros(decay),
            ..pulses()
        };
        let (rise, decay) = (rise as f64, decay as f64);
        for channel in [0, 1] {
            let mut table = vec![0.125; 100];
            pulses.add(&mut table, &hits, channel, RATE);
            for (point, value) in table.iter().enumerate() {
                let mut expected = 0.125;
                // Number of periods after which pulses have decayed to zero.
                for round in 0..200 {
                    for hit in hits.iter().filter(|hit| hit.channel == channel) {
                        let t = point as f64 + 100.0 * f64::from(round) - hit.at;
                        if t >= 0.0 {
                            let rising = if rise > 0.0 { (-t / rise).exp() } else { 0.0 };
                            expected +=
                                hit.height * ((-t / decay).exp() - rising) / peak(rise, decay);
                        }
                    }
                }
                assert!(
                    (value - expected).abs() < 1e-9,
                    "{rise} {decay}: {value} instead of {expected} at {point}"
                );
            }
        }
    }
}

#[test]
fn pulse_height_matches_its_event() {
    let one = [Hit {
        channel: 0,
        at: 100.0,
        height: 0.75,
    }];
    let mut table = vec![0.0; 10_000];
    let slow = Pulses {
        rise: micros(50),
        decay: micros(400),
        ..pulses()
    };
    slow.add(&mut table, &one, 0, RATE);
    let highest = table.iter().copied().fold(0.0, f64::max);
    assert!((highest - 0.75).abs() < 1e-4, "{highest}");
    assert!(table[100] < 1e-9 && table[101] > 0.0);
}

#[test]
fn random_events_repeat_with_seed() {
    let (pulses, samples) = (pulses(), samples(8));
    let period = 1_000_000;
    let hits = pulses.hits(&samples, period, 7, 0);
    assert_eq!(hits, pulses.hits(&samples, period, 7, 0));
    assert_ne!(hits, pulses.hits(&samples, period, 8, 0));
    assert_ne!(hits, pulses.hits(&samples, period, 7, 1));
    let mut events: Vec<f64> = hits.iter().map(|hit| hit.at).collect();
    events.dedup();
    assert_eq!(events.len(), pulses.events(period, RATE));
    assert_eq!(events.len(), 10_000);
    // In a Poisson process, the time between events is distributed as exp(-t).
    events.sort_by(f64::total_cmp);
    let long = events
        .windows(2)
        .filter(|pair| pair[1] - pair[0] > 200.0)
        .count() as f64
        / events.len() as f64;
    assert!((long - (-2.0_f64).exp()).abs() < 0.015, "{long}");
    // Each neighbour sees an event with probability 0.5, and so on from there. Channels at the edges have neighbours on
    // one side only.
    let seen = hits.len() as f64 / events.len() as f64;
    let ends: f64 = (0..8)
        .map(|channel| {
            let side = |more: i32| 1.0 - 0.5_f64.powi(more);
            (1.0 + side(channel) + side(7 - channel)) / 8.0
        })
        .sum();
    assert!((seen - ends).abs() < 0.05, "{seen}, not {ends}");
    for channel in 0..8 {
        assert!(hits.iter().any(|hit| hit.channel == channel));
    }
    let mean = hits
        .chunk_by(|a, b| a.at.to_bits() == b.at.to_bits())
        .map(|event| event[0].height)
        .sum::<f64>()
        / events.len() as f64;
    assert!((mean - 0.25).abs() < 0.01, "{mean}");
}

#[test]
fn events_affect_named_channels_only() {
    let pulses = Pulses {
        channels: Some(vec![1, 5, 2]),
        shared: 1.0,
        ..pulses()
    };
    let hits = pulses.hits(&samples(8), 100_000, 0, 0);
    for event in hits.chunk_by(|a, b| a.at.to_bits() == b.at.to_bits()) {
        let mut channels: Vec<usize> = event.iter().map(|hit| hit.channel).collect();
        channels.sort_unstable();
        assert_eq!(channels, [1, 2, 5]);
        let first = event[0].height;
        assert!(
            event
                .iter()
                .all(|hit| (0.5 * first..=first).contains(&hit.height))
        );
    }
    let alone = Pulses {
        shared: 0.0,
        ..pulses
    };
    let hits = alone.hits(&samples(8), 100_000, 0, 0);
    assert_eq!(hits.len(), alone.events(100_000, RATE));
}

#[test]
fn invalid_parameters_are_reported() {
    let wrong = Pulses {
        rate: Frequency(2e6),
        amplitude: f64::NAN,
        rise: micros(8),
        decay: micros(8),
        channels: Some(vec![0, 9]),
        shared: 1.5,
    };
    let keys = |pulses: &Pulses, samples: &Samples| -> Vec<_> {
        let problems = pulses.problems("pulses.0", samples).into_iter();
        problems.filter_map(|problem| problem.key).collect()
    };
    let all = ["rate", "amplitude", "rise", "shared", "channels"];
    assert_eq!(
        keys(&wrong, &samples(8)),
        all.map(|key| format!("pulses.0.{key}"))
    );
    let nowhere = Pulses {
        channels: Some(Vec::new()),
        ..pulses()
    };
    assert_eq!(keys(&nowhere, &samples(8)), ["pulses.0.channels"]);
    let timeless = Samples {
        rate: None,
        ..samples(8)
    };
    assert_eq!(keys(&pulses(), &timeless), ["pulses.0.rate"]);
    assert_eq!(keys(&pulses(), &samples(8)), Vec::<String>::new());
}

#[test]
fn times_of_a_few_picoseconds_are_accepted() {
    let text = "rate = \"1 MHz\"\namplitude = 0.5\nrise = \"1 ps\"\ndecay = \"250 ps\"\n";
    let pulses: Pulses = toml::from_str(text).unwrap();
    let fast = Samples {
        rate: Some(Frequency(10e9)),
        ..samples(1)
    };
    assert!(pulses.problems("pulses", &fast).is_empty());
    // The sum of a pulse's points is its area, which is 2.5 points times its height.
    let mut table = vec![0.0; 1000];
    let hit = Hit {
        channel: 0,
        at: 0.0,
        height: 1.0,
    };
    let step = Pulses {
        rise: Period(0),
        ..pulses
    };
    step.add(&mut table, &[hit], 0, 10e9);
    let ratio = table[1] / table[0];
    assert!((ratio - (-1.0_f64 / 2.5).exp()).abs() < 1e-9, "{ratio}");
}
