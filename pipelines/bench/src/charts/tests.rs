//! Tests of whole drawings.

use super::*;

pub(super) fn lines() -> Chart {
    let line = |name: &str, is_own, figures: [f64; 3]| Line {
        name: name.to_owned(),
        is_own,
        points: [8192.0, 65_536.0, 1_048_576.0]
            .into_iter()
            .zip(figures.map(single))
            .collect(),
    };
    Chart {
        title: "Copies <to> the GPU".to_owned(),
        unit: "GB/s".to_owned(),
        better: Better::Higher,
        form: Form::Lines {
            label: "frame size".to_owned(),
            axis: Axis::Bytes,
            lines: vec![
                line("daq", true, [54.6, 54.4, 54.5]),
                line("copy & wait", false, [1.09, f64::NAN, 39.6]),
            ],
            ceilings: vec![Ceiling {
                name: "one large copy".to_owned(),
                figure: 55.27,
            }],
        },
    }
}

#[test]
fn drawing_names_all_lines_and_escapes_markup() {
    let text = lines().file();
    for name in [
        "daq",
        "copy &amp; wait",
        "one large copy",
        "Copies &lt;to&gt; the GPU",
    ] {
        assert!(text.contains(name), "{name}");
    }
    assert!(text.contains("daq: 54.6 at 8 KiB, 54.4 at 64 KiB, 54.5 at 1 MiB."));
    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    assert!(text.contains("prefers-color-scheme:dark") && text.contains("max-width"));
}

#[test]
fn part_of_page_has_own_id_and_no_style() {
    let part = lines().part("chart-7");
    assert!(part.contains("id=\"chart-7-title\"") && !part.contains("<style>"));
}

#[test]
fn distribution_without_tail_is_drawn() {
    let mut figure = single(2.5);
    figure[1] = 9.0;
    let row = |name: &str, figure| Row {
        name: name.to_owned(),
        is_own: true,
        figure,
    };
    let chart = |figures: &[Quantiles]| Chart {
        title: "Latency".to_owned(),
        unit: "µs".to_owned(),
        better: Better::Lower,
        form: Form::Rows(vec![Group {
            heading: String::new(),
            rows: figures.iter().map(|figure| row("a", *figure)).collect(),
        }]),
    };
    let text = chart(&[figure, single(f64::NAN)]).file();
    assert!(
        text.contains("class=\"p99 c0\"") && !text.contains("ring c0"),
        "{text}"
    );
    assert!(!text.contains("NaN"));
    let bars = chart(&[single(2.0), single(1.0)]).file();
    assert!(!bars.contains("median") && bars.contains("class=\"fill c0\""));
    assert!(chart(&[single(f64::NAN)]).is_empty() && !chart(&[single(1.0)]).is_empty());
}
