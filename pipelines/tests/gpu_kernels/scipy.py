# Computes spectra with scipy. Standard input and output are those of reference.py.
import json
import sys

import numpy as np
import scipy.signal


def samples_of(keys, data):
    """Yields the samples of each frame as an array of (channel, point)."""
    channels, points = keys["channels"], keys["points"]
    parts = 2 if keys["complex"] else 1
    for x in np.frombuffer(data, keys["type"]).reshape(-1, channels * points * parts):
        x = x.astype("float32").astype("float64")
        if keys["planar"]:
            x = x.reshape(channels, points, parts)
        else:
            x = x.reshape(points, channels, parts).transpose(1, 0, 2)
        yield x[..., 0] + 1j * x[..., 1] if keys["complex"] else x[..., 0]


def welches(keys, frames):
    """Yields the outputs of all frames. Continuous blocks continue across the ends of frames."""
    if not keys["continuous"]:
        for x in frames:
            yield welch(keys, x)
        return
    x = np.concatenate(list(frames), axis=-1)
    size, hop, integrate = keys["size"], keys["hop"], keys["integrate"]
    span = (integrate - 1) * hop + size
    for start in range(0, x.shape[-1] - span + 1, integrate * hop):
        yield welch(keys, x[..., start:start + span])


def csd(keys, x, y, window, onesided):
    f, p = scipy.signal.csd(x, y, keys["rate"], window, keys["size"], keys["size"] - keys["hop"], keys["fft"],
                            detrend=keys["detrend"], return_onesided=onesided, scaling=keys["scaling"])
    p = p.astype(complex)
    return np.fft.fftshift(p) if keys["complex"] else p


def welch(keys, x):
    name = keys["window"]
    window = scipy.signal.get_window(tuple(name) if isinstance(name, list) else name, keys["size"],
                                     fftbins=not keys["symmetric"])
    onesided = keys["onesided"] and not keys["complex"]
    if keys["pairs"]:
        pairs = [csd(keys, x[i], x[j], window, onesided) for i, j in keys["pairs"]]
        return np.stack([p if keys["complex"] else p[:keys["fft"] // 2 + 1] for p in pairs]).view("f8")
    f, p = scipy.signal.welch(x, keys["rate"], window, keys["size"], keys["size"] - keys["hop"], keys["fft"],
                              detrend=keys["detrend"], return_onesided=onesided, scaling=keys["scaling"],
                              average=keys["average"])
    if keys["complex"]:
        return np.fft.fftshift(p, axes=-1)
    return p[..., :keys["fft"] // 2 + 1]


cases = []
while line := sys.stdin.buffer.readline():
    keys = json.loads(line)
    cases.append((keys, sys.stdin.buffer.read(keys["bytes"])))
for keys, data in cases:
    numbers = np.concatenate([np.ravel(p) for p in welches(keys, samples_of(keys, data))]).astype("<f8")
    sys.stdout.buffer.write(len(numbers).to_bytes(8, "little") + numbers.tobytes())
