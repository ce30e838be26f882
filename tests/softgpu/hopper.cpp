// TMA, its barriers, and products of a warpgroup, on the CPU.
#include "hopper.h"
#include "tensor_map.h"
#include <array>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

namespace softgpu {
namespace {
constexpr unsigned GROUP = 128;
constexpr uint32_t IN_FLIGHT = 0x7fbadbad; // a NaN

typedef std::array<char, 16> Piece;

// Product issued by a whole warpgroup.
struct Asked {
    Product by[GROUP];
    uint32_t a[GROUP][4];
    std::vector<float> results[GROUP];
    std::vector<std::pair<uint32_t, Piece>> operands;
};
typedef std::shared_ptr<Asked> Shared;

struct Warpgroup {
    unsigned arrived = 0;
    uint64_t generation = 0;
    Shared asking, asked; // `asking` is created by the first thread that issues the product
};

struct Thread {
    bool fenced = false;
    unsigned registers = 0;
    std::vector<std::vector<Shared>> groups; // committed
    std::vector<Shared> open;
};

struct Transfer {
    uint64_t* barrier;
    uint32_t to;
    std::vector<char> bytes;
};

// Named barrier of bar.sync and bar.arrive: its number of threads, and how many have arrived.
struct Named {
    int threads = 0, arrived = 0;
    uint64_t generation = 0;
};

// Asynchronous state of a block.
struct State {
    std::vector<Thread> threads;
    std::vector<Warpgroup> warpgroups;
    std::vector<Transfer> transfers;
    std::map<int, Named> named;
    // Shared memory as TMA and products see it: ordinary stores appear after a fence.
    std::vector<char> seen;
    std::set<uint64_t*> unfenced;
    unsigned free_registers;
    std::minstd_rand random;
};
thread_local State* state = nullptr;

char* shared_at(uint32_t address, uint32_t bytes, const char* who) {
    uint32_t first = shared_address(dynamic_shared());
    if (address < first || address + bytes > first + state->seen.size())
        misuse("%s touches shared memory at %u, which has %u .. %u", who, address, first, first + (unsigned)state->seen.size());
    return dynamic_shared() + (address - first);
}
char* seen_at(uint32_t address) { return &state->seen[address - shared_address(dynamic_shared())]; }

// Swizzle of 128 bytes: address bits 4-6 are XORed with bits 7-9; of 64: 4-5 with 7-8; of 32: 4 with 7.
uint32_t swizzled(uint32_t address, uint32_t bytes) {
    uint32_t mask = bytes == 128 ? 7 : bytes == 64 ? 3 : bytes == 32 ? 1 : 0;
    return address ^ ((address >> 7) & mask) << 4;
}

// ---- mbarrier: 64 opaque bits; here the pending arrivals and bytes of this phase, and the arrivals of
// each phase.
struct Phase {
    uint64_t mark : 3, parity : 1, arrivals : 19, pending : 19;
    int64_t bytes : 22;
};
static_assert(sizeof(Phase) == 8);
constexpr uint64_t MARK = 5; // a value that fresh memory does not have

Phase phase_of(uint64_t* barrier, const char* who) {
    if (reinterpret_cast<uintptr_t>(barrier) % 8) misuse("%s: the barrier is not at a multiple of 8 bytes", who);
    shared_at(shared_address(barrier), 8, who);
    Phase phase;
    memcpy(&phase, barrier, 8);
    if (phase.mark != MARK) misuse("%s of an uninitialised barrier", who);
    return phase;
}
void put(uint64_t* barrier, Phase phase) {
    if (phase.pending == 0 && phase.bytes == 0) {
        phase.parity ^= 1;
        phase.pending = phase.arrivals;
    }
    memcpy(barrier, &phase, 8);
}
void arrive(uint64_t* barrier, uint32_t bytes) {
    Phase phase = phase_of(barrier, "an arrival");
    if (phase.pending == 0) misuse("more arrivals at a barrier than its %u", (unsigned)phase.arrivals);
    if (phase.bytes + (int64_t)bytes >= 1 << 20) misuse("a barrier expects a MiB or more");
    phase.bytes += bytes;
    phase.pending--;
    put(barrier, phase);
}

// ---- bar: a thread that arrives twice counts for another one, and the others then wait forever.
Named& come(int barrier, int threads) {
    if (barrier < 1 || barrier > 15) misuse("a named barrier %d", barrier);
    if (threads <= 0 || threads % 32) misuse("a named barrier of %d threads", threads);
    Named& named = state->named[barrier];
    if (named.arrived == 0) named.threads = threads;
    if (named.threads != threads) misuse("barrier %d of %d threads, and of %d", barrier, named.threads, threads);
    if (++named.arrived == threads) {
        named.arrived = 0;
        named.generation++;
    }
    return named;
}

// ---- TMA
void complete(size_t which) {
    Transfer transfer = std::move(state->transfers[which]);
    state->transfers.erase(state->transfers.begin() + which);
    memcpy(shared_at(transfer.to, transfer.bytes.size(), "TMA"), transfer.bytes.data(), transfer.bytes.size());
    memcpy(seen_at(transfer.to), transfer.bytes.data(), transfer.bytes.size());
    Phase phase = phase_of(transfer.barrier, "a transfer's end");
    phase.bytes -= transfer.bytes.size();
    put(transfer.barrier, phase);
}

// Elements of a box in the order of shared memory, unswizzled: the first dimension innermost.
std::vector<char> box_of(const Map& map, const int (&start)[4]) {
    std::vector<char> bytes;
    const uint32_t(&box)[4] = map.box;
    for (uint32_t w = 0; w < box[3]; w++)
        for (uint32_t z = 0; z < box[2]; z++)
            for (uint32_t y = 0; y < box[1]; y++)
                for (uint32_t x = 0; x < box[0]; x++) {
                    int64_t at[4] = {(int64_t)start[0] + x, (int64_t)start[1] + y, (int64_t)start[2] + z, (int64_t)start[3] + w};
                    bool inside = true;
                    uint64_t address = map.address + at[0] * map.element;
                    for (int i = 0; i < 4; i++) {
                        inside &= at[i] >= 0 && at[i] < map.sizes[i];
                        if (i > 0) address += at[i] * map.strides[i - 1];
                    }
                    const char* from = reinterpret_cast<const char*>(address);
                    for (uint32_t i = 0; i < map.element; i++) bytes.push_back(inside ? from[i] : 0);
                }
    return bytes;
}

// ---- wgmma
struct Descriptor {
    uint32_t start, leading, stride, base, swizzle;

