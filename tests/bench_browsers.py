"""Compares the rate and the loss of UDP at full rate while browsers show the live page, and while none does, in one run.

Usage: python3 tests/bench_browsers.py [--memory cuda:0] [--browsers 10] [--rounds 10] [--seconds 3] [--packet 8972]
           [--pace "20 Gbit/s"]

Needs target/release/daq, or its path in the environment variable DAQ. A pipeline sends SPEAD packets over loopback, by default
as fast as it can, and another one receives them into a ring. Each browser requests what the live page requests: the stream of
the view Scope, and `/status` and `/history` once per second. Prints Markdown. Exits with 1 if a browser received nothing.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from bench_common import ROOT, free_port

DAQ = os.environ.get("DAQ") or f"{ROOT}/target/release/daq"
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
RECEIVER = """
[http]
listen = "127.0.0.1:0"
[source.in]
driver = "udp"
listen = "127.0.0.1:{port}"
ring = "heaps"
receive_buffer = "64 MiB"
samples = {{ type = "int16" }}
[source.in.format]
kind = "spead"
heap = "{heap} B"
packet = "{payload} B"
[ring.heaps]
memory = "{memory}"
slots = 128
[sink.null]
driver = "null"
input = "heaps"
"""
SENDER = """
[source.adc]
driver = "sim"
ring = "heaps"
pace = "{pace}"
pattern = "silence"
packet = "{heap} B"
backpressure = true
[ring.heaps]
slot = "{heap} B"
slots = 32
[sink.out]
driver = "udp"
input = "heaps"
to = "127.0.0.1:{port}"
[sink.out.format]
kind = "spead"
packet = "{payload} B"
"""


class Browsers:
    """Threads that read what the page of a browser reads."""

    def __init__(self, url, count):
        self.url, self.received, self.ended = url, [0] * count, threading.Event()
        self.threads = [threading.Thread(target=target, args=(i,)) for i in range(count) for target in (self.show, self.poll)]

    def show(self, index):
        with OPENER.open(f"{self.url}/rings/heaps/scope", timeout=30) as stream:
            while not self.ended.is_set():
                self.received[index] += len(stream.read1(1 << 20))

    def poll(self, _):
        while not self.ended.wait(1):
            for path in ("status", "history?span=10m"):
                OPENER.open(f"{self.url}/{path}", timeout=30).read()

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        for thread in self.threads:
            thread.join()


def counts(url):
    """Returns the time, and how many packets of the source were delivered and lost."""
    with OPENER.open(f"{url}/status", timeout=30) as reply:
        source = json.load(reply)["report"]["sources"]["in"]
    return time.monotonic(), source["delivered"], sum(source["lost"].values())


def measure(url, seconds):
    """Returns the number of packets delivered per second, and the share of packets that were lost."""
    start, delivered, lost = counts(url)
    time.sleep(seconds)
    end, last_delivered, last_lost = counts(url)
    delivered, lost = last_delivered - delivered, last_lost - lost
    return delivered / (end - start), lost / max(1, delivered + lost)


@contextlib.contextmanager
def pipeline(directory, name, text):
    """Runs a pipeline, and returns its process."""
    path = f"{directory}/{name}.toml"
    with open(path, "w") as file:
        file.write(text)
    with open(f"{directory}/{name}.log", "w") as log:
        command = [DAQ, "run", path, "--state-dir", f"{directory}/state"]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def address(directory):
    """Returns the HTTP address of the pipeline `receiver`."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        command = [DAQ, "ls", "--json", "--state-dir", f"{directory}/state"]
        listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        found = [pipeline for pipeline in json.loads(listed or "[]") if pipeline.get("http")]
        if found:
            return f"http://{found[0]['http']}"
        time.sleep(0.2)
    with open(f"{directory}/receiver.log") as log:
        raise SystemExit(log.read())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", default="host")
    parser.add_argument("--browsers", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--packet", type=int, default=8972)
    parser.add_argument("--pace", default="free", help="`pace` of the sending pipeline")
    options = parser.parse_args()
    payload = (options.packet - 48) // 8 * 8
    values = {"port": free_port(), "payload": payload, "heap": (1 << 20) // payload * payload, "memory": options.memory, "pace": options.pace}
    rounds, received = {0: [], options.browsers: []}, []
    with tempfile.TemporaryDirectory() as directory, pipeline(directory, "receiver", RECEIVER.format(**values)):
        url = address(directory)
        with pipeline(directory, "sender", SENDER.format(**values)):
            time.sleep(2)
            for i in range(options.rounds):
                # The order alternates, so that a change over time does not favour either.
                for count, results in sorted(rounds.items(), reverse=i % 2 > 0):
                    with Browsers(url, count) as browsers:
                        time.sleep(0.5)
                        results.append(measure(url, options.seconds))
                    received += browsers.received
    print(f"| browsers | Gbit/s, median of {options.rounds} | packets lost, median |\n|---:|---:|---:|")
    for count, results in rounds.items():
        rate, lost = (statistics.median(values) for values in zip(*results, strict=True))
        print(f"| {count} | {rate * payload * 8 / 1e9:.2f} | {lost:.2%} |")
    ratios = [with_[0] / without[0] for without, with_ in zip(*rounds.values(), strict=True)]
    print(f"\nRatio of the rates in a round: median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}")
    print(f"A browser received {statistics.median(received) / (options.seconds + 0.5) / 1e6:.2f} MB/s (median)")
    return 0 if all(received) else 1


if __name__ == "__main__":
    sys.exit(main())
