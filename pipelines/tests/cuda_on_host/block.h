// Runs the threads of a CUDA block on one CPU thread. Each CUDA thread runs until it waits at a barrier.

#pragma once

#include "device.h"

#include <functional>
#include <memory>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>
#include <vector>

[[noreturn]] inline void fail(const char* what) {
    fprintf(stderr, "CUDA on the host: %s\n", what);
    abort();
}

enum class State { ready, at_warp_barrier, at_barrier, ended };

// A thread object is reused for later blocks. It is entered once with setcontext and then resumed with longjmp, which
// unlike setcontext makes no system call.
struct Thread {
    ucontext_t context;
    jmp_buf at;
    bool entered = false;
    State state = State::ended;
    std::vector<char> stack;
};

struct Block {
    std::vector<std::unique_ptr<Thread>> threads;
    jmp_buf scheduler;
    Thread* running = nullptr;
    const std::function<void()>* kernel;
};
inline OF_BLOCK Block block;

// Switches to the other threads of the block. Does nothing outside of run_block.
inline void leave(State state) {
    if (block.running == nullptr) return;
    block.running->state = state;
    if (_setjmp(block.running->at) == 0) _longjmp(block.scheduler, 1);
}

inline void __syncthreads() { leave(State::at_barrier); }
inline void __syncwarp() { leave(State::at_warp_barrier); }

// Returns the value that lane `lane` of the warp passes. All threads of the warp must call this function.
inline OF_BLOCK float passed[32][32];
inline float __shfl_sync(unsigned, float value, unsigned lane) {
    float* warp = passed[threadIdx.x / 32];
    warp[threadIdx.x % 32] = value;
    __syncwarp();
    float result = warp[lane];
    __syncwarp();
    return result;
}

inline void live() {
    for (;;) {
        (*block.kernel)();
        leave(State::ended);
    }
}

inline void enter(Thread& thread) {
    block.running = &thread;
    if (_setjmp(block.scheduler) != 0) return;
    if (thread.entered) _longjmp(thread.at, 1);
    thread.entered = true;
    setcontext(&thread.context);
}

// Releases the threads of each warp that all wait for their warp. Returns whether there is such a warp.
inline bool release_warps(size_t count) {
    bool released = false;
    for (size_t first = 0; first < count; first += 32) {
        size_t end = first + 32 < count ? first + 32 : count, waiting = 0;
        for (size_t i = first; i < end; i++) waiting += block.threads[i]->state == State::at_warp_barrier;
        if (waiting != end - first) continue;
        for (size_t i = first; i < end; i++) block.threads[i]->state = State::ready;
        released = true;
    }
    return released;
}

// Runs `kernel` in blockDim.x threads. `backwards` returns for each round whether the threads run in reverse order.
inline void run_block(const std::function<void()>& kernel, const std::function<bool(size_t)>& backwards) {
    constexpr size_t STACK = 64 << 10;
    size_t count = blockDim.x;
    block.kernel = &kernel;
    while (block.threads.size() < count) {
        auto thread = std::make_unique<Thread>();
        thread->stack.resize(STACK);
        getcontext(&thread->context);
        thread->context.uc_stack.ss_sp = thread->stack.data();
        thread->context.uc_stack.ss_size = STACK;
        makecontext(&thread->context, live, 0);
        block.threads.push_back(std::move(thread));
    }
    for (size_t i = 0; i < count; i++) block.threads[i]->state = State::ready;
    for (size_t round = 0;; round++) {
        bool last_first = backwards(round);
        size_t of[4] = {};
        for (size_t i = 0; i < count; i++) {
            size_t which = last_first ? count - 1 - i : i;
            Thread& thread = *block.threads[which];
            if (thread.state == State::ready) {
                threadIdx = {(unsigned)which, 0, 0};
                enter(thread);
            }
            of[(int)thread.state]++;
        }
        if (of[(int)State::ended] == count) break;
        if (of[(int)State::ready] != 0) continue;
        if (of[(int)State::at_warp_barrier] != 0) {
            if (!release_warps(count)) fail("a warp barrier that not all threads of the warp reach");
            continue;
        }
        // Either all threads wait at a barrier, or all have ended.
        if (of[(int)State::at_barrier] != count) fail("a barrier that not all threads reach");
        for (size_t i = 0; i < count; i++) block.threads[i]->state = State::ready;
    }
    block.running = nullptr;
}