    explicit Descriptor(uint64_t bits) {
        auto field = [&](int at, int width) { return (uint32_t)(bits >> at & ((1ull << width) - 1)); };
        start = field(0, 14) * 16;
        leading = field(16, 14) * 16;
        stride = field(32, 14) * 16;
        base = field(49, 3);
        const uint32_t modes[4] = {0, 128, 64, 32};
        swizzle = modes[field(62, 2)];
        if (base) misuse("a matrix descriptor with a base offset of %u, which the stand-in lacks", base);
        if (field(14, 2) || field(30, 2) || field(46, 3) || field(52, 10)) misuse("a matrix descriptor with undefined bits");
        if (!swizzle) misuse("a matrix descriptor without swizzle, which the stand-in lacks");
    }
    // Address of the eight elements from (row, k), K-major. Eight rows are swizzled together, each as
    // long as the swizzle; the next eight are `stride` bytes further.
    uint32_t along_k(unsigned row, unsigned k) const {
        return swizzled(start + row % 8 * swizzle + row / 8 * stride + k * 2, swizzle);
    }
    // Address of the eight elements from (n, k), N-major: as many n as the swizzle has bytes for are
    // contiguous, the next are `leading` bytes further; the next eight k are `stride` bytes further.
    uint32_t along_n(unsigned n, unsigned k) const {
        unsigned together = swizzle / 2;
        return swizzled(start + n % together * 2 + n / together * leading + k % 8 * swizzle + k / 8 * stride, swizzle);
    }
};

float bf16_at(const Piece& piece, int i) {
    uint16_t bits;
    memcpy(&bits, &piece[2 * i], 2);
    return __uint_as_float((uint32_t)bits << 16);
}

Piece operand(Asked& asked, uint32_t address) {
    Piece ours, seen;
    memcpy(&ours, shared_at(address, 16, "wgmma"), 16);
    memcpy(&seen, seen_at(address), 16);
    if (ours != seen) misuse("wgmma reads what was stored at %u without fence.proxy.async", address);
    asked.operands.push_back({address, ours});
    return ours;
}

// Element of d in register i of a thread: PTX ISA, "D fragment of wgmma .m64nNk16".
void place(unsigned thread, unsigned i, unsigned& row, unsigned& column) {
    row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
    column = i / 4 * 8 + thread % 4 * 2 + i % 2;
}

// Result in flight that the next product adds to, if there is one.
const std::vector<float>* in_flight(unsigned thread, const float* d) {
    const std::vector<float>* last = nullptr;
    auto look = [&](const std::vector<Shared>& group) {
        for (auto& asked : group)
            if (asked->by[thread % GROUP].d == d) last = &asked->results[thread % GROUP];
    };
    for (auto& group : state->threads[thread].groups) look(group);
    look(state->threads[thread].open);
    return last;
}

void compute(Asked& asked, unsigned first_thread) {
    const Product& product = asked.by[0];
    unsigned n = product.n;
    if (n % 8 || n > 256) misuse("wgmma of %u columns", n);
    std::vector<float> a(64 * 16), b(16 * n);
    if (product.a) {
        for (unsigned t = 0; t < GROUP; t++)
            for (unsigned i = 0; i < 8; i++) { // PTX ISA, "A fragment of wgmma .m64k16"
                unsigned row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8;
                unsigned k = i / 4 * 8 + t % 4 * 2 + i % 2;
                a[row * 16 + k] = __uint_as_float(asked.a[t][i / 2] >> 16 * (i % 2) << 16);
            }
    } else {
        Descriptor from(product.a_descriptor);
        for (unsigned row = 0; row < 64; row++)
            for (unsigned k = 0; k < 16; k += 8) {
                Piece piece = operand(asked, from.along_k(row, k));
                for (unsigned i = 0; i < 8; i++) a[row * 16 + k + i] = bf16_at(piece, i);
            }
    }
    Descriptor from(product.b_descriptor);
    for (unsigned major = 0; major < (product.b_along_n ? 16 : n); major++)
        for (unsigned minor = 0; minor < (product.b_along_n ? n : 16); minor += 8) {
            Piece piece = operand(asked, product.b_along_n ? from.along_n(minor, major) : from.along_k(major, minor));
            for (unsigned i = 0; i < 8; i++) {
                unsigned k = product.b_along_n ? major : minor + i, column = product.b_along_n ? minor + i : major;
                b[k * n + column] = bf16_at(piece, i);
            }
        }
    std::vector<float> d(64 * n);
    for (unsigned row = 0; row < 64; row++)
        for (unsigned k = 0; k < 16; k++)
            for (unsigned column = 0; column < n; column++) d[row * n + column] += a[row * 16 + k] * b[k * n + column];
    for (unsigned t = 0; t < GROUP; t++) {
        float* own = asked.by[t].d;
        auto before = product.add ? in_flight(first_thread + t, own) : nullptr;
        if (before && before->size() != n / 2) misuse("wgmma adds %u columns to %zu in flight", n, 2 * before->size());
        for (unsigned i = 0; i < n / 2; i++) {
            unsigned row, column;
            place(t, i, row, column);
            float old = !product.add ? 0.0f : before ? (*before)[i] : own[i];
            asked.results[t].push_back(old + d[row * n + column]);
        }
        for (unsigned i = 0; i < n / 2; i++) memcpy(&own[i], &IN_FLIGHT, 4);
    }
}

void deliver(const Shared& asked, unsigned thread) {
    unsigned t = thread % GROUP;
    const Product& product = asked->by[t];
    if (thread % 32 == 0)
        for (auto& [address, piece] : asked->operands)
            if (memcmp(shared_at(address, 16, "wgmma"), piece.data(), 16))
                misuse("shared memory at %u changes while wgmma may read it", address);
    if (product.a && memcmp(product.a, asked->a[t], 16)) misuse("a register changes while wgmma may read it");
    auto last = in_flight(thread, product.d);
    for (unsigned i = 0; i < product.n / 2; i++) {
        uint32_t bits;
        memcpy(&bits, &product.d[i], 4);
        if (bits != IN_FLIGHT) misuse("a sum of wgmma is touched before its wait");
        if (last == &asked->results[t]) product.d[i] = asked->results[t][i];
    }
}
} // namespace

bool Product::like(const Product& other) const {
    return n == other.n && !a == !other.a && a_descriptor == other.a_descriptor && b_descriptor == other.b_descriptor &&
           add == other.add && b_along_n == other.b_along_n;
}

void multiply(const Product& product) {
    unsigned thread = block_thread();
    Thread& own = state->threads[thread];
    if (!own.fenced) misuse("wgmma without wgmma.fence since the last group");
    if (thread / GROUP >= state->warpgroups.size()) misuse("wgmma in a warpgroup that is not whole");
    Warpgroup& group = state->warpgroups[thread / GROUP];
    unsigned t = thread % GROUP;
    if (!group.asking) group.asking = std::make_shared<Asked>();
    group.asking->by[t] = product;
    if (product.a) memcpy(group.asking->a[t], product.a, 16);
    if (++group.arrived == GROUP) {
        for (auto& other : group.asking->by)
            if (!product.like(other)) misuse("threads of a warpgroup ask for different products");
        compute(*group.asking, thread - t);
        group.asked = group.asking;
        group.asking = nullptr;
        group.arrived = 0;
        group.generation++;
    } else {
        uint64_t now = group.generation;
        wait_until([&group, now] { return group.generation != now; });
    }
    own.open.push_back(group.asked);
}

void multiply_wait(int pending) {
    unsigned thread = block_thread();
    Thread& own = state->threads[thread];
    while ((int)own.groups.size() > pending) {
        for (auto& asked : own.groups.front()) deliver(asked, thread);
        own.groups.erase(own.groups.begin());
    }
    __syncwarp();
}

void change_registers(unsigned count, bool more) {
    Thread& own = state->threads[block_thread()];
    if (count % 8 || count < 24 || count > 256) misuse("setmaxnreg to %u", count);
    if (more ? count < own.registers : count > own.registers)
        misuse("setmaxnreg.%s from %u to %u", more ? "inc" : "dec", own.registers, count);
    if (more) {
        wait_until([&] { return state->free_registers >= count - own.registers; });
        state->free_registers -= count - own.registers;
    } else {
        state->free_registers += own.registers - count;
    }
    own.registers = count;
}

void asynchronous_start(unsigned threads, unsigned shared_bytes) {
    static thread_local State own;
    state = &own;
    state->threads.assign(threads, Thread{});
    state->warpgroups = std::vector<Warpgroup>(threads / GROUP);
    state->transfers.clear();
    state->named.clear();
    state->seen.assign(shared_bytes, (char)0xff);
    state->unfenced.clear();
    // Registers per thread, as the compiler assigns them for one block of this size: 64 Ki in all.
    unsigned each = std::min(255u, (64u << 10) / threads) / 8 * 8;
    for (Thread& thread : state->threads) thread.registers = each;
    state->free_registers = 0;
    const char* seed = getenv("SOFTGPU_SEED");
    state->random.seed(blockIdx.x + 97 * blockIdx.y + 389 * blockIdx.z + (seed ? strtoul(seed, nullptr, 10) : 0));
}

bool asynchronous_step(bool one_at_least) {
    bool done = false;
    for (size_t i = state->transfers.size(); i-- > 0;)
        if (state->random() % 4 == 0) {
            complete(i);
            done = true;
        }
    if (!done && one_at_least && !state->transfers.empty()) {
        complete(state->random() % state->transfers.size());
        done = true;
    }
    return done;
}

void asynchronous_end() {
    if (!state->transfers.empty()) misuse("the block ends before %zu of its transfers", state->transfers.size());
    for (auto& [barrier, named] : state->named)
        if (named.arrived) misuse("the block ends before barrier %d is complete", barrier);
    for (Thread& thread : state->threads)
        if (!thread.groups.empty() || !thread.open.empty()) misuse("the block ends without a wait for its products");
}
} // namespace softgpu

