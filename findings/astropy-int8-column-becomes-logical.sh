#!/usr/bin/env bash
# astropy 8.0.2: an int8 column of a FITS table is written as true and false
#
# Guess:   FITS has no signed bytes, so astropy writes int8 with TZERO=-128, as it does for int8 images and as it writes
#          uint16 and uint64 columns with an offset. Or it raises an error.
# Instead: BinTableHDU and Table.write map int8 to the logical type L. The values -128, 0, 5, 127 are stored as the bytes
#          T, F, T, T, and read as True, False, True, True. No warning. The uint16 column beside it is right. An int8 image
#          with the same values is right, and fitsio 1.4.2 writes the same table with TZERO=-128.
# Matters: int8 is a usual type for voltages of telescopes and radios. The samples are lost when the table is written.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need astropy==8.0.2 fitsio==1.4.2 numpy==2.4.6
check <<'END'
import fitsio
import numpy as np
from astropy.io import fits
from astropy.table import Table

table = np.array([(-128, 1), (0, 65535), (5, 3), (127, 4)], [("voltage", "i1"), ("count", "u2")])
fits.BinTableHDU(table).writeto("hdu.fits")
Table(table).write("table.fits")
fitsio.write("fitsio.fits", table)
for name, form, voltages in (
    ("hdu", "L", [True, False, True, True]),
    ("table", "L", [True, False, True, True]),
    ("fitsio", "B", [-128, 0, 5, 127]),
):
    with fits.open(f"{name}.fits") as file:
        header, read = file[1].header, file[1].data
        print(name, "TFORM1", header["TFORM1"], read["voltage"], read["count"])
        assert header["TFORM1"] == form
        assert read["voltage"].tolist() == voltages and read["count"].tolist() == table["count"].tolist()
with open("hdu.fits", "rb") as file:
    data = file.read()[-2880:]
assert data[:12:3] == b"TFTT"

fits.writeto("image.fits", table["voltage"])
assert fits.getdata("image.fits").tolist() == table["voltage"].tolist()
END
