# What numpy makes of frames: a JSON object and the frames on standard input, float64 numbers on standard output.
import json
import sys

import numpy as np

keys = json.loads(sys.stdin.buffer.readline())
channels, points = keys["channels"], keys["points"]
parts = 2 if keys["complex"] else 1
dtype = np.dtype(keys["type"]).newbyteorder("<")
frame = dtype.itemsize * channels * points * parts
data = sys.stdin.buffer.read()


def channel_of(i):
    """The numbers of each channel of frame i: channel, point, part."""
    x = np.frombuffer(data[i * frame:(i + 1) * frame], dtype)
    if keys["planar"]:
        return x.reshape(channels, points, parts)
    return x.reshape(points, channels, parts).transpose(1, 0, 2)


def convert(frames):
    for x in frames:
        wide = dtype.itemsize > 4 or dtype.kind == "i" and dtype.itemsize == 4
        work = np.float64 if wide else np.float32
        y = (x.astype(work) * work(keys["scale"]) + work(keys["offset"])).astype("float32")
        yield y if keys["planar"] else y.transpose(1, 0, 2)


def power_spectrum(frames):
    n, hop = keys["size"], keys["hop"]
    t = 2 * np.pi * np.arange(n) / n
    w = 0.5 - 0.5 * np.cos(t)
    for x in frames:
        for samples in x.astype("float32"):
            z = samples[:, 0].astype(complex) + (1j * samples[:, 1] if parts == 2 else 0)
            blocks = np.array([z[i:i + n] for i in range(0, points - n + 1, hop)]) * w
            if parts == 2:
                p = np.fft.fftshift((abs(np.fft.fft(blocks)) ** 2).mean(axis=0))
            else:
                p = (abs(np.fft.rfft(blocks.real)) ** 2).mean(axis=0)
            yield p / w.sum() ** 2


def stats(frames):
    low, high = keys["range"]
    for x in frames:
        for numbers in x.reshape(channels, -1).astype("float64"):
            hist = np.histogram(numbers, keys["bins"], (low, high))[0]
            fields = [numbers.size, numbers.min(), numbers.max(), numbers.mean(), np.sqrt((numbers ** 2).mean()),
                      (abs(numbers) >= keys["clip"]).sum()]
            yield np.concatenate([fields, hist])


count = len(data) // frame
made = {"convert": convert, "power-spectrum": power_spectrum, "stats": stats}[keys["kernel"]](
    channel_of(i) for i in range(count))
for numbers in made:
    sys.stdout.buffer.write(np.ascontiguousarray(numbers, "float64").tobytes())
