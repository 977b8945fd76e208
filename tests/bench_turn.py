"""Compares the corner turn between GPUs of `daq bench turn` with all_to_all_single of PyTorch, which uses NCCL.

    python tests/bench_turn.py [--gpus N] [--rounds N] [--frames SIZES] [--rows SIZES] [BINARY]

Needs PyTorch, at least two GPUs, and target/release/daq or BINARY. Each GPU has its points of all channels, and gets all points
of its channels. Each round measures daq, then PyTorch with one process per GPU. Prints Markdown tables with the medians of the
GB/s over the links in all directions together, and the ratios. "NCCL" exchanges parts that are packed already. "NCCL + packing"
also packs and unpacks them, with two batches in flight. Both programs compare all words that arrive. Exits with 1 if a word is
wrong.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from bench_common import ROOT

# Bytes of each GPU per exchange, and number of exchanges per measurement.
BATCH, EXCHANGES = 256 << 20, 100
FACTOR = 0x1E3779B97F4A7C15
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}
METHODS = ["raw contiguous copies", "raw 2D copy per frame", "raw 3D copy of many frames",
           "raw 2D copy per channel of many frames", "rings"]


def size(text):
    number, unit = text.split()
    return round(float(number) * UNITS[unit])


class Turn:
    """Frames of `frame` bytes, of whose channels each of `gpus` GPUs has `row` bytes at first."""

    def __init__(self, rank, gpus, frame, row):
        self.rank, self.gpus = rank, gpus
        self.words, self.rows = row // 8, frame // (row * gpus)
        self.frames = max(1, BATCH * gpus // frame)
        own = self.rows // gpus
        self.given = self.content(rank, 0, self.rows)
        whole = (self.frames, own, gpus, self.words)
        self.got = [torch.full(whole, -1, dtype=torch.int64, device="cuda") for _ in range(2)]
        parts = (gpus, self.frames, own, self.words)
        self.sent = [torch.empty(parts, dtype=torch.int64, device="cuda") for _ in range(2)]
        self.received = [torch.empty_like(sent) for sent in self.sent]
        self.streams = [torch.cuda.Stream() for _ in range(2)]

    def content(self, gpu, first, count):
        """Returns the rows from `first` on of all frames of GPU `gpu`. All words of all GPUs differ."""
        frames, rows, words = (torch.arange(n, device="cuda") for n in (self.frames, count, self.words))
        at = (frames[:, None, None] * self.rows + rows[None, :, None] + first) * self.words + words
        return (at ^ (gpu << 40)) * FACTOR

    def pack(self, i):
        parts = self.given.view(self.frames, self.gpus, -1, self.words)
        self.sent[i].copy_(parts.transpose(0, 1))

    def unpack(self, i):
        self.got[i].copy_(self.received[i].permute(1, 2, 0, 3))

    def exchange(self, i, group, packs):
        with torch.cuda.stream(self.streams[i]):
            if packs:
                self.pack(i)
            work = dist.all_to_all_single(self.received[i], self.sent[i], group=group, async_op=True)
            work.wait()
            if packs:
                self.unpack(i)

    def rate(self, group, packs):
        """Returns the bytes per second that cross the links, of all GPUs together."""
        for i in (0, 1) * 2:
            self.exchange(i, group, packs)
        torch.cuda.synchronize()
        dist.barrier(group)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for i in range(EXCHANGES):
            self.exchange(i % 2, group, packs)
        torch.cuda.synchronize()
        took = torch.tensor(time.perf_counter() - start, device="cuda")
        dist.all_reduce(took, dist.ReduceOp.MAX, group)
        return EXCHANGES * self.given.nbytes * (self.gpus - 1) / took.item()

    def verify(self):
        """Compares all words of both batches. Returns their number."""
        own = self.rows // self.gpus
        for gpu in range(self.gpus):
            expected = self.content(gpu, self.rank * own, own)
            for got in self.got:
                assert torch.equal(got[:, :, gpu], expected), f"wrong words from GPU {gpu} on GPU {self.rank}"
        return sum(got.numel() for got in self.got)

    def measure(self, group):
        packed = self.rate(group, True)
        words = self.verify()
        return self.rate(group, False), packed, words


def work(rank, gpus, counts, file, pipe):
    """Measures what the pipe requests, on one GPU."""
    try:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", init_method=f"file://{file}", rank=rank, world_size=gpus,
                                device_id=torch.device("cuda", rank))
        groups = {count: dist.new_group(list(range(count))) for count in counts}
        while (request := pipe.recv()) is not None:
            count, frame, row = request
            result = Turn(rank, count, frame, row).measure(groups[count]) if rank < count else None
            torch.cuda.empty_cache()
            pipe.send(result)
        dist.destroy_process_group()
    except Exception:
        pipe.send(traceback.format_exc())


def nccl(pipes, shape):
    """Returns bytes per second of NCCL and of NCCL with packing, and the number of compared words."""
    for pipe in pipes:
        pipe.send(shape)
    results = [pipe.recv() for pipe in pipes]
    for result in results:
        if isinstance(result, str):
            sys.exit(result)
    return results[0][0], results[0][1], sum(result[2] for result in results if result)


def daq(options, gpus, counts):
    """Runs `daq bench turn`. Returns the rates of its methods for each number of GPUs, frame and row."""
    line = [options.binary, "bench", "turn", "--rounds", "1", "--window", options.window, "--json", "--frames", options.frames,
            "--rows", options.rows, "--gpus", ",".join(str(gpu) for gpu in range(gpus))]
    run = subprocess.run(line, stdout=subprocess.PIPE, text=True)
    if run.returncode:
        sys.exit(f"{' '.join(line)} failed with code {run.returncode}")
    tables = json.loads(run.stdout)
    print(tables[-1]["title"], file=sys.stderr)
    rates = {}
    for count, table in zip(counts, tables, strict=True):
        for row in table["rows"]:
            rates.setdefault((count, row["frame"], row["row"]), {})[row["method"]] = row
    return rates


def show(counts, results):
    """Prints the tables."""
    median = lambda rounds: statistics.median(rounds) if rounds else float("nan")
    for count in counts:
        print(f"\n{count} GPUs, GB/s over the links\n")
        print("| frame | row | contiguous | 2D, frames | 3D | 2D, channels | daq | NCCL | NCCL + packing |"
              " daq ÷ contiguous | daq ÷ NCCL | daq ÷ NCCL + packing | daq, cores |")
        print("|" + "---|" * 13)
        for (gpus, frame, row), methods in results.items():
            if gpus != count:
                continue
            rates = [median(methods.get(name, [])) for name in METHODS + ["NCCL", "NCCL + packing"]]
            ratios = [rates[4] / rates[at] for at in (0, 5, 6)]
            cells = [f"{rate:.1f}" for rate in rates] + [f"{ratio:.3f}" for ratio in ratios]
            print(f"| {frame} | {row} | " + " | ".join(cells) + f" | {median(methods['cores']):.2f} |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=torch.cuda.device_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", default="100 ms")
    parser.add_argument("--frames", default="1 MiB,8 MiB,64 MiB")
    parser.add_argument("--rows", default="512 B,4 KiB,64 KiB")
    parser.add_argument("binary", nargs="?", default=os.path.join(ROOT, "target/release/daq"))
    options = parser.parse_args()
    gpus = options.gpus
    if gpus < 2:
        sys.exit("this benchmark needs at least two GPUs")
    # Multicast of NVLink is not needed for this exchange, and is not available on all machines.
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    counts = [count for count in (2, 4, 8, 16) if count < gpus] + [gpus]
    context = mp.get_context("spawn")
    results, words = {}, 0
    with tempfile.TemporaryDirectory() as directory:
        ends = [context.Pipe() for _ in range(gpus)]
        file = os.path.join(directory, "rendezvous")
        workers = [context.Process(target=work, args=(rank, gpus, counts, file, end), daemon=True)
                   for rank, (_, end) in enumerate(ends)]
        for worker in workers:
            worker.start()
        pipes = [end for end, _ in ends]
        for _ in range(options.rounds):
            for (count, frame, row), rows in daq(options, gpus, counts).items():
                methods = results.setdefault((count, frame, row), {})
                alone, packed, compared = nccl(pipes, (count, size(frame), size(row)))
                words += compared
                found = {name: rows[name]["GB/s over links"] for name in METHODS}
                found |= {"NCCL": alone / 1e9, "NCCL + packing": packed / 1e9, "cores": rows["rings"]["cores"]}
                for name, rate in found.items():
                    if isinstance(rate, (int, float)):
                        methods.setdefault(name, []).append(rate)
        for pipe, worker in zip(pipes, workers):
            pipe.send(None)
            worker.join(10)
    show(counts, results)
    print(f"\n{words} words of PyTorch and all bytes of daq are right")


if __name__ == "__main__":
    main()
