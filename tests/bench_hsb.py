"""Measures rate, loss and CPU time of a simulated Holoscan Sensor Bridge that sends into a host ring over loopback.

Usage: python tests/bench_hsb.py [SECONDS [BINARY]]

Needs target/release/daq, or BINARY. The sensor runs on core 0, the source on core 1. Prints a Markdown table with one row per
packet size and rate: requested rate, packets sent, delivered, lost and rejected, and the CPU time of both in cores.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading

from bench_common import ROOT, free_port

ADDRESS = "127.83.0.2:8192"
FRAME = 1 << 20
CONFIG = """
[source.in]
driver = "hsb"
listen = "127.0.0.1:{port}"
device = "{address}"
frame = "{frame} B"
packet = "{packet} B"
core = 1
ring = "frames"
samples = {{ type = "uint8" }}
[ring.frames]
memory = "host"
slot = "{frame} B"
slots = 32
[sink.null]
driver = "null"
input = "frames"
core = 1
"""


def reap(process, used, key):
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    used[key] = usage.ru_utime + usage.ru_stime


def measure(binary, packet, rate, seconds):
    """Performs one run. Returns the report of the source, the counters of the sensor, and the CPU seconds of both."""
    frames = int(rate * 1e9 * seconds / 8 / FRAME)
    with tempfile.TemporaryDirectory() as directory:
        config = os.path.join(directory, "hsb.toml")
        with open(config, "w") as file:
            file.write(CONFIG.format(port=free_port(), address=ADDRESS, frame=FRAME, packet=packet))
        environment = dict(os.environ, DAQ_LOG="error", XDG_STATE_HOME=directory)
        sensor = subprocess.Popen(
            ["taskset", "-c", "0", binary, "emulate", "hsb", "--listen", ADDRESS, "--announce", "off", "--once", "--json",
             "--rate", f"{rate} Gbit/s", "--frames", str(frames)],
            stdout=subprocess.PIPE, text=True, env=environment)
        assert sensor.stdout.readline().startswith("listening on "), "the emulated sensor did not start to listen"
        source = subprocess.Popen(
            ["taskset", "-c", "1", binary, "run", config, "--report", "json", "--for", f"{seconds + 1} s"],
            stdout=subprocess.PIPE, text=True, env=environment, cwd=directory)
        used, texts = {}, {}
        readers = [threading.Thread(target=lambda key=key, pipe=pipe: texts.update({key: pipe.read()}))
                   for key, pipe in (("source", source.stdout), ("sensor", sensor.stdout))]
        for reader in readers:
            reader.start()
        reap(source, used, "source")
        if source.returncode != 0:
            sensor.send_signal(signal.SIGTERM)
        reap(sensor, used, "sensor")
        for reader in readers:
            reader.join()
        return json.loads(texts["source"]), json.loads(texts["sensor"]), used


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5
    binary = sys.argv[2] if len(sys.argv) > 2 else os.path.join(ROOT, "target/release/daq")
    print("| packet | requested Gbit/s | packets sent | delivered | lost | rejected | source, cores | sensor, cores |")
    print("|---|---|---|---|---|---|---|---|")
    for packet in (1408, 8704):
        for rate in (2, 5, 8, 12):
            report, counts, used = measure(binary, packet, rate, seconds)
            ledger = report["sources"]["in"]
            sensor = counts["sensors"][0]
            late = "" if sensor["frames"] == int(rate * 1e9 * seconds / 8 / FRAME) else " (the sensor was too slow)"
            print(f"| {packet} | {rate}{late} | {sensor['packets'] - sensor['frames']} | {ledger['delivered']} "
                  f"| {sum(ledger['lost'].values())} | {ledger['rejected']} "
                  f"| {used['source'] / seconds:.2f} | {used['sensor'] / seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
