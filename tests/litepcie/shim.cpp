// The bus of a simulated LitePCIe endpoint, with a C interface. Registers are read and written by TLPs. The TLPs and
// MSIs that the core emits are returned as events, in the order in which they end.
//
// A TLP is transferred over the 64-bit streams of LitePCIe's PHY as double words, the first in the low half. Header
// words are unchanged; the bytes of payload words are swapped (a PHY of "big" endianness). First and last byte enables
// are all ones in every TLP that the core emits or receives.

#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

#include "Vlitepcie.h"
#include "verilated.h"

namespace {

// Header word 0: format [30:29], type [28:24], length in double words [9:0].
constexpr uint32_t READ = 0x00, READ_64 = 0x20, WRITE = 0x40, WRITE_64 = 0x60, COMPLETION = 0x4a;
constexpr uint32_t HOST = 0x0000;   // Requester ID of the host.
constexpr uint32_t CORE = 0x0100;   // Requester ID of the core, as set by the generator.
constexpr unsigned TIMEOUT = 4096; // Maximum cycles of a register access; the core needs fewer than 100.

uint32_t swapped(uint32_t word) { return __builtin_bswap32(word); }

} // namespace

extern "C" {

enum litepcie_kind : uint32_t {
    LITEPCIE_WRITE = 1, // The core writes to memory.
    LITEPCIE_READ = 2,  // The core reads memory; litepcie_complete must be called with the tag.
    LITEPCIE_MSI = 3,   // An MSI; the address is its vector.
    LITEPCIE_ODD = 4,   // An unknown TLP; the address is its first header word.
};

struct litepcie_event {
    uint32_t kind;
    uint32_t bytes;
    uint64_t address;
    uint32_t tag;
    uint32_t header_words;
    uint8_t data[256]; // Data of a write in the order of addresses; `length` bytes are valid.
};
}

struct litepcie {
    VerilatedContext context;
    Vlitepcie core{&context};
    std::deque<uint64_t> to_core; // Beats to send to the core. Each has an entry in `marks`:
    std::deque<uint16_t> marks;   // byte enables [7:0], last beat [8].
    std::vector<uint32_t> from_core;
    std::deque<litepcie_event> events;
    uint64_t taken = 0; // Number of words of the stream that the core has read since the last reset.
    bool answered = false;
    uint32_t answer = 0;
    uint8_t tag = 0;

    // Runs one cycle. Returns true if the core emitted something.
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

    // Decodes the TLP that was received.
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

// Creates a core in its state after reset, with its stream closed.
litepcie *litepcie_new() { return new litepcie; }

void litepcie_free(litepcie *it) { delete it; }

// Resets everything to the state after power-on, and discards work in progress.
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

// Clocks the core with an open stream until it has read `words` words or `cycles` cycles have passed. Returns the
// number of words read.
uint32_t litepcie_run(litepcie *it, uint32_t words, uint32_t cycles) {
    const uint64_t before = it->taken;
    while (it->taken - before < words && cycles--) {
        it->tick(true);
    }
    return static_cast<uint32_t>(it->taken - before);
}

// Clocks the core with a closed stream until it has emitted nothing for `quiet` cycles, or until `limit` cycles have
// passed. Returns whether it became quiet.
int litepcie_settle(litepcie *it, uint32_t quiet, uint32_t limit) {
    for (uint32_t still = 0; limit--;) {
        still = it->tick(false) || !it->to_core.empty() ? 0 : still + 1;
        if (still == quiet) {
            return 1;
        }
    }
    return 0;
}

// Writes a register, and waits until the core is idle.
void litepcie_write(litepcie *it, uint32_t offset, uint32_t value) {
    it->send({WRITE << 24 | 1, HOST << 16 | 0x0f, offset, swapped(value)});
}

// Reads a register with a closed stream. Returns 1 and the value, or 0 if no completion arrives.
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

// Answers a read of the core with `bytes` bytes from `address`. `bytes` is at most 256 and a multiple of 4.
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

// Stores the next event in `event`. Returns 0 if there is no event.
int litepcie_next(litepcie *it, litepcie_event *event) {
    if (it->events.empty()) {
        return 0;
    }
    *event = it->events.front();
    it->events.pop_front();
    return 1;
}

// Returns the size of an event in bytes, which the caller compares with its own definition.
uint32_t litepcie_event_bytes() { return sizeof(litepcie_event); }
}
