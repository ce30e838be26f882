// Runs the threads of a block as fibers.
#include "softgpu.h"
#include <cstdlib>
#include <deque>
#include <map>
#include <string>
#include <sys/mman.h>
#include <vector>

thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

#ifndef __x86_64__
#error "the software stand-in switches fibers in x86-64 assembly"
#endif

// Saves the callee's registers and the stack's place at *from, goes on at `to`.
extern "C" void softgpu_switch(void** from, void* to);
asm(R"(
.text
.globl softgpu_switch
.hidden softgpu_switch
.type softgpu_switch,@function
softgpu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

namespace softgpu {
namespace {
constexpr size_t STACK_BYTES = 64 << 10;
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
    // The last is still open.
    std::deque<std::vector<Copy>> copies;
};

struct Warp {
    uint64_t generation = 0;
    unsigned arrived = 0;
    // Two, since a lane may enter the next collective while others still read this one's.
    char slots[2][32][SLOT_BYTES];
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

thread_local Block* block = nullptr;

void wait(const uint64_t* generation) {
    Fiber* fiber = block->current;
    fiber->generation = generation;
    fiber->waited = *generation;
    softgpu_switch(&fiber->stack_top, block->scheduler);
}

void release_block_if_complete() {
    if (block->alive && block->arrived == block->alive) {
        block->arrived = 0;
        block->generation++;
    }
}

void fiber_main() {
    Block& b = *block;
    b.launch->body(b.launch->arguments);
    Fiber* fiber = b.current;
    fiber->done = true;
    b.alive--;
    release_block_if_complete();
    void* nowhere;
    softgpu_switch(&nowhere, b.scheduler);
    abort();
}

void start(Fiber& fiber) {
    Block& b = *block;
    if (b.free_stacks.empty()) {
        void* stack = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        b.free_stacks.push_back(static_cast<char*>(stack));
    }
    fiber.stack = b.free_stacks.back();
    b.free_stacks.pop_back();
    void** top = reinterpret_cast<void**>(fiber.stack + STACK_BYTES);
    *--top = nullptr; // no caller
    *--top = reinterpret_cast<void*>(fiber_main);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    fiber.stack_top = top;
}

[[noreturn]] void stuck(unsigned left) {
    fprintf(stderr, "softgpu: block (%u, %u, %u): %u threads wait at a barrier for others that do not come\n",
            blockIdx.x, blockIdx.y, blockIdx.z, left);
    abort();
}

void run_block(const Launch& launch) {
    Block& b = *block;
    unsigned threads = launch.block.x * launch.block.y * launch.block.z;
    b.fibers.assign(threads, Fiber{});
    b.warps.assign((threads + 31) / 32, Warp{});
    b.generation = b.arrived = 0;
    b.alive = threads;
    memset(dynamic_shared(), 0xff, launch.shared_bytes);
    asynchronous_start(threads, launch.shared_bytes);
    for (unsigned i = 0; i < threads; i++) {
        unsigned x = i % launch.block.x, rest = i / launch.block.x;
        b.fibers[i].index = {x, rest % launch.block.y, rest / launch.block.y};
        b.fibers[i].number = i;
        b.fibers[i].copies.emplace_back();
    }
    unsigned left = threads;
    for (unsigned round = 0; left; round++) {
        bool progress = asynchronous_step(false);
        for (unsigned turn = 0; turn < threads; turn++) {
            // Forwards, backwards, and from somewhere else each time.
            unsigned at = (turn + round * 37) % threads;
            Fiber& fiber = b.fibers[round % 2 ? threads - 1 - at : at];
            if (fiber.done || (fiber.generation && *fiber.generation == fiber.waited)) continue;
            if (fiber.holds && !fiber.holds()) continue;
            progress = true;
            fiber.generation = nullptr;
            fiber.holds = nullptr;
            if (!fiber.stack) start(fiber);
            b.current = &fiber;
            threadIdx = fiber.index;
            softgpu_switch(&b.scheduler, fiber.stack_top);
            if (fiber.done) {
                b.free_stacks.push_back(fiber.stack);
                left--;
            }
        }
        if (!progress && !asynchronous_step(true)) stuck(left);
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
    uint64_t now = block->generation;
    block->arrived++;
    release_block_if_complete();
    if (block->generation == now) wait(&block->generation);
}

const char (*exchange(unsigned mask, const void* mine, size_t bytes))[SLOT_BYTES] {
    Fiber* fiber = block->current;
    unsigned threads = block->fibers.size(), first = fiber->number & ~31u;
    if (threads - first < 32) mask &= (1u << (threads - first)) - 1;
    Warp& warp = block->warps[first / 32];
    auto slots = warp.slots[warp.generation & 1];
    memcpy(slots[lane()], mine, bytes);
    warp.arrived |= 1u << lane();
    if ((warp.arrived & mask) == mask) {
        warp.arrived = 0;
        warp.generation++;
    } else {
        wait(&warp.generation);
    }
    return slots;
}

unsigned lane() { return block->current->number & 31; }

void copy_later(void* to, const void* from) { block->current->copies.back().push_back({to, from}); }

void copy_commit() { block->current->copies.emplace_back(); }

void copy_wait(int pending) {
    auto& groups = block->current->copies;
    while ((int)groups.size() - 1 > pending) {
        for (Copy copy : groups.front()) {
            if (copy.from) memcpy(copy.to, copy.from, 16);
            else memset(copy.to, 0, 16);
        }
        groups.pop_front();
    }
}

char* dynamic_shared() { return block->window + SHARED_START; }

unsigned block_thread() { return block->current->number; }

void wait_until(const std::function<bool()>& holds) {
    if (holds()) return;
    block->current->holds = holds;
    pause_thread();
}

void pause_thread() { softgpu_switch(&block->current->stack_top, block->scheduler); }

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
