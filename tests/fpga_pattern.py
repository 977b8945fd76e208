"""Compares a recording of a simulated card's stream with the pattern `counter`, byte by byte.

    fpga_pattern.py DIRECTORY FRAME int16|float32 [GAPS]

FRAME is the bytes of a frame of the stream; float32 are the stream's int16 values as `convert` makes them. Frames are
whole and in order; between two of them at most GAPS times, 0 without it, frames may be missing. Prints what was found;
exit code 1 where a byte differs. Needs nothing but Python.
"""

import array
import glob
import os
import sys

WORD = 8


def expected(first, words, kind):
    """The bytes of `words` words of the stream from word `first` on."""
    stream = array.array("Q", range(first, first + words))
    if sys.byteorder == "big":
        stream.byteswap()
    if kind == "int16":
        return stream.tobytes()
    samples = array.array("h", stream.tobytes())
    return array.array("f", samples).tobytes()


def word(data, kind):
    """The number of the word that `data` begins with."""
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
                    sys.exit(f"{name}: frame {frames} is not what the card sent from word {first} on")
                if next_word is not None and first != next_word:
                    if first < next_word:
                        sys.exit(f"{name}: frame {frames} begins with word {first}, behind {next_word}")
                    found += 1
                begin = first if begin is None else begin
                next_word = first + words
                frames += 1
    print(f"{frames} frames of {frame} bytes from frame {(begin or 0) // words} on, {found} gaps")
    if frames == 0 or found > gaps:
        sys.exit(f"{directory}: frames are missing")


main(sys.argv[1], int(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:]))
