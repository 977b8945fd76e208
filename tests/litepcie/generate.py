"""Generates the Verilog of a PCIe endpoint with LitePCIe's DMA, and its csr.csv. Usage: generate.py DIRECTORY

The core is LitePCIe as `LiteXSoC.add_pcie` builds it. Two parts of a chip are replaced:

- The PHY is replaced by the pins of its two TLP streams and of its MSIs, so that a program can act as the bus.
- The sensor is replaced by a counter of 64-bit words, which starts at 0 when the writer is enabled. It advances with
  each word that the writer reads while the pin `stream_open` is high; `stream_taken` signals each word.
  `source_interval` is the number of cycles for which the counter pauses after each word.
"""

import os
import sys
from types import SimpleNamespace

from litepcie.common import dma_layout, get_bar_mask, msi_layout, phy_layout
from litex.build.generic_platform import Pins, Subsignal
from litex.build.io import CRG
from litex.build.sim import SimPlatform
from litex.gen import LiteXModule
from litex.soc.integration.export import get_csr_csv
from litex.soc.integration.soc_core import SoCMini
from litex.soc.interconnect import stream
from litex.soc.interconnect.csr import CSRStorage
from migen import If, Signal

WIDTH = 64
BAR0 = 128 << 10
# The payload size is 64 double words. It is constant, because the bus of this design does not negotiate it.
PAYLOAD = 256


def pins(*fields):
    return [Subsignal(name, Pins(width)) for name, width in fields]


IOS = [
    ("clock", 0, Pins(1)),
    ("reset", 0, Pins(1)),
    ("stream_open", 0, Pins(1)),
    ("stream_taken", 0, Pins(1)),
    # Streams from the host and to the host.
    ("rx", 0, *pins(("valid", 1), ("ready", 1), ("last", 1), ("dat", WIDTH), ("be", WIDTH // 8))),
    ("tx", 0, *pins(("valid", 1), ("ready", 1), ("last", 1), ("dat", WIDTH), ("be", WIDTH // 8))),
    ("msi", 0, *pins(("valid", 1), ("ready", 1), ("dat", 8))),
]


class Platform(SimPlatform):
    """A platform that has only pins and no timing constraints."""

    def add_false_path_constraint(self, *_clocks):
        pass


class Phy(LiteXModule):
    """The PHY interface that LitePCIe requires, with its streams connected to pins."""

    endianness = "big"
    qword_aligned = False

    def __init__(self, platform):
        self.data_width = WIDTH
        self.sink = stream.Endpoint(phy_layout(WIDTH))
        self.source = stream.Endpoint(phy_layout(WIDTH))
        self.msi = stream.Endpoint(msi_layout())
        self.id = Signal(16, reset=0x0100)
        self.bar0_size = BAR0
        self.bar0_mask = get_bar_mask(BAR0)
        self.max_payload_size = Signal(16, reset=PAYLOAD)
        self.max_request_size = Signal(16, reset=PAYLOAD)
        # This clock domain is only named in constraints, because the whole design has one clock.
        self.cd_pcie = SimpleNamespace(clk=Signal())

        rx, tx, msi = (platform.request(name) for name in ("rx", "tx", "msi"))
        first = Signal(reset=1)
        self.sync += If(rx.valid & rx.ready, first.eq(rx.last))
        self.comb += [
            self.source.valid.eq(rx.valid),
            self.source.first.eq(first),
            self.source.last.eq(rx.last),
            self.source.dat.eq(rx.dat),
            self.source.be.eq(rx.be),
            rx.ready.eq(self.source.ready),
            tx.valid.eq(self.sink.valid),
            tx.last.eq(self.sink.last),
            tx.dat.eq(self.sink.dat),
            tx.be.eq(self.sink.be),
            self.sink.ready.eq(tx.ready),
            msi.valid.eq(self.msi.valid),
            msi.dat.eq(self.msi.dat),
            self.msi.ready.eq(msi.ready),
        ]


class Source(LiteXModule):
    """The counter that replaces the sensor."""

    def __init__(self, enable, is_open, taken):
        self.source = source = stream.Endpoint(dma_layout(WIDTH))
        self.interval = CSRStorage(16, description="Cycles of pause after each word.")

        pause = Signal(16)
        self.comb += [
            source.valid.eq(enable & is_open & (pause == 0)),
            taken.eq(source.valid & source.ready),
        ]
        self.sync += [
            If(~enable,
                source.data.eq(0),
                pause.eq(0),
            ).Elif(taken,
                source.data.eq(source.data + 1),
                pause.eq(self.interval.storage),
            ).Elif(is_open & (pause != 0),
                pause.eq(pause - 1),
            )
        ]


class Design(SoCMini):
    # Same as in LitePCIe's own generator, so that addresses in csr.csv are offsets in BAR0.
    mem_map = {**SoCMini.mem_map, "csr": 0}

    def __init__(self, platform):
        self.crg = CRG(platform.request("clock"), platform.request("reset"))
        SoCMini.__init__(
            self,
            platform,
            clk_freq=int(125e6),
            csr_data_width=32,
            ident="",
            ident_version=False,
            with_timer=False,
        )
        self.pcie_phy = Phy(platform)
        self.add_pcie(phy=self.pcie_phy, ndmas=1, data_width=WIDTH, with_dma_buffering=False)
        self.source = Source(
            self.pcie_dma0.writer.enable, platform.request("stream_open"), platform.request("stream_taken")
        )
        self.comb += self.source.source.connect(self.pcie_dma0.sink)


def main(directory):
    os.makedirs(directory, exist_ok=True)
    os.chdir(directory)
    platform = Platform("SIM", IOS)
    design = Design(platform)
    platform.finalize(design)
    design.finalize()
    platform.get_verilog(design, name="litepcie").write("litepcie.v")
    with open("csr.csv", "w", encoding="utf-8") as file:
        file.write(get_csr_csv(design.csr_regions, design.constants, design.mem_regions))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
