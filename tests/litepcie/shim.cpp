// The bus of a simulated LitePCIe endpoint behind a small C interface: registers are read and written by TLPs, the
// TLPs and MSIs that the core emits are events in the order of their ends.
//
// A TLP passes the 64-bit streams of LitePCIe's PHY as double words, the first in the low half; header words as they
// are, payload words with their bytes swapped (a PHY of "big" endianness). First and last byte enables are all ones
// in everything the core emits or takes here.

#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

#include "Vlitepcie.h"
#include "verilated.h"

namespace {

// Header word 0: format [30:29], type [28:24], length in double words [9:0].
constexpr uint32_t READ = 0x00, READ_64 = 0x20, WRITE = 0x40, WRITE_64 = 0x60, COMPLETION = 0x4a;
constexpr uint32_t HOST = 0x0000;   // Our requester id.
constexpr uint32_t CORE = 0x0100;   // The core's, as the generator sets it.
constexpr unsigned TIMEOUT = 4096; // Maximum number of cycles for a register access; the core needs a few tens.

uint32_t swapped(uint32_t word) { return __builtin_bswap32(word); }

} // namespace

extern "C" {

enum litepcie_kind : uint32_t {
    LITEPCIE_WRITE = 1, // Memory is written.
    LITEPCIE_READ = 2,  // Memory is read; wants litepcie_complete with its tag.
    LITEPCIE_MSI = 3,   // An MSI; its vector is the address.
    LITEPCIE_ODD = 4,   // A TLP that cannot be understood; its first header word is the address.
};

struct litepcie_event {
    uint32_t kind;
    uint32_t bytes;
    uint64_t address;
    uint32_t tag;
    uint32_t header_words;
    uint8_t data[256]; // Of a write: as many bytes as the length says, in the order of addresses.
};
}

struct litepcie {
    VerilatedContext context;
    Vlitepcie core{&context};
    std::deque<uint64_t> to_core; // Beats, and beside each:
    std::deque<uint16_t> marks;   // byte enables [7:0], last [8].
    std::vector<uint32_t> from_core;
    std::deque<litepcie_event> events;
    uint64_t taken = 0; // Words of the stream since the last reset.
    bool answered = false;
    uint32_t answer = 0;
    uint8_t tag = 0;

    // One cycle; true if the core emitted something in it.
    bool tick(bool open) {
        core.stream_open = open;
        core.tx_ready = 1;
        core.msi_ready = 1;
        core.rx_valid = !to_core.empty();
        if (core.rx_valid) {
            core.rx_dat = to_core.front();
            core.rx_be = marks.front() & 0xff;
            core.rx_last = marks.front() >> 8;
        }
        core.clock = 0;
        core.eval();
        if (core.rx_valid && core.rx_ready) {
            to_core.pop_front();
            marks.pop_front();
        }
        taken += core.stream_taken;
        const bool msi = core.msi_valid;
        const bool tlp = core.tx_valid;
        if (tlp) {
            if (core.tx_be & 0x0f) {
                from_core.push_back(static_cast<uint32_t>(core.tx_dat));
            }
            if (core.tx_be & 0xf0) {
                from_core.push_back(static_cast<uint32_t>(core.tx_dat >> 32));
            }
            if (core.tx_last) {
                take();
                from_core.clear();
            }
        }
        if (msi) {
            litepcie_event event{};
            event.kind = LITEPCIE_MSI;
            event.address = core.msi_dat;
            events.push_back(event);
        }
        core.clock = 1;
        core.eval();
        return tlp || msi;
    }

    // Understands the TLP that has come.
    void take() {
        const auto &words = from_core;
        litepcie_event event{};
        event.kind = LITEPCIE_ODD;
        event.address = words.empty() ? 0 : words[0];
        const uint32_t form = words.empty() ? ~0u : (words[0] >> 24) & 0x7f;
        const size_t count = words.empty() ? 0 : ((words[0] - 1) & 0x3ff) + 1;
        const size_t header = form == READ_64 || form == WRITE_64 ? 4 : 3;
        const size_t payload = form == READ || form == READ_64 ? 0 : count;
        if (words.size() == header + payload) {
            if (form == COMPLETION) {
                if (count == 1 && ((words[2] >> 8) & 0xff) == tag && (words[1] >> 13 & 7) == 0) {
                    answered = true;
                    answer = swapped(words[3]);
                    return;
                }
            } else if (form != ~0u && count * 4 <= sizeof event.data) {
                event.kind = payload ? LITEPCIE_WRITE : LITEPCIE_READ;
                event.address = header == 4 ? uint64_t{words[2]} << 32 | words[3] : words[2];
                event.bytes = static_cast<uint32_t>(count * 4);
                event.tag = words[1] >> 8 & 0xff;
                event.header_words = static_cast<uint32_t>(header);
                for (size_t i = 0; i < payload; i++) {
                    const uint32_t word = swapped(words[header + i]);
                    std::memcpy(event.data + 4 * i, &word, 4);
                }
            }
        }
        events.push_back(event);
    }

