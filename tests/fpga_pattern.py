"""Compares a recording of a simulated card's stream with the pattern `counter`, byte by byte.

    fpga_pattern.py DIRECTORY FRAME int16|float32 [GAPS]

FRAME is the number of bytes per frame of the stream. With float32, the recording contains the stream's int16 values
after the kernel `convert`. Frames must be complete and in order. Frames may be missing at most GAPS times (default 0).
Prints the result, and exits with 1 if a byte differs. Needs only Python.
"""

import array
import glob
import os
import sys

WORD = 8


def expected(first, words, kind):
    """Returns the bytes of `words` words of the stream, starting with word `first`."""
    stream = array.array("Q", range(first, first + words))
    if sys.byteorder == "big":
        stream.byteswap()
    if kind == "int16":
        return stream.tobytes()
    samples = array.array("h", stream.tobytes())
    return array.array("f", samples).tobytes()


def word(data, kind):
    """Returns the number of the first word in `data`."""
    if kind == "float32":
        samples = array.array("f", data[: 4 * 4])
        data = array.array("h", map(int, samples)).tobytes()
    return int.from_bytes(data[:WORD], "little")


def main(directory, frame, kind, gaps=0):
    words = frame // WORD
    bytes_of_frame = frame * 2 if kind == "float32" else frame
    names = sorted(glob.glob(os.path.join(directory, "*.sigmf-data")))
    found = frames = 0
    begin = next_word = None
    for name in names:
        with open(name, "rb") as file:
            while data := file.read(bytes_of_frame):
                if len(data) != bytes_of_frame:
                    sys.exit(f"{name}: the last frame has {len(data)} of {bytes_of_frame} bytes")
                first = word(data, kind)
                if first % words or data != expected(first, words, kind):
                    sys.exit(f"{name}: frame {frames} differs from the pattern that begins with word {first}")
                if next_word is not None and first != next_word:
                    if first < next_word:
                        sys.exit(f"{name}: frame {frames} begins with word {first}, which is before {next_word}")
                    found += 1
                begin = first if begin is None else begin
                next_word = first + words
                frames += 1
    print(f"{frames} frames of {frame} bytes from frame {(begin or 0) // words} on, {found} gaps")
    if frames == 0 or found > gaps:
        sys.exit(f"{directory}: {frames} frames, {found} gaps; expected at least 1 frame and at most {gaps} gaps")


main(sys.argv[1], int(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:]))
