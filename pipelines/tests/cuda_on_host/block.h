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

enum class State { ready, at_barrier, ended };

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
        size_t of[3] = {};
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
        // Either all threads wait at a barrier, or all have ended.
        if (of[(int)State::at_barrier] != count) fail("a barrier that not all threads reach");
        for (size_t i = 0; i < count; i++) block.threads[i]->state = State::ready;
    }
    block.running = nullptr;
}
