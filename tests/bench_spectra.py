"""Measures the device code of power-spectrum for powers of two, beside cuFFT and PyTorch, on samples in GPU memory.

    python tests/bench_spectra.py [POINTS...]

Measures transforms of POINTS points; without POINTS, of all sizes. Needs PyTorch and CuPy. Prints GB/s of int16 input.
"cuFFT" transforms float32 numbers that are already converted and does nothing else; "eager" and "compile" convert, apply
a window, transform, square and average with PyTorch. Exits with 1 if a spectrum differs from a float64 reference by more
than 1e-5 of the bin or of the mean, whichever is larger.

The work of each burst of 64 MiB is recorded in a graph, so that the figures do not contain the time of launches on the host.
The sizes of pieces and rounds are those of pipelines/src/kernels/power_spectrum/cuda.rs.
"""

import gzip
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import cupy as cp
import numpy as np
import torch

GENERATED = Path(__file__).resolve().parent.parent / "pipelines/generated"
# The device code, unpacked.
UNPACKED = TemporaryDirectory()
FRAME, BURST, FRAMES = 4 << 20, 16, 1024
POINTS, RESIDENT, MAX_TERMS = 16, 512, 64
PARTIAL_BYTES, WORK_BYTES = 32 << 20, 32 << 20
SIZES = list(map(int, sys.argv[1:])) or [256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 1 << 20]
# Sizes that are also measured with complex samples and with `torch.compile`.
COMPILED = [size for size in (1024, 4096, 65536) if size in SIZES]
DEVICE = cp.cuda.runtime.getDeviceProperties(0)
PROCESSORS, MAX_SHARED = DEVICE["multiProcessorCount"], DEVICE["sharedMemPerBlockOptin"]


def parameters():
    """Returns types and names of the parameters of the device code."""
    header = (GENERATED / "parameters.cuh").read_text()
    text = re.search(r"#define SPECTRA_PARAMETERS((?:.*\\\n)*.*)\n", header)[1].replace("\\\n", " ")
    pairs = [parameter.strip().rsplit(" ", 1) for parameter in text.split(",")]
    types = {"u64": np.uint64, "u32": np.uint32, "double": np.float64}
    return [(types.get(kind, np.uint64), name.removeprefix("given_")) for kind, name in pairs]


PARAMETERS = parameters()


