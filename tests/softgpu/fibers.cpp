// Runs the threads of a block as fibers.
#include "softgpu.h"
#include <cstdlib>
#include <map>
#include <numeric>
#include <string>
#include <sys/mman.h>
#include <vector>

__thread dim3 threadIdx, blockIdx, blockDim, gridDim;

#ifndef __x86_64__
#error "the software stand-in switches fibers in x86-64 assembly"
#endif

// Saves where it is at *from, goes on at `to`. Neither calls nor returns, and is part of whoever
// switches: so a processor predicts the return of one thread of a warp by the call of the one before it.
// Registers of AVX-512 are not saved (build.sh).
static inline __attribute__((always_inline)) void switch_stacks(void** from, void* to) {
    asm volatile(R"(
        leaq -128(%%rsp),%%rsp
        pushq %%rbp
        pushq %%rbx
        leaq 1f(%%rip),%%rax
        pushq %%rax
        movq %%rsp,(%%rdi)
        movq %%rsi,%%rsp
        popq %%rax
        jmp *%%rax
    1:  popq %%rbx
        popq %%rbp
        leaq 128(%%rsp),%%rsp
    )"
                 : "+D"(from), "+S"(to)
                 :
                 : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc", "xmm0",
                   "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
                   "xmm12", "xmm13", "xmm14", "xmm15");
}

namespace softgpu {
namespace {
constexpr size_t STACK_BYTES = 80 << 10;
// Stacks begin apart by a multiple of cache lines, over so many bytes: at the same place of each page, all
// would lie in the same few sets of a cache.
constexpr size_t STAGGER = 5 * 64, STAGGERED = 16 << 10;
constexpr size_t SHARED_BYTES = 228 << 10;
// A block's shared memory is promised to start at a multiple of 128 bytes, no more.
constexpr size_t SHARED_START = 1024 + 128;

struct Copy {
    void* to;
    const void* from;
};

struct Fiber {
    void* stack_top = nullptr;
    char* stack = nullptr;
    dim3 index;
    unsigned number;
    // Waits until this generation is over; null: can run.
    const uint64_t* generation = nullptr;
    uint64_t waited;
    // Waits until this holds, if it is there.
    std::function<bool()> holds;
    bool done = false;
    // Those asked for and not made yet, and how many of them each committed group has.
    std::vector<Copy> copies;
    std::vector<size_t> groups;
    size_t open = 0;

    // For the next block, with the memory that its lists have.
    void begin(unsigned its_number, dim3 its_index) {
        number = its_number;
        index = its_index;
        stack_top = nullptr;
        stack = nullptr;
        generation = nullptr;
        holds = nullptr;
        done = false;
        copies.clear();
        groups.clear();
        open = 0;
    }
};

struct Warp {
    uint64_t generation = 0;
    unsigned arrived = 0;
    // Two, since a lane may enter the next collective while others still read this one's.
    Slot slots[2][32];
};

struct Block {
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<char*> free_stacks;
    Fiber* current = nullptr;
    void* scheduler = nullptr;
    uint64_t generation = 0;
    unsigned arrived = 0, alive = 0;
    const Launch* launch = nullptr;
    alignas(1024) char window[SHARED_START + SHARED_BYTES];

