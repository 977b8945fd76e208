//! Compares kernel output in the sinks' files with numpy.

use daq_testkit::{Daq, Python, python};
use serde_json::{Value, json};

/// Reads all segments of a recording.
const READ: &str = r#"
import glob, json, os, sys
import numpy as np
os.chdir(sys.argv[2])
def frames(stem):
    data = b"".join(open(path, "rb").read() for path in sorted(glob.glob(f"out/{stem}-*.sigmf-data")))
    return data
def numbers(stem, kind):
    kinds = {"int8": "i1", "uint8": "u1", "int16": "<i2", "int32": "<i4", "float32": "<f4", "float64": "<f8"}
    return np.frombuffer(frames(stem), kinds[kind])
p = json.loads(sys.argv[1])
x = numbers("samples", p["type"])
parts = 2 if p["complex"] else 1
# frames, points, channels, parts
x = x.reshape(p["frames"], -1, p["channels"], parts)
"#;

/// Computes the documented formulas of `power-spectrum`, and compares every bin of every output.
const SPECTRA: &str = r#"
N = p["size"]
t = 2 * np.pi * np.arange(N) / N
windows = {
    "hann": 0.5 - 0.5 * np.cos(t),
    "hamming": 0.54 - 0.46 * np.cos(t),
    "blackman-harris": 0.35875 - 0.48829 * np.cos(t) + 0.14128 * np.cos(2 * t) - 0.01168 * np.cos(3 * t),
    "rectangular": np.ones(N),
}
for kernel in p["kernels"]:
    w = windows[kernel["window"]]
    hop = N - round(N * kernel["overlap"])
    bins = N if p["complex"] else N // 2 + 1
    found = numbers(kernel["name"], "float32").reshape(-1, p["channels"], bins)
    spectra = []
    for frame in x.astype(np.float64):
        one = []
        for channel in range(p["channels"]):
            s = frame[:, channel, :]
            s = s[:, 0] + 1j * s[:, 1] if p["complex"] else s[:, 0]
            blocks = np.stack([s[i:i + N] for i in range(0, len(s) - N + 1, hop)]) * w
            f = np.fft.fftshift(np.fft.fft(blocks), axes=1) if p["complex"] else np.fft.rfft(blocks)
            one.append(abs(f) ** 2)
        spectra.append(np.stack(one, axis=1))
    # spectrum after spectrum, over the ends of frames
    spectra = np.concatenate(spectra)
    k = kernel["integrate"] or len(spectra) // p["frames"]
    outputs = len(spectra) // k
    wanted = spectra[:outputs * k].reshape(outputs, k, p["channels"], bins).mean(axis=1)
    scale = {"power": 1 / w.sum() ** 2, "none": 1.0, "density": 1 / (p["rate"] * (w ** 2).sum())}
    wanted = wanted * scale[kernel["scaling"]]
    assert found.shape == wanted.shape, (kernel, found.shape, wanted.shape)
    assert (wanted > 0).all() and found.shape[0] >= 2
    worst = (abs(found - wanted) / wanted).max()
    print(kernel["name"], outputs, worst)
    assert worst < 1e-5, (kernel, worst)
"#;

fn kernel(name: &str, window: &str, overlap: f64, integrate: Option<u64>, scaling: &str) -> Value {
    json!({ "name": name, "window": window, "overlap": overlap, "integrate": integrate, "scaling": scaling })
}

/// Returns a source of noise and tones. Another sink writes its samples to a file in `samples`.
fn source(samples: &Value, packet: u64, frames: u64, slot: u64) -> String {
    let (kind, complex, channels) = (&samples["type"], &samples["complex"], &samples["channels"]);
    format!(
        "[source.adc]\ndriver = \"sim\"\nring = \"raw\"\nnoise = 0.1\nseed = 42\npace = \"free\"\n\
         samples = {{ type = {kind}, complex = {complex}, channels = {channels}, rate = \"1 MHz\" }}\n\
         tones = [{{ frequency = \"130 kHz\", amplitude = 0.1 }}, {{ frequency = \"222 kHz\", amplitude = 0.05 }}]\n\
         packet = {packet}\nframes = {frames}\n\
         [ring.raw]\nslot = {slot}\nslots = 16\n\
         [sink.samples]\ndriver = \"file\"\ninput = \"raw\"\npath = \"out\"\nbuffer = \"64 KiB\"\nsegment = \"1 MiB\"\n"
    )
}

