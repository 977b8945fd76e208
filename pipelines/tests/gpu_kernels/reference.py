# Computes reference results with numpy. Standard input has, for each case, a line of JSON and the frames. Standard
# output has, for each case, the number of float64 results as 8 bytes, and the results.
import json
import re
import sys

import numpy as np

def numbers_of(name, data):
    """Returns the numbers of a type. Packed numbers are assembled from single bits."""
    packing = re.fullmatch(r"(u?)int(\d+)p(msb)?", name)
    if name == "bfloat16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    if not packing:
        return np.frombuffer(data, np.dtype(name.removesuffix("be")).newbyteorder(">" if name.endswith("be") else "<"))
    unsigned, width, msb = packing[1], int(packing[2]), packing[3]
    bits = np.unpackbits(np.frombuffer(data, "u1"), bitorder="big" if msb else "little").reshape(-1, width)
    values = bits.astype(int) @ (1 << (np.arange(width)[::-1] if msb else np.arange(width)))
    return values if unsigned else np.where(values >> (width - 1), values - (1 << width), values)


def frames_of(keys, data):
    """Yields the numbers of each frame as an array of (channel, point, part)."""
    channels, points = keys["channels"], keys["points"]
    parts = 2 if keys["complex"] else 1
    for x in numbers_of(keys["type"], data).reshape(-1, channels * points * parts):
        if keys["planar"]:
            yield x.reshape(channels, points, parts)
        else:
            yield x.reshape(points, channels, parts).transpose(1, 0, 2)


def convert(keys, frames):
    wide = keys["type"].removesuffix("be") in ("int32", "uint32", "int64", "float64")
    work = np.float64 if wide else np.float32
    for x in frames:
        y = (x.astype(work) * work(keys["scale"]) + work(keys["offset"])).astype("float32")
        yield y if keys["planar"] else y.transpose(1, 0, 2)


def power_spectrum(keys, frames):
    n, hop = keys["size"], keys["hop"]
    t = 2 * np.pi * np.arange(n) / n
    w = 0.5 - 0.5 * np.cos(t)
    for x in frames:
        for samples in x.astype("float32"):
            z = samples[:, 0].astype(complex) + (1j * samples[:, 1] if keys["complex"] else 0)
            blocks = np.array([z[i:i + n] for i in range(0, len(z) - n + 1, hop)]) * w
            if keys["complex"]:
                p = np.fft.fftshift((abs(np.fft.fft(blocks)) ** 2).mean(axis=0))
            else:
                p = (abs(np.fft.rfft(blocks.real)) ** 2).mean(axis=0)
            yield p / w.sum() ** 2


def channelize(keys, frames):
    from scipy.signal import firwin
    size, taps, hop = keys["size"], keys["taps"], keys["hop"]
    window = keys["window"]
    window = window if isinstance(window, str) else tuple(window)
    h = firwin(size * taps, keys["cutoff"] / size, window=window)
    before = size * taps - hop
    x = np.concatenate(list(frames), axis=1).astype("float64")
    x = x[:, :, 0] + (1j * x[:, :, 1] if keys["complex"] else 0)
    x = np.pad(x, ((0, 0), (before, 0)))
    k = np.fft.fftshift(np.fft.fftfreq(size, 1 / size)) if keys["complex"] else np.arange(size // 2)
    for m in range((x.shape[1] - before) // hop):
        first = m * hop - before
        folded = (x[:, m * hop:m * hop + size * taps] * h).reshape(len(x), taps, size).sum(axis=1)
        y = np.fft.fft(folded)[:, k.astype(int)] * np.exp(-2j * np.pi * k * first / size)
        yield np.ascontiguousarray(y).view("float64")


def correlate(keys, frames):
    i, j = np.triu_indices(keys["antennas"])
    for x in frames:
        x = x.astype("float64")
        z = (x[:, :, 0] + 1j * x[:, :, 1]).reshape(keys["antennas"], -1, keys["points"])
        v = np.einsum("act,bct->cab", z, z.conj())[:, i, j]
        yield np.ascontiguousarray(v).view("float64")


def beamform(keys, frames):
    w = np.array(keys["weights"])
    if keys["rounds"]:
        # The largest weight becomes 1 before weights are rounded to float16.
        w = (w / abs(w).max()).astype("float16").astype("float64") * abs(w).max()
    w = w.view("complex128").reshape(keys["beams"], -1, keys["antennas"])
    for x in frames:
        x = x.astype("float64")
        z = (x[:, :, 0] + 1j * x[:, :, 1]).reshape(keys["antennas"], -1, keys["points"])
        yield np.ascontiguousarray(np.einsum("bca,act->bct", w, z)).view("float64")


def stats(keys, frames):
    low, high = keys["range"]
    for x in frames:
        for numbers in x.reshape(len(x), -1).astype("float64"):
            hist = np.histogram(numbers, keys["bins"], (low, high))[0]
            fields = [numbers.size, numbers.min(), numbers.max(), numbers.mean(), np.sqrt((numbers ** 2).mean()),
                      (abs(numbers) >= keys["clip"]).sum()]
            yield np.concatenate([fields, hist])


KERNELS = {"convert": convert, "power-spectrum": power_spectrum, "channelize": channelize,
           "correlate": correlate, "beamform": beamform, "stats": stats}
cases = []
while line := sys.stdin.buffer.readline():
    keys = json.loads(line)
    cases.append((keys, sys.stdin.buffer.read(keys["bytes"])))
for keys, data in cases:
    made = KERNELS[keys["kernel"]](keys, frames_of(keys, data))
    numbers = np.concatenate([np.ravel(x).astype("<f8") for x in made])
    sys.stdout.buffer.write(len(numbers).to_bytes(8, "little") + numbers.tobytes())