using namespace softgpu;

void barrier_init(uint64_t* barrier, uint32_t arrivals) {
    if (arrivals == 0 || arrivals >= 1 << 19) misuse("a barrier of %u arrivals", arrivals);
    if (reinterpret_cast<uintptr_t>(barrier) % 8) misuse("a barrier that is not at a multiple of 8 bytes");
    Phase phase{MARK, 0, arrivals, arrivals, 0};
    memcpy(shared_at(shared_address(barrier), 8, "a barrier"), &phase, 8);
    state->unfenced.insert(barrier);
}

// Makes ordinary stores visible: of all threads here, on a GPU only of those that synchronized with this
// one.
void barriers_ready() {
    state->unfenced.clear();
    memcpy(state->seen.data(), dynamic_shared(), state->seen.size());
}

// The arriving thread may be delayed at random before its next operation.
void barrier_arrive(uint64_t* barrier) {
    arrive(barrier, 0);
    for (unsigned turns = state->random() % 4; turns > 0; turns--) pause_thread();
}
void barrier_arrive_expecting(uint64_t* barrier, uint32_t bytes) { arrive(barrier, bytes); }

void barrier_wait(uint64_t* barrier, uint32_t parity) {
    if (parity > 1) misuse("a barrier's parity of %u", parity);
    phase_of(barrier, "a wait");
    wait_until([=] { return phase_of(barrier, "a wait").parity != parity; });
}