fn spectra(python: &Python, samples: &Value, size: u64, kernels: &[Value]) {
    let frames = 6;
    let mut text = source(samples, 3072, frames, 96 << 10);
    for kernel in kernels {
        let name = kernel["name"].as_str().unwrap();
        let integrate = kernel["integrate"]
            .as_u64()
            .map_or_else(String::new, |n| format!("integrate = {n}\n"));
        text += &format!(
            "[kernel.{name}-kernel]\nuse = \"power-spectrum\"\ninput = \"raw\"\noutput = \"{name}\"\nsize = {size}\n\
             window = {}\noverlap = {}\nscaling = {}\n{integrate}\
             [ring.{name}]\n\
             [sink.{name}]\ndriver = \"file\"\ninput = \"{name}\"\npath = \"out\"\nbuffer = \"64 KiB\"\n",
            kernel["window"], kernel["overlap"], kernel["scaling"]
        );
    }
    let daq = Daq::new(&text);
    let outcome = daq.run(&[]).ok();
    assert_eq!(outcome.count("sinks.samples.frames"), frames);
    let mut keys = samples.clone();
    keys["frames"] = json!(frames);
    keys["size"] = json!(size);
    keys["rate"] = json!(1e6);
    keys["kernels"] = json!(kernels);
    let printed = python.run(
        &format!("{READ}{SPECTRA}"),
        &[keys.to_string(), daq.path("").display().to_string()],
    );
    assert_eq!(printed.lines().count(), kernels.len(), "{printed}");
}

#[test]
fn power_spectrum_equals_numpy() {
    let python = python!("numpy");
    let windows = [
        kernel("hann", "hann", 0.0, None, "power"),
        kernel("hamming", "hamming", 0.0, None, "density"),
        kernel("harris", "blackman-harris", 0.5, None, "none"),
        kernel("rectangular", "rectangular", 0.25, Some(13), "power"),
    ];
    let shapes = [
        (
            json!({ "type": "int16", "complex": true, "channels": 1 }),
            1024,
        ),
        (
            json!({ "type": "float32", "complex": false, "channels": 2 }),
            1000,
        ),
        (
            json!({ "type": "int8", "complex": false, "channels": 1 }),
            4096,
        ),
        (
            json!({ "type": "float32", "complex": true, "channels": 3 }),
            256,
        ),
    ];
    for (samples, size) in shapes {
        spectra(&python, &samples, size, &windows);
    }
}

/// Computes the output of scipy's `welch` for each frame.
const WELCH: &str = r#"
import scipy.signal
N = p["size"]
for kernel in p["kernels"]:
    w = scipy.signal.get_window(kernel["window"], N)
    bins = N if p["complex"] else N // 2 + 1
    found = numbers(kernel["name"], "float32").reshape(-1, p["channels"], bins)
    assert len(found) == p["frames"], found.shape
    scaling = kernel["scaling"]
    worst = 0
    for frame, made in zip(x.astype(np.float64), found):
        for channel in range(p["channels"]):
            s = frame[:, channel, :]
            s = s[:, 0] + 1j * s[:, 1] if p["complex"] else s[:, 0]
            f, wanted = scipy.signal.welch(
                s, p["rate"], window=w, nperseg=N, noverlap=round(N * kernel["overlap"]),
                detrend="constant" if kernel["detrend"] == "constant" else False,
                scaling="density" if "density" in scaling else "spectrum",
                return_onesided=scaling.startswith("one-sided"))
            wanted = np.fft.fftshift(wanted) if p["complex"] else wanted[:bins]
            error = abs(made[channel] - wanted) / np.maximum(wanted, wanted.mean())
            worst = max(worst, error.max())
    print(kernel["name"], worst)
    assert worst < 1e-5, (kernel, worst)
"#;

#[test]
fn power_spectrum_one_sided_detrended_equals_scipy() {
    let python = python!("numpy", "scipy.signal");
    let real = [
        ("one-sided", "none", 0.0),
        ("one-sided", "constant", 0.5),
        ("one-sided-density", "constant", 0.5),
        ("density", "constant", 0.0),
        ("power", "none", 0.25),
    ];
    let complex = [("power", "constant", 0.5), ("density", "none", 0.0)];
    // The mean of uint8 samples is far from 0.
    for (kind, is_complex, channels, size, kernels) in [
        ("uint8", false, 2, 1000, &real[..]),
        ("uint8", false, 1, 999, &real[..]),
        ("float32", false, 1, 4096, &real[..]),
        ("uint8", true, 1, 512, &complex[..]),
    ] {
        let samples = json!({ "type": kind, "complex": is_complex, "channels": channels });
        let frames = 3;
        let mut text = source(&samples, 3072, frames, 96 << 10);
        let mut all = Vec::new();
        for (i, (scaling, detrend, overlap)) in kernels.iter().enumerate() {
            let name = format!("s{i}");
            text += &format!(
                "[kernel.{name}-kernel]\nuse = \"power-spectrum\"\ninput = \"raw\"\noutput = \"{name}\"\n\
                 size = {size}\nwindow = \"hann\"\noverlap = {overlap}\nscaling = \"{scaling}\"\n\
                 detrend = \"{detrend}\"\n[ring.{name}]\n\
                 [sink.{name}]\ndriver = \"file\"\ninput = \"{name}\"\npath = \"out\"\nbuffer = \"64 KiB\"\n"
            );
            all.push(
                json!({ "name": name, "window": "hann", "overlap": overlap, "scaling": scaling,
                             "detrend": detrend }),
            );
        }
        let daq = Daq::new(&text);
        let _ = daq.run(&[]).ok();
        let mut keys = samples.clone();
        keys["frames"] = json!(frames);
        keys["size"] = json!(size);
        keys["rate"] = json!(1e6);
        keys["kernels"] = json!(all);
        let output = python.run(
            &format!("{READ}{WELCH}"),
            &[keys.to_string(), daq.path("").display().to_string()],
        );
        assert_eq!(output.lines().count(), kernels.len(), "{output}");
    }
}

