"""Measures loss by rate of UDP into GPU memory: loopback → pinned host ring → GPU ring → power spectrum on the GPU.

Usage: python3 tests/bench_udp_gpu.py [--rates 15,20,25] [--seconds 2] [--runs 5] [--packet 8000]

Needs a GPU, and target/release/{daq,examples/spead_send} or the environment variables DAQ and SPEAD_SEND with
their paths. One thread receives. If this process may use at least 8 cores, the sender, the receiver, both copy
engine threads, the kernel and the sink run on one core each; otherwise no thread is pinned. As root, the script
raises net.core.rmem_max while it runs.

Each rate is measured in up to RUNS runs; the first loss ends the rate. Prints Markdown, then the highest rate at
which all runs lost nothing. Exits with 69 if there is no GPU, and with 1 if the counters of a run are inconsistent.
"""

import argparse
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from bench_common import ROOT, free_port

DAQ = os.environ.get("DAQ") or f"{ROOT}/target/release/daq"
SPEAD_SEND = os.environ.get("SPEAD_SEND") or f"{ROOT}/target/release/examples/spead_send"
RMEM_MAX = pathlib.Path("/proc/sys/net/core/rmem_max")
BUFFER = 64 << 20
HEADER = 48
UNAVAILABLE = 69
CONFIG = """
[source.in]
driver = "udp"
listen = "127.0.0.1:{port}"
ring = "heaps"
receive_buffer = "{buffer} B"
samples = {{ type = "int8" }}
{receiver}
[source.in.format]
kind = "spead"
heap = "{heap} B"
packet = "{payload} B"
[ring.heaps]
memory = "cuda:0"
slots = 128
[kernel.spectrum]
use = "power-spectrum"
size = 4096
input = "heaps"
output = "spectra"
{kernel}
[ring.spectra]
slots = 64
[sink.null]
driver = "null"
input = "spectra"
{sink}
[staging]
{staging}
"""