// The arriving thread may be delayed at random before its next operation.
void named_arrive(int barrier, int threads) {
    come(barrier, threads);
    for (unsigned turns = state->random() % 4; turns > 0; turns--) pause_thread();
}
void named_wait(int barrier, int threads) {
    uint64_t now = state->named[barrier].generation;
    Named& named = come(barrier, threads);
    wait_until([&named, now] { return named.generation != now; });
}

void tensor_load(void* to, const TensorMap* tensor_map, uint64_t* barrier, int x, int y, int z, int w) {
    Map map;
    memcpy(&map, tensor_map, sizeof map);
    if (reinterpret_cast<uintptr_t>(tensor_map) % 64) misuse("a tensor map that is not at a multiple of 64 bytes");
    if (map.magic != Map::MAGIC) misuse("a tensor map that cuTensorMapEncodeTiled did not make");
    phase_of(barrier, "TMA");
    if (state->unfenced.count(barrier)) misuse("TMA is given a barrier whose init it may not see: no fence");
    Transfer transfer{barrier, shared_address(to), {}};
    uint32_t repeat = map.swizzle ? 8 * map.swizzle : 128;
    if (transfer.to % repeat) misuse("TMA to shared memory at %u: the swizzle repeats every %u bytes", transfer.to, repeat);
    std::vector<char> box = box_of(map, {x, y, z, w});
    transfer.bytes.resize(box.size());
    for (uint32_t i = 0; i < box.size(); i++)
        transfer.bytes[swizzled(transfer.to + i, map.swizzle) - transfer.to] = box[i];
    memset(shared_at(transfer.to, box.size(), "TMA"), 0xff, box.size());
    memset(seen_at(transfer.to), 0xff, box.size());
    state->transfers.push_back(std::move(transfer));
}

void wgmma_fence() { state->threads[block_thread()].fenced = true; }
void wgmma_commit() {
    Thread& own = state->threads[block_thread()];
    own.fenced = false;
    own.groups.push_back(std::move(own.open));
    own.open.clear();
}
