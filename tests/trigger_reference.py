"""Recomputes the decisions of configs/trigger.toml from the recorded samples and compares them.

    trigger_reference.py CONFIG DIRECTORY [NAME=VALUE ...]
    trigger_reference.py CONFIG RAW DECISIONS [NAME=VALUE ...]

With DIRECTORY, the samples and the decisions are recordings (raw*.sigmf-data and decisions*.sigmf-data), and every
decision must have its samples. Otherwise they are the files RAW and DECISIONS, which must contain exactly the frames
from number 0 on. NAME=VALUE replaces a parameter of CONFIG; `channels` can also be set. Prints the number of frames for
each outcome, and the first differences. Exits with 1 if there is a difference, or if there is nothing to compare.

This script was written from the rules documented in configs/kernels/trigger.cu. It works event by event, while the
kernel works sample by sample.
"""

import glob
import json
import os
import sys
import tomllib

import numpy as np

OUTCOMES = ["quiet", "alone", "vetoed", "triggered"]
PARTS = 16
FIELDS = 8  # number of fields before the peaks


def decide(samples, params):
    """Returns the records of `samples`, without sequence and flags. Their shape is (frames, channels, points)."""
    frames, channels, points = samples.shape
    parts = min(PARTS, points)
    length = points // parts
    samples = samples.astype(np.int64)
    sums = samples[:, :, : parts * length].reshape(frames, channels, parts, length).sum(axis=3)
    baselines = np.sort(sums, axis=2)[:, :, (parts - 1) // 2] // length
    heights = samples - baselines[:, :, None]
    over = heights >= params["threshold"]
    before = np.zeros_like(over)
    before[:, :, 1:] = over[:, :, :-1]
    edges = over & ~before

    vetoes = [c for c in range(channels) if params["veto"] >> c & 1]
    records = np.zeros((frames, FIELDS + channels), dtype=np.int64)
    records[:, 3] = -1
    records[:, FIELDS:] = heights.max(axis=2)
    for frame in np.flatnonzero(edges.any(axis=(1, 2))):
        outcome, time, together, vetoing = judge(edges[frame], over[frame], vetoes, params)
        crossed = bits(np.flatnonzero(edges[frame].any(axis=1)))
        records[frame, 2:7] = outcome, time, bits(together), bits(vetoing), crossed
    return records


def judge(edges, over, vetoes, params):
    """Returns outcome, time, channels and vetoing channels of a frame in which a channel crosses the threshold."""
    hits = [(t, c) for c, t in zip(*np.nonzero(edges)) if c not in vetoes]
    first = None
    for start in sorted({t for t, _ in hits}):
        together = {c for t, c in hits if start <= t <= start + params["window"]}
        if len(together) < params["coincidence"]:
            continue
        reach = params["veto_window"]
        vetoing = {c for c in vetoes if np.any(np.abs(np.flatnonzero(over[c]) - start) <= reach)}
        if not vetoing:
            return 3, start, together, vetoing
        first = first or (2, start, together, vetoing)
    return first or (1, -1, set(), set())


def bits(channels):
    mask = sum(1 << int(c) for c in channels)
    return mask - (1 << 32) if mask >> 31 else mask


def recorded(directory, name, numbers):
    """Returns the sequence numbers and the frames of all segments of a recording. A frame has `numbers` numbers."""
    sequences, data = [], []
    for path in sorted(glob.glob(os.path.join(directory, f"{name}*.sigmf-meta"))):
        with open(path, encoding="utf-8") as file:
            captures = json.load(file)["captures"]
        kind = "<i2" if name == "raw" else "<i4"
        data.append(np.fromfile(path.removesuffix("meta") + "data", kind).reshape(-1, numbers))
        for capture in captures:
            first = capture.get("daq:sequence", 0)
            sequences.extend(range(first, first + capture.get("daq:frames", 0)))
    if not data:
        return np.zeros(0, np.int64), np.zeros((0, numbers), np.int64)
    return np.array(sequences, np.int64), np.concatenate(data)


def main(arguments):
    given = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    config, *paths = [argument for argument in arguments if "=" not in argument]
    with open(config, "rb") as file:
        config = tomllib.load(file)
    params = dict(config["kernel"]["trigger"]["params"])
    params["channels"] = config["source"]["detector"]["samples"]["channels"]
    params["points"] = 256
    params.update((name, int(value, 0)) for name, value in given.items())
    channels, points = params["channels"], params["points"]

    if len(paths) == 1:
        numbers, raw = recorded(paths[0], "raw", channels * points)
        decided, found = recorded(paths[0], "decisions", FIELDS + channels)
    else:
        raw = np.fromfile(paths[0], "<i2").reshape(-1, channels * points)
        found = np.fromfile(paths[1], "<i4").reshape(-1, FIELDS + channels)
        numbers = decided = np.arange(len(raw))
    if len(numbers) != len(raw) or len(decided) != len(found) or not np.isin(decided, numbers).all():
        print(f"the {len(raw)} frames of samples and {len(found)} decisions do not belong to the same run")
        return 1

    # The recording of samples may end later than the recording of decisions.
    raw = raw[np.searchsorted(numbers, decided)]
    expected = decide(raw.reshape(-1, channels, points), params)
    expected[:, 0] = (decided & 0xFFFFFFFF).astype(np.uint32).view(np.int32) if len(decided) else 0
    expected[:, 1] = decided >> 32
    expected[:, 7] = found[:, 7]
    counts = {name: int((expected[:, 2] == i).sum()) for i, name in enumerate(OUTCOMES)}
    wrong = np.flatnonzero((expected != found).any(axis=1))
    print(json.dumps({"frames": len(found), **counts, "wrong": len(wrong)}))
    for i in wrong[:5]:
        print(f"frame {decided[i]}: {found[i].tolist()}, expected {expected[i].tolist()}")
    return int(len(wrong) > 0 or len(found) == 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
