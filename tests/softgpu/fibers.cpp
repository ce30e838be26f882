// Fibers that run the threads of a block.
#include "softgpu.h"
#include <csignal>
#include <cstdarg>
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

// Saves the current position at *from and continues at `to`. Inlined, without call or return, so that
// the processor predicts the return of one thread of a warp by the call of the thread before it.
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
// Stacks are staggered by a multiple of cache lines, up to this many bytes: at the same offset of each
// page, all would share a few sets of a cache.
constexpr size_t STAGGER = 5 * 64, STAGGERED = 16 << 10;
constexpr size_t SHARED_BYTES = 228 << 10;
// Shared memory of a block is aligned to 128 bytes and not more, as promised by CUDA.
constexpr size_t SHARED_START = 1024 + 128;
// Bytes around each piece of shared memory that no thread may write; NaN in any type.
constexpr size_t CANARY_BYTES = 128;
constexpr uint32_t CANARY = 0x7fa57fa5;
// Room for static pieces, with their canaries, behind the dynamic ones.
constexpr size_t PIECES_BYTES = 64 << 10;

struct Copy {
    void* to;
    const void* from;
};

struct Fiber {
    void* stack_top = nullptr;
    char* stack = nullptr;
    dim3 index;
    unsigned number;
    // Waits until this generation is over; null: ready to run.
    const uint64_t* generation = nullptr;
    uint64_t waited;
    // Waits until this returns true, if it is set.
    std::function<bool()> holds;
    bool done = false;
    // Copies not made yet, and the number of them in each committed group.
    std::vector<Copy> copies;
    std::vector<size_t> groups;
    size_t open = 0;

    // Resets the fiber for the next block; its lists keep their memory.
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

// Piece of shared memory, with a canary behind it.
struct Piece {
    const void* key;
    size_t start, bytes;
};

struct Warp {
    uint64_t generation = 0;
    unsigned arrived = 0;
    const char* what = nullptr; // name of the collective, while lanes are missing
    // Two sets, since a lane may enter the next collective while others still read this one's.
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
    std::vector<Piece> pieces; // the first is the dynamic one
    alignas(1024) char window[SHARED_START + SHARED_BYTES + PIECES_BYTES];

    // Fills shared memory with NaN, and the bytes around it with canaries.
    void* add_piece(const void* key, size_t start, size_t bytes) {
        char* at = window + start;
        memset(at, 0xff, bytes);
        fill_canary(at - CANARY_BYTES);
        fill_canary(at + rounded(bytes));
        memset(at + bytes, 0xa5, rounded(bytes) - bytes);
        pieces.push_back({key, start, bytes});
        return at;
    }
    void check_canaries() {
        for (const Piece& piece : pieces) {
            const char* at = window + piece.start;
            bool whole = is_canary(at - CANARY_BYTES) && is_canary(at + rounded(piece.bytes));
            for (size_t i = piece.bytes; i < rounded(piece.bytes); i++) whole &= (uint8_t)at[i] == 0xa5;
            if (!whole)
                misuse("wrote outside its %zu bytes of %s shared memory", piece.bytes, piece.key ? "static" : "dynamic");
        }
    }
    static size_t rounded(size_t bytes) { return (bytes + 127) / 128 * 128; }
    static void fill_canary(char* at) {
        for (size_t i = 0; i < CANARY_BYTES; i += 4) memcpy(at + i, &CANARY, 4);
    }
    static bool is_canary(const char* at) {
        for (size_t i = 0; i < CANARY_BYTES; i += 4)
            if (memcmp(at + i, &CANARY, 4)) return false;
        return true;
    }

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
    misuse("%u threads wait at a barrier that other threads do not reach", left);
}

// Runs each ready thread of a warp to its next wait; false if none is ready.
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
    b.pieces.clear();
    b.add_piece(nullptr, SHARED_START, launch.shared_bytes);
    asynchronous_start(threads, launch.shared_bytes);
    for (unsigned i = 0; i < threads; i++) {
        unsigned x = i % launch.block.x, rest = i / launch.block.x;
        b.fibers[i].begin(i, {x, rest % launch.block.y, rest / launch.block.y});
    }
    bool apart = (blockIdx.x + blockIdx.y + blockIdx.z) % 2;
    while (b.alive) {
        bool progress = asynchronous_step(false);
        // Warps run forwards and backwards in turn, each round from another start. In every other block
        // all threads advance by one wait per round; in the rest each warp advances by a different
        // number of waits.
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
    b.check_canaries();
}

std::map<std::string, Kernel>& kernels() {
    static auto* all = new std::map<std::string, Kernel>;
    return *all;
}
} // namespace