def above(a, b):
    """Returns a / b, rounded up."""
    return -(-a // b)


def function(size, name):
    file = f"power_of_two_{size}.ptx" if size else "power_spectrum.ptx"
    ptx = Path(UNPACKED.name) / file
    ptx.write_bytes(gzip.decompress((GENERATED / f"{file}.gz").read_bytes()))
    return cp.RawModule(path=str(ptx)).get_function(name)


class Batch:
    """Transforms of one size that a block computes side by side."""

    def __init__(self, name, size, threads, most):
        each = size // POINTS
        self.size, self.count = size, max(1, min(threads // each, most))
        self.threads = each * self.count
        points = self.count * ((size + size // 16) | 1)
        double = 2 * points * 8 * max(1, RESIDENT // self.threads) <= MAX_SHARED
        self.shared, self.second = points * 8 * (2 if double else 1), points if double else 0
        self.roots = cp.asarray(np.exp(-2j * np.pi * np.arange(size) / size).astype(np.complex64))
        self.function = function(size, f"{name}_{size}")
        self.function.max_dynamic_shared_size_bytes = max(self.shared, 48 << 10)

    def keys(self, name):
        return {f"{name}_roots": self.roots.data.ptr, f"{name}_size": self.size, f"{name}_count": self.count,
                f"{name}_second": self.second}

    def launch(self, blocks, arguments):
        self.function((blocks,), (self.threads,), arguments, shared_mem=self.shared)


class Spectra:
    """The kernel for frames of int16 numbers; each output is the mean of `each` spectra (default: all of a frame)."""

    def __init__(self, size, is_complex=False, each=None):
        self.size, self.is_complex = size, is_complex
        self.bins = size if is_complex else size // 2 + 1
        self.pair = 1 if is_complex else 2
        self.points = FRAME // 2 // (2 if is_complex else 1)
        self.spectra = self.points // size
        self.each = each or self.spectra
        self.columns, self.width, self.work = None, self.bins, 1 << 60
        if size <= 8192:
            threads = 128 if size <= 2048 else size // POINTS
            self.rows = Batch("power_spectrum_short", size, threads, above(self.each, self.pair))
        else:
            down = 1 << (size.bit_length() - 1) // 2
            threads = lambda n: 128 if n <= 256 else 256 if n <= 512 else 512
            self.columns = Batch("power_spectrum_columns", down, threads(down), 1 << 30)
            self.rows = Batch("power_spectrum_rows", size // down, threads(size // down), 1 << 30)
            self.width, self.work = size, max(WORK_BYTES // (size * 8) * self.pair, self.pair)
        self.combine = function(0, "power_spectrum_combine")
        self.sets = max(min(PARTIAL_BYTES // (self.width * 4), 1 << 16), 1)
        self.step = self.pair * (1 if self.columns else self.rows.count)
        self.most = MAX_TERMS * self.step
        self.blocks = PROCESSORS * max(1, RESIDENT // self.rows.threads) * (1 if self.columns else 2)
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
        self.factor = 1 / window.sum() ** 2
        self.window = cp.asarray(window.astype(np.float32))
        self.all_roots = cp.asarray(np.exp(-2j * np.pi * np.arange(size) / size).astype(np.complex64))
        self.partial = cp.empty(self.sets * self.width, np.float32)
        self.space = cp.empty(self.work * size if self.columns else 1, np.complex64)
        self.carry = [cp.zeros(self.bins), cp.zeros(self.bins)]

    def rounds(self, frames):
        """Yields the first spectrum, the number of spectra, those that complete the first output, the number of outputs
        and of complete ones, and whether the first output continues."""
        first, end, pending = 0, frames * self.spectra, 0
        while first < end:
            left = self.each - pending
            room = left + (max(self.sets // 2, 1) - 1) * self.each
            total = min(end - first, room, self.work, max(self.sets // 6, 1) * self.most)
            more = max(total - left, 0)
            outputs, complete = (1, 0) if total < left else (1 + above(more, self.each), 1 + more // self.each)
            yield first, total, min(left, total), outputs, complete, pending > 0
            first += total
            pending = 0 if complete == outputs else (pending + total) % self.each

    def launch(self, samples, slot, out):
        """Launches the work of a burst; returns the number of outputs."""
        made = 0
        for first, total, left, outputs, complete, continues in self.rounds(BURST):
            each = min(self.each, total)
            groups = above(self.columns.size, self.rows.count) if self.columns else 1
            chunk = min(self.most, above(above(total * groups, self.blocks), self.step) * self.step)
            longest = total if outputs == 1 else max(left, each)
            while chunk < self.most and above(longest, chunk) * outputs > self.sets:
                chunk = min(2 * chunk, self.most)
            pieces = above(longest, chunk)
            direct = not self.columns and pieces == 1 and complete == outputs and not continues
            keys = dict(
                from_base=samples.data.ptr, from_stride=FRAME, from_slots=len(samples), from_first=slot + first // self.spectra,
                to_base=out.data.ptr + made * self.bins * 4, to_stride=self.bins * 4, to_slots=1 << 30, cut_total=total,
                cut_left=left, cut_each=each, all_roots=self.all_roots.data.ptr, window=self.window.data.ptr,
                work=self.space.data.ptr, partial=self.partial.data.ptr, carry=self.carry[1].data.ptr,
                carried=self.carry[0].data.ptr if continues else 0, point_step=1, channel_step=self.points, hop=self.size,
                spectra=self.spectra, origin=first % self.spectra, chunk=chunk, factor=self.factor / self.each, pieces=pieces,
                channels=1, scalar=2, complex=int(self.is_complex), block=self.size, bins=self.bins, width=self.width,
                complete=complete, direct=int(direct), **self.rows.keys("rows"))
            if self.columns:
                keys |= self.columns.keys("columns")
            unknown = keys.keys() - {name for _, name in PARAMETERS}
            assert not unknown, unknown
            arguments = tuple(kind(keys.get(name, 0)) for kind, name in PARAMETERS)
            if self.columns:
                self.columns.launch(total * (self.rows.size // self.columns.count), arguments)
            self.rows.launch(outputs * pieces * groups, arguments)
            if not direct:
                self.combine((above(self.bins, 32) * outputs,), (256,), arguments)
            if complete < outputs:
                self.carry.reverse()
            made += complete
        return made

    def error(self, samples):
        """Returns the largest error of the first two outputs of a burst, relative to the bin or the mean."""
        out = cp.full((BURST * self.spectra // self.each + 2, self.bins), np.nan, np.float32)
        made = self.launch(samples, 3, out)
        count = min(made, 2)
        numbers = samples[3:3 + BURST].reshape(-1)[:count * self.each * self.size * (2 if self.is_complex else 1)]
        window = cp.asarray(0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self.size) / self.size))
        x = numbers.astype(cp.float64)
        if self.is_complex:
            blocks = x.view(cp.complex128).reshape(count, self.each, self.size)
            power = cp.fft.fftshift((cp.abs(cp.fft.fft(blocks * window)) ** 2).mean(axis=1), axes=1)
        else:
            power = (cp.abs(cp.fft.rfft(x.reshape(count, self.each, self.size) * window)) ** 2).mean(axis=1)
        power *= self.factor
        assert bool(cp.isfinite(out[:made]).all()), "an output was not written"
        return float((cp.abs(out[:count] - power) / cp.maximum(power, power.mean(axis=1, keepdims=True))).max())


def median(call, repeat):
    """Returns the median duration of call(i) in seconds."""
    times = []
    for i in range(repeat + 3):
        start, stop = cp.cuda.Event(), cp.cuda.Event()
        start.record()
        call(i)
        stop.record()
        stop.synchronize()
        times.append(cp.cuda.get_elapsed_time(start, stop) / 1e3)
    return sorted(times[3:])[repeat // 2]


wrong = []


def measure(what, spectra, samples):
    """Returns GB/s of input of all bursts."""
    error = spectra.error(samples)
    if not error <= 1e-5:
        wrong.append(what)
    out = cp.empty((BURST * spectra.spectra // spectra.each + 2, spectra.bins), np.float32)
    with cp.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        for slot in range(0, FRAMES, BURST):
            spectra.launch(samples, slot, out)
        graph = stream.end_capture()
        rate = samples.nbytes / 1e9 / median(lambda _: graph.launch(stream), 5)
    print(f"{what:45} {rate:8.0f} GB/s, error {error:.1e}", flush=True)
    return rate


def references(samples, table):
    """Measures cuFFT and PyTorch on 64 MiB of int16 numbers, rotating among four sets."""
    numbers = torch.from_dlpack(samples.reshape(-1)[:(BURST * FRAME // 2) * 4]).view(4, -1)
    timed = lambda call: numbers.nbytes / 4 / 1e9 / median(call, 12)
    for size in SIZES:
        floats = numbers.float().view(4, -1, size)
        table[size].append(timed(lambda i: torch.fft.rfft(floats[i % 4])))
        del floats
    for size in COMPILED:
        window = torch.hann_window(size, device="cuda")

        def spectrum(x):
            f = torch.fft.rfft(x.view(-1, size).float() * window)
            return (f.real ** 2 + f.imag ** 2).mean(0)

        compiled = torch.compile(spectrum, dynamic=False)
        table[size] += [timed(lambda i: call(numbers[i % 4])) for call in (spectrum, compiled)]


def main():
    torch.manual_seed(1)
    samples = torch.randint(-2000, 2000, (FRAMES * FRAME // 2,), dtype=torch.int16, device="cuda")
    samples = cp.from_dlpack(samples).reshape(FRAMES, -1)
    copy = cp.empty_like(samples)
    limit = samples.nbytes / 1e9 / median(lambda _: cp.copyto(copy, samples), 5)
    del copy
    table = {size: [measure(f"{size} points", Spectra(size), samples)] for size in SIZES}
    for size in COMPILED:
        measure(f"{size} points, complex", Spectra(size, is_complex=True), samples)
    if 1024 in SIZES:
        measure("1024 points, one output per spectrum", Spectra(1024, each=1), samples)
        measure("1024 points, one output per 8 spectra", Spectra(1024, each=8), samples)
    references(samples, table)
    print(f"\n{DEVICE['name'].decode()}; GB/s of int16 input; a copy on the device: {limit:.0f}")
    print(f"{'points':>8} {'daq':>8} {'cuFFT':>8} {'eager':>8} {'compile':>8}")
    for size, rates in table.items():
        print(f"{size:>8} " + " ".join(f"{rate:8.0f}" for rate in rates))
    if wrong:
        sys.exit(f"wrong: {wrong}")


if __name__ == "__main__":
    main()
