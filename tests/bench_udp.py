"""Compares UDP receive with reassembly of daq and of spead2, on the same packets, in one run.

Usage: python tests/bench_udp.py [SECONDS]

Needs numpy and spead2, and target/release/{daq,examples/spead_send}. The sender runs on core 0, the receiver
on core 1; both receivers have the same receive buffer. For each packet size, prints the highest rate at which three
runs lose nothing, and the CPU seconds per GB of payload at 0.9 of the lower of both rates. Prints Markdown.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time

from bench_common import HEAPS, ROOT, free_port, shape

BUFFER = 32 << 20
SPEAD2 = """
import sys, resource, spead2, spead2.recv
port, heap, seconds, buffer = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
pool = spead2.MemoryPool(heap, heap + 4096, 64, 64)
import logging; logging.disable(logging.CRITICAL)
stream = spead2.recv.Stream(
    spead2.ThreadPool(1, [1]),
    spead2.recv.StreamConfig(max_heaps=4, memory_allocator=pool),
    spead2.recv.RingStreamConfig(heaps=32))
stream.add_udp_reader(port, max_size=9200, buffer_size=buffer, bind_hostname="127.0.0.1")
print("ready", flush=True)
import threading
threading.Timer(seconds, stream.stop).start()
heaps = bytes_ = 0
for received in stream:
    heaps += 1
    bytes_ += received.heap_length if hasattr(received, "heap_length") else heap
usage = resource.getrusage(resource.RUSAGE_SELF)
print(heaps, usage.ru_utime + usage.ru_stime, flush=True)
"""
DAQ = """
[source.in]
driver = "udp"
listen = "127.0.0.1:{port}"
ring = "heaps"
cores = [1]
receive_buffer = "{buffer} B"
""" + HEAPS


def send(port, packet, rate, seconds):
    command = [f"{ROOT}/target/release/examples/spead_send", f"127.0.0.1:{port}", str(packet), str(rate), str(seconds), "0"]
    heaps, packets, payload, passed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return int(heaps), int(packets), int(payload), float(passed)


def spead2(packet, rate, seconds):
    payload, heap = shape(packet)
    port = free_port()
    command = ["taskset", "-c", "1", sys.executable, "-c", SPEAD2, str(port), str(heap), str(seconds + 2.0), str(BUFFER)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiver:
        receiver.stdout.readline()
        heaps, _, payload, passed = send(port, packet, rate, seconds)
        got, cpu = receiver.stdout.readline().split()
    return payload * 8 / passed / 1e9, 1 - int(got) / heaps, float(cpu) / (payload / 1e9)


def daq(packet, rate, seconds):
    payload, heap = shape(packet)
    port = free_port()
    with tempfile.TemporaryDirectory() as directory:
        config = f"{directory}/bench.toml"
        with open(config, "w") as file:
            file.write(DAQ.format(port=port, heap=heap, payload=payload, buffer=BUFFER))
        environment = dict(os.environ, XDG_STATE_HOME=directory, DAQ_LOG="error")
        command = ["taskset", "-c", "1", f"{ROOT}/target/release/daq", "run", config, "--for", f"{seconds + 2.0}s", "--report", "json"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as receiver:
            wait_bound(port)
            heaps, packets, payload, passed = send(port, packet, rate, seconds)
            report = json.loads(receiver.stdout.read())
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        sender = 0.0
    source = report["sources"]["in"]
    total = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # The sender uses a whole core while it runs; the remaining CPU time is that of the receiver.
    cpu = total - passed - sender
    return payload * 8 / passed / 1e9, 1 - source["delivered"] / packets, max(cpu, 0.0) / (payload / 1e9)


def wait_bound(port):
    for _ in range(200):
        with open("/proc/net/udp") as table:
            if any(line.split()[1].endswith(f":{port:04X}") for line in table.readlines()[1:]):
                time.sleep(0.3)
                return
        time.sleep(0.02)
    raise SystemExit("daq did not open its port")


def clean(receive, packet, rate, seconds):
    """Returns the highest rate sent in three runs, or None if one of them lost packets."""
    rates = []
    for _ in range(3):
        sent, lost, _ = receive(packet, rate, seconds)
        if lost > 0:
            return None
        rates.append(sent)
    # Use the maximum, because other load on the machine may slow the sender down temporarily.
    return max(rates)


def highest(receive, packet, seconds):
    """Returns the highest rate without loss, and whether a higher one lost packets. If none did, the sender is the limit."""
    best, step, lossy = 0.0, 8.0, False
    rate = 8.0
    while step >= 0.5:
        sent = clean(receive, packet, rate, seconds)
        if sent is None:
            lossy = True
            step /= 2
            rate = max(rate - step, 0.5)
        else:
            best = max(best, sent)
            # `rate` includes headers; `sent` is only the payload.
            if sent < rate * 0.95 * shape(packet)[0] / packet:
                break
            rate += step
            if lossy:
                step /= 2
    return best, lossy


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    print("| packet | | daq | spead2 | daq ÷ spead2 |\n|---|---|---|---|---|")
    for packet in (1472, 8972):
        (ours, our_loss), (theirs, their_loss) = highest(daq, packet, seconds), highest(spead2, packet, seconds)
        cells = [f"{rate:.1f}" if lossy else f"{rate:.1f} (sender limit)" for rate, lossy in ((ours, our_loss), (theirs, their_loss))]
        print(f"| {packet} | loss-free Gbit/s of payload | {cells[0]} | {cells[1]} | {ours / theirs:.2f} |", flush=True)
        rate = min(ours, theirs) * 0.9
        cpu = [sorted(receive(packet, rate, seconds * 2)[2] for _ in range(5))[2] for receive in (daq, spead2)]
        print(f"| {packet} | CPU s per GB at {rate:.1f} Gbit/s | {cpu[0]:.3f} | {cpu[1]:.3f} | {cpu[0] / cpu[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