// Signal handler: kernels are compiled with traps for undefined behaviour of C++.
static void trapped(int) { misuse("an operation that is undefined in C++: alignment, bounds, shift or float to integer"); }

void run(const Launch& launch) {
    static const auto before = signal(SIGILL, trapped);
    (void)before;
    static thread_local std::vector<Block> own(1);
    block = own.data();
    block->launch = &launch;
    blockDim = launch.block;
    gridDim = launch.grid;
    // Order of the blocks: `first + i · step`, where step and the number of blocks have no common
    // factor.
    uint64_t blocks = (uint64_t)launch.grid.x * launch.grid.y * launch.grid.z;
    uint64_t at = draw() % blocks, step = draw() % blocks;
    while (std::gcd(step, blocks) != 1) step = step + 1 < blocks ? step + 1 : 1;
    for (uint64_t i = 0; i < blocks; i++, at = (at + step) % blocks) {
        uint64_t row = at / launch.grid.x;
        blockIdx = {unsigned(at % launch.grid.x), unsigned(row % launch.grid.y), unsigned(row / launch.grid.y)};
        run_block(launch);
    }
}

void misuse(const char* what, ...) {
    fprintf(stderr, "softgpu: %s, block (%u, %u, %u), thread (%u, %u, %u): ", block ? block->launch->name : "no kernel",
            blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
    va_list list;
    va_start(list, what);
    vfprintf(stderr, what, list);
    fprintf(stderr, "\n");
    abort();
}

// Random numbers: SplitMix64 (Steele et al. 2014).
uint64_t draw() {
    static thread_local uint64_t state = [] {
        const char* seed = getenv("SOFTGPU_SEED");
        return seed ? strtoull(seed, nullptr, 10) : 0;
    }();
    uint64_t x = state += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

void sync_block() {
    Block& b = *block;
    uint64_t now = b.generation;
    b.arrived++;
    release_if_complete(b);
    if (b.generation == now) wait(b, &b.generation);
}

Exchanged exchange(const char* what, unsigned mask, const Slot& mine) {
    Block& b = *block;
    unsigned number = b.current->number, lane = number & 31, first = number - lane;
    unsigned threads = b.fibers.size();
    if (threads - first < 32) mask &= (1u << (threads - first)) - 1;
    Warp& warp = b.warps[first / 32];
    auto slots = warp.slots[warp.generation & 1];
    slots[lane] = mine;
    if (!warp.arrived) warp.what = what;
    if (warp.what != what && strcmp(warp.what, what)) misuse("%s where another lane of the warp is in %s", what, warp.what);
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

static void copy_now(const Copy& copy) {
    if (copy.from) memcpy(copy.to, copy.from, 16);
    else memset(copy.to, 0, 16);
}

// Makes the copy at once or at its wait, at random.
void copy_later(void* to, const void* from) {
    if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 16)
        misuse("cp.async between addresses that are not multiples of 16 bytes");
    if (draw() % 2) return copy_now({to, from});
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
    std::for_each(copies.begin(), over, copy_now);
    copies.erase(copies.begin(), over);
    groups.erase(groups.begin(), last);
}

char* dynamic_shared() { return block->window + SHARED_START; }

void* static_shared(const void* key, size_t bytes, size_t alignment) {
    Block& b = *block;
    for (const Piece& piece : b.pieces)
        if (piece.key == key) return b.window + piece.start;
    size_t all = b.launch->shared_bytes + bytes;
    for (const Piece& piece : b.pieces) all += piece.key ? piece.bytes : 0;
    if (all > b.launch->shared_limit)
        misuse("%zu bytes of shared memory, %u of them dynamic, in a block that has %u", all, b.launch->shared_bytes,
               b.launch->shared_limit);
    const Piece& last = b.pieces.back();
    size_t start = last.start + Block::rounded(last.bytes) + 2 * CANARY_BYTES;
    if (alignment > 128 || start + Block::rounded(bytes) + CANARY_BYTES > sizeof b.window)
        misuse("%zu bytes of static shared memory, more than the stand-in's limit", bytes);
    return b.add_piece(key, start, bytes);
}

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

Register::Register(const char* name, unsigned bound, size_t bytes, void (*body)(const void*)) {
    kernels()[name] = {name, bound, bytes, body};
}
} // namespace softgpu

uint32_t shared_address(const void* p) {
    return static_cast<const char*>(p) - softgpu::block->window;
}