    ~Block() {
        for (char* stack : free_stacks) munmap(stack, STACK_BYTES);
    }
};

__thread Block* block = nullptr;

inline void wait(Block& b, const uint64_t* generation) {
    Fiber* fiber = b.current;
    fiber->generation = generation;
    fiber->waited = *generation;
    switch_stacks(&fiber->stack_top, b.scheduler);
}

void release_if_complete(Block& b) {
    if (b.alive && b.arrived == b.alive) {
        b.arrived = 0;
        b.generation++;
    }
}

void fiber_main() {
    Block& b = *block;
    b.launch->body(b.launch->arguments);
    Fiber* fiber = b.current;
    fiber->done = true;
    b.alive--;
    release_if_complete(b);
    void* nowhere;
    switch_stacks(&nowhere, b.scheduler);
    abort();
}

void start(Block& b, Fiber& fiber) {
    if (b.free_stacks.empty()) {
        void* stack = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        b.free_stacks.push_back(static_cast<char*>(stack));
    }
    fiber.stack = b.free_stacks.back();
    b.free_stacks.pop_back();
    size_t below = fiber.number * STAGGER % STAGGERED;
    void** top = reinterpret_cast<void**>(fiber.stack + STACK_BYTES - below);
    *--top = nullptr; // no caller
    *--top = reinterpret_cast<void*>(fiber_main);
    fiber.stack_top = top;
}

[[noreturn]] void stuck(unsigned left) {
    fprintf(stderr, "softgpu: block (%u, %u, %u): %u threads wait at a barrier for others that do not come\n",
            blockIdx.x, blockIdx.y, blockIdx.z, left);
    abort();
}

// Each thread of a warp that can go on, to its next wait: false if there is none.
bool run_warp(Block& b, unsigned warp, unsigned round) {
    unsigned first = 32 * warp, lanes = std::min(32u, (unsigned)b.fibers.size() - first);
    unsigned at = round * 37 % lanes;
    bool progress = false;
    for (unsigned turn = 0; turn < lanes; turn++, at = at + 1 == lanes ? 0 : at + 1) {
        Fiber& fiber = b.fibers[first + (round % 2 ? lanes - 1 - at : at)];
        if (fiber.done || (fiber.generation && *fiber.generation == fiber.waited)) continue;
        if (fiber.holds) {
            if (!fiber.holds()) continue;
            fiber.holds = nullptr;
        }
        progress = true;
        fiber.generation = nullptr;
        if (!fiber.stack) start(b, fiber);
        b.current = &fiber;
        threadIdx = fiber.index;
        switch_stacks(&b.scheduler, fiber.stack_top);
        if (fiber.done) b.free_stacks.push_back(fiber.stack);
    }
    return progress;
}

void run_block(const Launch& launch) {
    Block& b = *block;
    unsigned threads = launch.block.x * launch.block.y * launch.block.z;
    b.fibers.resize(threads);
    b.warps.assign((threads + 31) / 32, Warp{});
    b.generation = b.arrived = 0;
    b.alive = threads;
    unsigned round = 0;
    memset(dynamic_shared(), 0xff, launch.shared_bytes);
    asynchronous_start(threads, launch.shared_bytes);
    for (unsigned i = 0; i < threads; i++) {
        unsigned x = i % launch.block.x, rest = i / launch.block.x;
        b.fibers[i].begin(i, {x, rest % launch.block.y, rest / launch.block.y});
    }
    bool apart = (blockIdx.x + blockIdx.y + blockIdx.z) % 2;
    while (b.alive) {
        bool progress = asynchronous_step(false);
        // Forwards, backwards, and from somewhere else each time. In every other block all threads go as far
        // as their next wait; in the rest each warp is ahead of the others by another number of waits.
        unsigned warps = b.warps.size();
        for (unsigned turn = 0; turn < warps; turn++) {
            unsigned at = (turn + round * 5) % warps, warp = round % 2 ? warps - 1 - at : at;
            unsigned ahead = apart ? 1u << (round + warp) % 3 * 2 : 1;
            while (ahead-- && run_warp(b, warp, round)) progress = true;
        }
        if (!progress && !asynchronous_step(true)) stuck(b.alive);
        round++;
    }
    asynchronous_end();
}

std::map<std::string, Kernel>& kernels() {
    static auto* all = new std::map<std::string, Kernel>;
    return *all;
}
} // namespace

void run(const Launch& launch) {
    static thread_local std::vector<Block> own(1);
    block = own.data();
    block->launch = &launch;
    blockDim = launch.block;
    gridDim = launch.grid;
    for (unsigned z = 0; z < launch.grid.z; z++)
        for (unsigned y = 0; y < launch.grid.y; y++)
            for (unsigned x = 0; x < launch.grid.x; x++) {
                blockIdx = {x, y, z};
                run_block(launch);
            }
}

void sync_block() {
    Block& b = *block;
    uint64_t now = b.generation;
    b.arrived++;
    release_if_complete(b);
    if (b.generation == now) wait(b, &b.generation);
}

Exchanged exchange(unsigned mask, const Slot& mine) {
    Block& b = *block;
    unsigned number = b.current->number, lane = number & 31, first = number - lane;
    unsigned threads = b.fibers.size();
    if (threads - first < 32) mask &= (1u << (threads - first)) - 1;
    Warp& warp = b.warps[first / 32];
    auto slots = warp.slots[warp.generation & 1];
    slots[lane] = mine;
    warp.arrived |= 1u << lane;
    if ((warp.arrived & mask) == mask) {
        warp.arrived = 0;
        warp.generation++;
    } else {
        wait(b, &warp.generation);
    }
    return {slots, lane};
}

unsigned lane() { return block->current->number & 31; }

void copy_later(void* to, const void* from) {
    block->current->copies.push_back({to, from});
    block->current->open++;
}

void copy_commit() {
    block->current->groups.push_back(block->current->open);
    block->current->open = 0;
}

void copy_wait(int pending) {
    auto& copies = block->current->copies;
    auto& groups = block->current->groups;
    if ((int)groups.size() <= pending) return;
    auto last = groups.end() - pending;
    auto over = copies.begin() + std::accumulate(groups.begin(), last, size_t(0));
    for (auto copy = copies.begin(); copy != over; copy++) {
        if (copy->from) memcpy(copy->to, copy->from, 16);
        else memset(copy->to, 0, 16);
    }
    copies.erase(copies.begin(), over);
    groups.erase(groups.begin(), last);
}

char* dynamic_shared() { return block->window + SHARED_START; }

unsigned block_thread() { return block->current->number; }

void wait_until(const std::function<bool()>& holds) {
    if (holds()) return;
    block->current->holds = holds;
    pause_thread();
}

void pause_thread() { switch_stacks(&block->current->stack_top, block->scheduler); }

const Kernel* find(const char* name) {
    auto found = kernels().find(name);
    return found == kernels().end() ? nullptr : &found->second;
}

Register::Register(const char* name, size_t bytes, void (*body)(const void*)) {
    kernels()[name] = {name, bytes, body};
}
} // namespace softgpu

uint32_t shared_address(const void* p) {
    return static_cast<const char*>(p) - softgpu::block->window;
}
