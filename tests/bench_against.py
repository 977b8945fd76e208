"""Compares the speed of two builds of daq in one run, and exits with 1 if the newer one is slower.

Usage: python3 tests/bench_against.py [--rounds N] OLD NEW

OLD and NEW are folders of release builds that contain daq, examples/ring_bench and examples/udp_bench; `tests/bench --against
COMMIT` builds them. Both are measured in turn, in each round in another order. The figures of receive, window and TCP are
ratios to a minimal loop in the same process, so that load of the machine changes both. The cost of files is the CPU time of a
simulated source and the sink `file`. Prints the medians as Markdown. "Speed" is how often NEW does what OLD does once: 1.05
means 5 % faster. A figure whose speed is below 0.95 is measured again; the run fails if it is below in three measurements.
"""

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile

LIMIT, ATTEMPTS = 0.95, 3
FRAMES, SLOT = 1000, 1 << 20
FILES = f"""
[source.adc]
driver = "sim"
ring = "raw"
pattern = "silence"
packet = "8 KiB"
backpressure = true
pace = "free"
samples = {{ type = "float32" }}
[ring.raw]
slot = "{SLOT} B"
slots = 32
[sink.disk]
driver = "file"
input = "raw"
path = "out"
guarantee = true
"""


def output(*command, **options):
    """Runs a program and returns what it prints."""
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, **options)
    if run.returncode:
        sys.exit(f"{' '.join(command)} failed with code {run.returncode}")
    return run.stdout


def rings(build):
    """Returns the time per frame to publish and lease, and the time of the window per time of copies alone."""
    text = output(f"{build}/examples/ring_bench")
    times = {f"publish + lease, {name}": float(ns) for name, ns in
             re.findall(r"publish \+ lease, one thread, (.*?) \| ([\d.]+) ns", text)}
    return times | {"packets through a window ÷ copies": 1 / float(re.search(r"([\d.]+) × baseline", text)[1])}


def udp(build):
    """Returns the CPU time per packet of source `udp` per that of a loop that only receives."""
    rows = {}
    for packet, method, ns in re.findall(r"(\d+) (\w+) .*?([\d.]+) ns of CPU", output(f"{build}/examples/udp_bench", "0.5", env=UDP)):
        rows.setdefault((packet, method), []).append(float(ns))
    means = {key: statistics.mean(times) for key, times in rows.items()}
    return {f"udp, {packet} B, {method} ÷ receive loop": ns / means[packet, "baseline"]
            for (packet, method), ns in means.items() if method != "baseline"}


def tcp(build):
    """Returns the time and the CPU time of streams over TCP per that of a loop of send and receive calls."""
    line = [f"{build}/daq", "bench", "tcp", "--json", "--rounds", "1", "--window", "500 ms", "--sizes", "64 KiB,1 MiB"]
    rows = json.loads(output(*line, stderr=subprocess.DEVNULL))[0]["rows"]
    cpu = {(row["method"], row["size"]): row["sender CPU s/GB"] + row["receiver CPU s/GB"] for row in rows}
    figures = {}
    for row in rows:
        if row["method"] != "baseline loop":
            name = f"stream over TCP, {row['size']}"
            figures[f"{name}, time ÷ loop"] = 1 / row["× baseline loop"]
            figures[f"{name}, CPU ÷ loop"] = cpu[row["method"], row["size"]] / cpu["baseline loop", row["size"]]
    return figures


def files(build):
    """Returns the CPU seconds per GB to simulate frames and to write them into a file system in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        with open(f"{directory}/files.toml", "w") as file:
            file.write(FILES)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        line = [f"{build}/daq", "run", "files.toml", "--frames", f"raw={FRAMES}", "--report", "json"]
        report = json.loads(output(*line, cwd=directory, env=dict(os.environ, XDG_STATE_HOME=directory, DAQ_LOG="error")))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    frames = report["sinks"]["disk"]["frames"]
    if frames < FRAMES:
        sys.exit(f"the sink wrote {frames} of {FRAMES} frames")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"frames to files, CPU s/GB": used / (frames * SLOT / 1e9)}


BENCHES = [rings, udp, tcp, files]
UDP = dict(os.environ, RATE="5")


def compare(bench, old, new, rounds):
    """Measures both builds in turn. Returns, for each figure that both have, the medians and the speed of `new`."""
    found = {old: {}, new: {}}
    for turn in range(rounds):
        for build in (old, new) if turn % 2 == 0 else (new, old):
            for name, value in bench(build).items():
                found[build].setdefault(name, []).append(value)
    medians = {build: {name: statistics.median(values) for name, values in figures.items()} for build, figures in found.items()}
    return {name: (medians[old][name], value, medians[old][name] / value)
            for name, value in medians[new].items() if name in medians[old]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("old")
    parser.add_argument("new")
    options = parser.parse_args()
    builds = [os.path.abspath(folder) for folder in (options.old, options.new)]
    print("| work | old | new | speed |\n|---|---|---|---|")
    slower = []
    for bench in BENCHES:
        suspects = None
        for attempt in range(ATTEMPTS):
            found = compare(bench, *builds, options.rounds)
            for name, (old, new, speed) in found.items():
                if suspects is None or name in suspects:
                    again = f" (measurement {attempt + 1})" if attempt else ""
                    print(f"| {name}{again} | {old:.3f} | {new:.3f} | {speed:.3f} |", flush=True)
            below = {name for name, (_, _, speed) in found.items() if speed < LIMIT}
            suspects = below if suspects is None else suspects & below
            if not suspects:
                break
        slower += sorted(suspects)
    for name in slower:
        print(f"slower in {ATTEMPTS} measurements: {name}")
    sys.exit(1 if slower else 0)


if __name__ == "__main__":
    main()
