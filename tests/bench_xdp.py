"""Compares the sources `udp` and `xdp` on the same packets, over one pair of virtual interfaces, in one run.

Usage: sudo python tests/bench_xdp.py [SECONDS] [PACKET,PACKET]

Needs root, iproute2 (ip, tc), util-linux (unshare, nsenter) and target/release/{daq,examples/spead_send} (or the same
files below `DAQ_BENCH_TARGET`). The sender runs on core 0 in its own network namespace, the receiver on core 1. For each
packet size and kind of sender, prints the highest rate at which three runs lose nothing, and the receiver's CPU time per
packet at 0.8 of the lowest of those rates. With virtual interfaces the Linux part of reception, and the program of
`xdp`, run on the sender's core. Prints Markdown.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request

from bench_common import HEAPS, ROOT, shape

TARGET = os.environ.get("DAQ_BENCH_TARGET", f"{ROOT}/target/release")
INSIDE = "DAQ_BENCH_XDP_INSIDE"
PORT = 4950
ADDRESS = "10.77.0.1"
SOURCE = {
    "udp": 'driver = "udp"\nreceive_buffer = "32 MiB"',
    "xdp, native": 'driver = "xdp"\ninterface = "local0"\nattach = "native"\npackets = 16384',
    "xdp, generic": 'driver = "xdp"\ninterface = "local0"\nattach = "generic"\npackets = 16384',
}
CONFIG = """
[http]
listen = "127.0.0.1:0"
[source.in]
listen = "{address}:{port}"
ring = "heaps"
cores = [1]
{source}
""" + HEAPS


def run(command, **more):
    return subprocess.run(command.split(), check=True, capture_output=True, text=True, **more).stdout


def connect():
    """Creates the interfaces. Returns the process that keeps the remote namespace open."""
    run("ip link set lo up")
    remote = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo ready; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    remote.stdout.readline()
    run(f"ip link add local0 type veth peer name remote0 netns {remote.pid}")
    run(f"ip address add {ADDRESS}/24 dev local0")
    run("ip link set local0 up")
    run(f"nsenter -t {remote.pid} -n ip address add 10.77.0.2/24 dev remote0")
    # The interface's own queue has room for only 256 packets. Without this additional queue, the interface drops
    # packets while its peer is busy.
    run(f"nsenter -t {remote.pid} -n tc qdisc replace dev remote0 root pfifo limit 10000")
    run(f"nsenter -t {remote.pid} -n ip link set remote0 up")
    return remote


def receive(remote, kind, plain, packet, rate, seconds):
    """Returns the sent rate in Gbit/s of payload, the share of lost packets, and the receiver's CPU ns per packet."""
    payload, heap = shape(packet)
    with tempfile.TemporaryDirectory() as directory:
        config = f"{directory}/bench.toml"
        with open(config, "w") as file:
            file.write(CONFIG.format(address=ADDRESS, port=PORT, source=SOURCE[kind], heap=heap, payload=payload))
        environment = dict(os.environ, XDG_STATE_HOME=directory, DAQ_LOG="info")
        command = ["taskset", "-c", "1", f"{TARGET}/daq", "run", config, "--report", "json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as receiver:
            try:
                address = wait_ready(receiver)
                before = cpu_of(receiver.pid)
                sender = f"nsenter -t {remote.pid} -n {TARGET}/examples/spead_send {ADDRESS}:{PORT} {packet} {rate} {seconds} 0"
                more = {"PLAIN": "1"} if plain else {}
                _, packets, sent, passed = run(sender, env=dict(os.environ, **more)).split()
                wait_still(address)
                cpu = cpu_of(receiver.pid) - before
            finally:
                receiver.send_signal(2)
            report = json.loads(receiver.stdout.read())
    delivered = report["sources"]["in"]["delivered"]
    packets, sent, passed = int(packets), int(sent), float(passed)
    return sent * 8 / passed / 1e9, 1 - delivered / packets, cpu / packets * 1e9


def cpu_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_ready(receiver):
    for line in receiver.stderr:
        if "serving http://" in line:
            # daq prints little after this line, so the pipe cannot fill up.
            time.sleep(0.3)
            return line.split("serving http://")[1].split()[0].rstrip("/,;")
    raise SystemExit("daq did not start")


def wait_still(address):
    """Waits until no more packets arrive, because packets that are still queued when the sender ends are not lost."""
    last, still = -1, 0
    while still < 3:
        time.sleep(0.1)
        with urllib.request.urlopen(f"http://{address}/status", timeout=10) as answer:
            expected = json.load(answer)["report"]["sources"]["in"]["expected"]
        still = still + 1 if expected == last else 0
        last = expected


def highest(remote, kind, plain, packet, seconds):
    """Returns the highest rate at which three runs lose nothing, and whether a higher rate lost packets. If not, the sender
    is the limit. The slowest of three runs counts. Each next rate is between the highest rate without loss and the lowest
    rate with loss; no rate is measured twice."""
    best, good, bad, rate = 0.0, 0.0, None, 4.0
    while bad is None or bad - good > 0.25:
        slowest = None
        for _ in range(3):
            sent, lost, _ = receive(remote, kind, plain, packet, rate, seconds)
            if lost > 0:
                slowest = None
                break
            slowest = sent if slowest is None else min(slowest, sent)
        if slowest is None:
            bad = rate
        else:
            good, best = rate, max(best, slowest)
            if slowest < rate * 0.95 * shape(packet)[0] / packet:
                # The sender has reached its maximum.
                break
        rate = good + 4.0 if bad is None else (good + bad) / 2
    return best, bad is not None


def main():
    if INSIDE not in os.environ:
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    wanted = [int(packet) for packet in sys.argv[2].split(",")] if len(sys.argv) > 2 else [1472, 8972]
    remote = connect()
    kinds = list(SOURCE)
    print("| packet, sender | | " + " | ".join(kinds) + " |\n|---|---|" + "---|" * len(kinds))
    for packet, plain in ((1472, False), (1472, True), (8972, True)):
        if packet not in wanted:
            continue
        mtu = packet + 28
        run(f"ip link set local0 mtu {mtu}")
        run(f"nsenter -t {remote.pid} -n ip link set remote0 mtu {mtu}")
        row = f"{packet}, {'single packets' if plain else 'batches'}"
        best = [highest(remote, kind, plain, packet, seconds) for kind in kinds]
        cells = [f"{rate:.2f}" + ("" if lossy else " (sender limit)") for rate, lossy in best]
        print(f"| {row} | loss-free Gbit/s of payload | {' | '.join(cells)} |", flush=True)
        rate = min(rate for rate, _ in best if rate > 0) * 0.8
        runs = [[receive(remote, kind, plain, packet, rate, 2 * seconds) for _ in range(5)] for kind in kinds]
        middle = lambda kind, i: sorted(run[i] for run in kind)[2]
        cells = [f"{middle(kind, 2):.0f}" + (f" (loses {lost:.1%})" if (lost := middle(kind, 1)) else "") for kind in runs]
        print(f"| {row} | receiver's CPU ns per packet at {rate:.1f} Gbit/s | {' | '.join(cells)} |", flush=True)
    remote.kill()


if __name__ == "__main__":
    main()