def pinning():
    """Returns the sender's core and the configuration lines that pin daq's threads; empty with too few cores."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 8:
        return None, {"receiver": "", "kernel": "", "sink": "", "staging": ""}
    # The first core is left to other programs.
    sender, receiver, inward, outward, kernel, sink = cores[1:7]
    return sender, {
        "receiver": f"cores = [{receiver}]",
        "kernel": f"core = {kernel}",
        "sink": f"core = {sink}",
        "staging": f"cores = [{inward}, {outward}]",
    }


def tune(state):
    """Runs `daq tune` once, so that no run has to measure the GPU; exits if there is no GPU."""
    command = [DAQ, "tune", "--json", "--state-dir", state]
    tuned = subprocess.run(command, capture_output=True, text=True, check=False)
    if tuned.returncode != 0:
        sys.stderr.write(tuned.stderr)
        raise SystemExit(tuned.returncode)
    return json.loads(tuned.stdout)["cuda:0"]["name"]


def wait_ready(notified, receiver, errors):
    """Waits until daq has sent READY=1 to the notification socket, which means that its source has started."""
    while receiver.poll() is None:
        try:
            if "READY=1" in notified.recv(4096).decode().splitlines():
                return
        except TimeoutError:
            continue
    errors.seek(0)
    raise SystemExit(f"daq exited before it was ready:\n{errors.read()}")


def wait_read(port, receiver):
    """Waits until the socket of `port` contains no packets."""
    while receiver.poll() is None:
        with open("/proc/net/udp") as table:
            sockets = [line.split() for line in table.readlines()[1:]]
        waiting = [int(fields[4].split(":")[1], 16) for fields in sockets if fields[1].endswith(f":{port:04X}")]
        if not any(waiting):
            break
        time.sleep(0.01)
    # Wait for the last packets, which are still in the rings.
    time.sleep(0.2)


def run(rate, packet, seconds, cores, directory):
    """Sends for some seconds. Returns the counters of the sender and the report of daq."""
    port, payload = free_port(), packet - HEADER
    heap = (1 << 20) // payload * payload
    sender, lines = cores
    config, notify = f"{directory}/bench.toml", f"{directory}/notify"
    with open(config, "w") as file:
        file.write(CONFIG.format(port=port, buffer=BUFFER, heap=heap, payload=payload, **lines))
    environment = dict(os.environ, NOTIFY_SOCKET=notify, DAQ_LOG="error")
    command = [DAQ, "run", config, "--report", "json", "--state-dir", f"{directory}/state"]
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified,
        open(f"{directory}/errors", "w+") as errors,
    ):
        notified.bind(notify)
        notified.settimeout(0.2)
        receiver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        try:
            wait_ready(notified, receiver, errors)
            # Close the socket now, so that later messages of daq fail instead of blocking when the socket is full.
            notified.close()
            os.unlink(notify)
            command = [SPEAD_SEND, f"127.0.0.1:{port}", str(packet), str(rate), str(seconds)]
            command += [] if sender is None else [str(sender)]
            sent = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            wait_read(port, receiver)
            receiver.send_signal(signal.SIGINT)
            report, _ = receiver.communicate()
            errors.seek(0)
            if receiver.returncode != 0 or not report:
                raise SystemExit(f"daq exited with {receiver.returncode}:\n{errors.read()}")
        finally:
            if receiver.poll() is None:
                receiver.kill()
                receiver.wait()
    return [int(count) for count in sent[:3]] + [float(sent[3])], json.loads(report)


def account(sent, report):
    """Returns the results of one run. Exits if its counters are inconsistent."""
    _, packets, payload, passed = sent
    source, kernel, copy = report["sources"]["in"], report["kernels"]["spectrum"], report["copies"]["heaps"]
    lost = {cause: count for cause, count in source["lost"].items() if count}
    faults = []
    if source["expected"] != source["delivered"] + source["pending"] + sum(lost.values()):
        faults.append(f"expected packets are not the sum of delivered, pending and lost ones: {source}")
    if kernel["failed"] or copy["failed"]:
        faults.append(f"frames failed on the GPU: {kernel}, {copy}")
    # The receiver cannot expect more packets than were sent.
    if source["expected"] > packets:
        faults.append(f"{packets} packets were sent, but {source['expected']} expected")
    if faults:
        raise SystemExit("\n".join(faults))
    # No ledger of the receiver contains packets that were lost after the last packet that arrived.
    unseen = packets - source["expected"]
    if unseen:
        lost["unseen"] = unseen
    return {
        "sent": packets,
        "expected": source["expected"],
        "lost": lost,
        "rate": payload * 8 / passed / 1e9,
        "copy": copy["bytes"] / max(copy["copies"], 1),
        "busy": kernel.get("device", {}).get("busy_ns", 0) / 1e9 / passed,
        "high": report["rings"]["heaps@host"]["high_water"],
    }


def search(rates, arguments, directory):
    """Returns the runs at the highest rate without loss, and a remark on it; `None` if every rate had losses."""
    best = None
    print("| requested Gbit/s | run | payload Gbit/s | packets sent | expected | lost | bytes per copy | GPU busy | host ring, maximum slots used |")
    print("|---|---|---|---|---|---|---|---|---|")
    for rate in rates:
        runs = []
        while len(runs) < arguments.runs and not (runs and runs[-1]["lost"]):
            runs.append(account(*run(rate, arguments.packet, arguments.seconds, pinning(), directory)))
            last = runs[-1]
            lost = ", ".join(f"{cause} {count}" for cause, count in last["lost"].items()) or "0"
            print(
                f"| {rate:g} | {len(runs)} | {last['rate']:.2f} | {last['sent']} | {last['expected']} | {lost} "
                f"| {last['copy']:.0f} | {last['busy'] * 100:.1f} % | {last['high']} |",
                flush=True,
            )
        if runs[-1]["lost"]:
            continue
        best = runs, f"requested {rate:g}"
        # `rate` includes headers; the measured rates are payload only.
        share = (arguments.packet - HEADER) / arguments.packet
        if statistics.median(each["rate"] for each in runs) < rate * 0.95 * share:
            return runs, f"sender limit, requested {rate:g}"
    return best


def raise_buffers():
    """As root, raises net.core.rmem_max for the receive buffer; returns the old value if it was changed."""
    before = int(RMEM_MAX.read_text())
    if os.geteuid() != 0 or before >= BUFFER:
        return None
    try:
        RMEM_MAX.write_text(f"{BUFFER}\n")
    except OSError as error:
        print(f"net.core.rmem_max stays at {before}: {error}", file=sys.stderr)
        return None
    return before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="15,20,25,30,35,40,45,50,55,60", help="rates in Gbit/s, separated by commas")
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of a run")
    parser.add_argument("--runs", type=int, default=5, help="number of consecutive runs that must lose nothing")
    parser.add_argument("--packet", type=int, default=8000, help="UDP payload of a packet in bytes")
    arguments = parser.parse_args()
    rates = sorted(float(rate) for rate in arguments.rates.split(","))
    with tempfile.TemporaryDirectory() as directory:
        gpu = tune(f"{directory}/state")
        pinned = "unpinned threads" if pinning()[0] is None else "pinned threads"
        print(f"{gpu}, packets of {arguments.packet} bytes, {arguments.seconds:g} s per run, {pinned}\n")
        before = raise_buffers()
        try:
            best = search(rates, arguments, directory)
        finally:
            if before is not None:
                RMEM_MAX.write_text(f"{before}\n")
    if best is None:
        print("\nPackets were lost at every rate.")
        return
    runs, remark = best
    middle = {key: statistics.median(each[key] for each in runs) for key in ("rate", "copy", "busy", "high")}
    print(
        f"\nNo loss in {len(runs)} consecutive runs: {middle['rate']:.2f} Gbit/s of payload ({remark}); medians: "
        f"{middle['copy']:.0f} bytes per copy, GPU busy {middle['busy'] * 100:.1f} %, {middle['high']:.0f} slots of the host ring in use"
    )


if __name__ == "__main__":
    main()