    void send(const std::vector<uint32_t> &words) {
        for (size_t i = 0; i < words.size(); i += 2) {
            const bool whole = i + 1 < words.size();
            to_core.push_back(words[i] | (whole ? uint64_t{words[i + 1]} << 32 : 0));
            marks.push_back((whole ? 0xff : 0x0f) | (i + 2 >= words.size() ? 0x100 : 0));
        }
    }
};

extern "C" {

// A core after its reset; nothing is open.
litepcie *litepcie_new() { return new litepcie; }

void litepcie_free(litepcie *it) { delete it; }

// Everything as after power-on, whatever was under way forgotten.
void litepcie_reset(litepcie *it) {
    it->to_core.clear();
    it->marks.clear();
    it->core.reset = 1;
    for (int i = 0; i < 16; i++) {
        it->tick(false);
    }
    it->core.reset = 0;
    it->from_core.clear();
    it->events.clear();
    it->answered = false;
    it->taken = 0;
}

// Clocks the core with the stream of the sensor open until it has taken so many words, or so many cycles have passed;
// how many words it took.
uint32_t litepcie_run(litepcie *it, uint32_t words, uint32_t cycles) {
    const uint64_t before = it->taken;
    while (it->taken - before < words && cycles--) {
        it->tick(true);
    }
    return static_cast<uint32_t>(it->taken - before);
}

// Clocks the core with the stream closed until it has emitted nothing for `quiet` cycles, or `limit` have passed;
// whether it became quiet.
int litepcie_settle(litepcie *it, uint32_t quiet, uint32_t limit) {
    for (uint32_t still = 0; limit--;) {
        still = it->tick(false) || !it->to_core.empty() ? 0 : still + 1;
        if (still == quiet) {
            return 1;
        }
    }
    return 0;
}

// Writes a register; it is set when the core has settled.
void litepcie_write(litepcie *it, uint32_t offset, uint32_t value) {
    it->send({WRITE << 24 | 1, HOST << 16 | 0x0f, offset, swapped(value)});
}

// Reads a register, with the stream closed; 1 and its value, or 0 if no completion comes.
int litepcie_read(litepcie *it, uint32_t offset, uint32_t *value) {
    it->answered = false;
    it->tag++;
    it->send({READ << 24 | 1, HOST << 16 | uint32_t{it->tag} << 8 | 0x0f, offset});
    for (unsigned i = 0; i < TIMEOUT && !it->answered; i++) {
        it->tick(false);
    }
    *value = it->answer;
    return it->answered;
}

// Answers a read of the core: `bytes`, at most 256 and a multiple of 4, from `address`.
void litepcie_complete(litepcie *it, uint32_t tag, uint64_t address, const uint8_t *data, uint32_t bytes) {
    std::vector<uint32_t> words{
        COMPLETION << 24 | bytes / 4,
        HOST << 16 | bytes,
        CORE << 16 | tag << 8 | static_cast<uint32_t>(address & 0x7f),
    };
    for (uint32_t i = 0; i < bytes; i += 4) {
        uint32_t word;
        std::memcpy(&word, data + i, 4);
        words.push_back(swapped(word));
    }
    it->send(words);
}

// The next event into `event`; 0 if there is none.
int litepcie_next(litepcie *it, litepcie_event *event) {
    if (it->events.empty()) {
        return 0;
    }
    *event = it->events.front();
    it->events.pop_front();
    return 1;
}

// The bytes of an event, for the other side to compare with its own.
uint32_t litepcie_event_bytes() { return sizeof(litepcie_event); }
}