/// Computes the documented formulas of `convert` and `stats`.
const OTHERS: &str = r#"
wide = p["type"] in ("int32", "float64")
kind = np.float64 if wide else np.float32
bits = {"int8": 8, "uint8": 8, "int16": 16, "int32": 32}.get(p["type"])
found = numbers("plain", "float32").reshape(x.shape)
y = (x.astype(kind) * kind(0.25) + kind(-3.5)).astype(np.float32)
assert np.array_equal(found, y), abs(found - y).max()
if bits:
    # frames, channels, points, parts
    found = numbers("full", "float32").reshape(p["frames"], p["channels"], -1, parts)
    y = (x.astype(kind) * kind(2.0 ** (1 - bits))).astype(np.float32).transpose(0, 2, 1, 3)
    assert np.array_equal(found, y), abs(found - y).max()

low, high = (-2.0 ** (bits - 1), 2.0 ** (bits - 1)) if bits else (-1.0, 1.0)
clip = p["clip"]
found = numbers("statistics", "float64").reshape(p["frames"] // 2, p["channels"], 6 + 32)
for i in range(p["frames"] // 2):
    for channel in range(p["channels"]):
        z = x[2 * i:2 * i + 2, :, channel, :].astype(np.float64).ravel()
        wanted = [z.size, z.min(), z.max(), z.mean(), np.sqrt((z ** 2).mean()), (abs(z) >= clip).sum()]
        got = found[i, channel]
        assert np.array_equal(got[[0, 1, 2, 5]], np.array(wanted)[[0, 1, 2, 5]]), (got[:6], wanted)
        assert np.allclose(got[[3, 4]], np.array(wanted)[[3, 4]], rtol=1e-9, atol=1e-12 * abs(z).max()), (got, wanted)
        assert np.array_equal(got[6:], np.histogram(z, 32, (low, high))[0])
        assert got[5] > 0 and got[6:].sum() == z.size
print("equal")
"#;

#[test]
fn convert_and_stats_equal_numpy() {
    let python = python!("numpy");
    for (kind, complex, channels, clip) in [
        ("int8", true, 2, 20.0),
        ("int16", false, 3, 5000.0),
        ("float32", true, 1, 0.2),
        ("float32", false, 2, 0.2),
    ] {
        let samples = json!({ "type": kind, "complex": complex, "channels": channels });
        // The recording has gaps. The fill values of missing packets count as samples.
        let mut text =
            source(&samples, 480, 8, 9600) + "[source.adc.faults]\nlose = [3, \"50..58\"]\n";
        let bins = if kind == "float32" {
            "range = [-1.0, 1.0]\n"
        } else {
            ""
        };
        let mut kernels = vec![
            (
                "plain",
                "convert",
                "scale = 0.25\noffset = -3.5\n".to_owned(),
            ),
            (
                "statistics",
                "stats",
                format!("every = 2\nclip = {clip:?}\nbins = 32\n{bins}"),
            ),
        ];
        if kind != "float32" {
            kernels.push((
                "full",
                "convert",
                "scale = \"full\"\norder = \"planar\"\n".to_owned(),
            ));
        }
        for (name, kernel, keys) in kernels {
            text += &format!(
                "[kernel.{name}-kernel]\nuse = \"{kernel}\"\ninput = \"raw\"\noutput = \"{name}\"\n{keys}[ring.{name}]\n\
                 [sink.{name}]\ndriver = \"file\"\ninput = \"{name}\"\npath = \"out\"\nbuffer = \"64 KiB\"\n"
            );
        }
        let daq = Daq::new(&text);
        let outcome = daq.run(&[]).ok();
        assert_eq!(outcome.count("sources.adc.lost.wire_gap"), 9);
        assert_eq!(outcome.count("sinks.samples.frames"), 8);
        let mut keys = samples;
        (keys["frames"], keys["clip"]) = (json!(8), json!(clip));
        let script = format!("{READ}{OTHERS}");
        let directory = daq.path("").display().to_string();
        assert_eq!(
            python.run(&script, &[keys.to_string(), directory]),
            "equal\n"
        );
    }
}
