"""Compares the CPU time per GB of daq's sink `udp` and of spead2's sender, on the same packets, in one run.

Usage: python tests/bench_send.py [GB] [BINARY]

Needs root, numpy and spead2, and target/release/daq, or the program BINARY. Both senders send heaps of 1 MiB to an interface of
type `bridge` without ports, in an own network namespace. The interface accepts large messages like a network card with UDP
segmentation offload, and discards them, so that no receiver is measured. `plain` is without segmentation offload, which spead2
4.5.1 does not use. The CPU time of daq is that of the whole process, minus that of the same process with the sink `null`, because the frames
come from the source `sim`. The CPU time of spead2 is that of the process from before its first heap until after its last one;
spead2 sends the same memory again and again. Prints Markdown.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile

from bench_common import ROOT

HEAP = 1 << 20
ROUNDS = 3
TO = ("10.99.0.2", 7148)
SPEAD2 = """
import json, os, resource, sys
import numpy as np, spead2, spead2.send
job = json.loads(sys.argv[1])
config = spead2.send.StreamConfig(max_packet_size=job["packet"], max_heaps=job["max_heaps"])
stream = spead2.send.UdpStream(spead2.ThreadPool(), [("10.99.0.2", 7148)], config, **job["stream"])
items = spead2.send.ItemGroup()
items.add_item(0x3300, "samples", "", shape=(job["heap"],), dtype=np.uint8)
items[0x3300].value = np.zeros(job["heap"], np.uint8)
stream.send_heap(items.get_heap(descriptors="all", data="none"))
heap = items.get_heap(descriptors="none", data="all")
group = [spead2.send.HeapReference(heap) for _ in range(job["group"])]
def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
before, sent = used(), 0
while sent < job["heaps"]:
    if len(group) == 1:
        stream.send_heap(heap)
    else:
        stream.send_heaps(group, spead2.send.GroupMode.SERIAL)
    sent += len(group)
print((used() - before) / (sent * job["heap"] / 1e9), flush=True)
# At the exit of the interpreter, the threads of spead2 can wait for each other.
os._exit(0)
"""
DAQ = """
[source.in]
driver = "sim"
ring = "heaps"
pace = "free"
pattern = "silence"
packet = "1 MiB"
frames = {heaps}
[ring.heaps]
memory = "host"
slot = "1 MiB"
slots = 32
[sink.out]
input = "heaps"
{sink}
"""
UDP = """driver = "udp"
to = "10.99.0.2:7148"
offload = {offload}
[sink.out.format]
kind = "spead"
packet = {payload}
"""


def daq(binary, heaps, sink):
    """Returns the CPU seconds of a run, and its report."""
    with tempfile.TemporaryDirectory() as directory:
        config = f"{directory}/bench.toml"
        with open(config, "w") as file:
            file.write(DAQ.format(heaps=heaps, sink=sink))
        environment = dict(os.environ, XDG_STATE_HOME=directory, DAQ_LOG="error")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([binary, "run", config, "--report", "json"], check=True, capture_output=True, text=True, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, json.loads(done.stdout)


def ours(binary, heaps, packet, offload):
    payload = (packet - 48) // 8 * 8
    sink = UDP.format(payload=payload, offload=str(offload).lower())
    total, report = daq(binary, heaps, sink)
    sent = report["sinks"]["out"]
    assert sent["frames"] == heaps and sent["packets"] == sent["sent_packets"], sent
    idle, _ = daq(binary, heaps, 'driver = "null"')
    return (total - idle) / (heaps * HEAP / 1e9)


def theirs(heaps, packet, group, stream):
    job = {"packet": packet, "heap": HEAP, "heaps": heaps, "group": group, "max_heaps": max(4, group), "stream": stream}
    done = subprocess.run([sys.executable, "-c", SPEAD2, json.dumps(job)], check=True, capture_output=True, text=True)
    return float(done.stdout)


def network():
    """Sets up the interface. An address without a host needs a fixed MAC address."""
    for command in (
        "ip link add discard0 mtu 9000 type bridge",
        "ip address add 10.99.0.1/24 dev discard0",
        "ip link set discard0 up",
        "ip neigh replace 10.99.0.2 lladdr 02:00:00:00:00:02 dev discard0",
    ):
        subprocess.run(command.split(), check=True)


def main():
    if "BENCH_SEND_NAMESPACE" not in os.environ:
        environment = dict(os.environ, BENCH_SEND_NAMESPACE="1")
        os.execvpe("unshare", ["unshare", "--net", sys.executable, *sys.argv], environment)
    network()
    heaps = int(float(sys.argv[1] if len(sys.argv) > 1 else 8) * 1e9 / HEAP)
    binary = sys.argv[2] if len(sys.argv) > 2 else f"{ROOT}/target/release/daq"
    print("| packet, bytes | daq, s per GB | daq, plain | spead2, defaults | spead2, tuned | daq ÷ best of spead2 |\n|---|---|---|---|---|---|")
    for packet in (1472, 8972):
        ways = (
            lambda: ours(binary, heaps, packet, True),
            lambda: ours(binary, heaps // 4, packet, False),
            lambda: theirs(heaps, packet, 1, {}),
            lambda: theirs(heaps, packet, 16, {"buffer_size": 4 << 20}),
        )
        # One after the other, so that other load on the machine affects all of them alike.
        rounds = [[way() for way in ways] for _ in range(ROUNDS)]
        cpu = [sorted(values)[ROUNDS // 2] for values in zip(*rounds)]
        ratio = cpu[0] / min(cpu[2:])
        print(f"| {packet} | " + " | ".join(f"{seconds:.3f}" for seconds in cpu) + f" | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
