// CUDA for the CPU: a C++ compiler compiles the kernels of `kernels/` with it. For tests only.
//
// A CUDA thread is a fiber; `__syncthreads` and the warp's collectives switch between the fibers of a
// block. The stand-in provokes errors of kernels that rely on undefined order: blocks run in a random
// order, fibers in one that changes from round to round, shared memory starts as NaN and has canaries
// around it, and an asynchronous copy happens at once or at its wait. Misuse aborts with a message:
// threads that miss a barrier, or lanes in different collectives, more shared memory than a block has, a
// changed canary, a misaligned address. planted.cpp has a kernel with each of these faults.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <type_traits>

#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__ __restrict

struct dim3 {
    unsigned x, y, z;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(8) float2 {
    float x, y;
};
struct __nv_bfloat16 {
    uint16_t bits;
};
struct __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
struct __half {
    uint16_t bits;
};
struct __half2 {
    __half x, y;
};

// __thread, not thread_local: the latter calls an initialization function at each access from another
// file.
extern __thread dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace softgpu {
// Contribution of a thread to a collective of its warp; copied as a whole.
struct alignas(32) Slot {
    char bytes[32];
};

constexpr int MULTIPROCESSORS = 4;
// Maximum bytes of a kernel's argument.
constexpr size_t ARGUMENT_BYTES = 4096;

struct Launch {
    const char* name;
    dim3 grid, block;
    unsigned shared_bytes; // dynamic
    unsigned shared_limit; // with static shared memory
    void (*body)(const void* arguments);
    const void* arguments;
};

// Ends the process with a message that names the kernel, block and thread.
[[noreturn]] __attribute__((format(printf, 1, 2))) void misuse(const char* what, ...);
// Next random number of this thread, by SOFTGPU_SEED.
uint64_t draw();

// Runs a grid to its end, block after block.
void run(const Launch& launch);

void sync_block();
struct Exchanged {
    const Slot* all; // contributions of the warp's lanes
    unsigned lane;   // lane of the calling thread
};
// Waits for the lanes in `mask`, which all call the collective `what`.
Exchanged exchange(const char* what, unsigned mask, const Slot& mine);
unsigned lane();
template <class T> Slot slot(const T& value) {
    static_assert(sizeof(T) <= sizeof(Slot));
    Slot slot{};
    memcpy(slot.bytes, &value, sizeof(T));
    return slot;
}
// Asynchronous copy of 16 bytes (zeros if `from` is null), end of its group, and wait for all groups but
// the last `pending`.
void copy_later(void* to, const void* from);
void copy_commit();
void copy_wait(int pending);
char* dynamic_shared();
// Static shared memory of a kernel; `key` is an address that is unique to the declaration.
void* static_shared(const void* key, size_t bytes, size_t alignment);

// For hopper.cpp: number of the running thread in its block; a wait for a condition; a switch to the
// other threads; and asynchronous work of a block: its start, a step (true if anything was done), its
// end.
unsigned block_thread();
void wait_until(const std::function<bool()>& holds);
void pause_thread();
void asynchronous_start(unsigned threads, unsigned shared_bytes);
bool asynchronous_step(bool one_at_least);
void asynchronous_end();

struct Kernel {
    const char* name;
    unsigned bound; // threads of a block
    size_t bytes;
    void (*body)(const void* arguments);
};
const Kernel* find(const char* name);
struct Register {
    Register(const char* name, unsigned bound, size_t bytes, void (*body)(const void*));
};
// Maximum threads, from the arguments of __launch_bounds__.
constexpr unsigned bound(unsigned threads = 1024, unsigned = 0) { return threads; }

template <class T, class Source> T from_lane(unsigned mask, T value, Source source) {
    auto [all, lane] = exchange("shfl", mask, slot(value));
    T taken;
    memcpy(&taken, all[source(lane) & 31].bytes, sizeof(T));
    return taken;
}
} // namespace softgpu

// A kernel takes one struct by value; the host finds it by NAME. BODY may use T.
#define KERNEL_OF(TYPE, NAME, BODY, ARGUMENTS, ...)                                                \
    static softgpu::Register register_##NAME(#NAME, softgpu::bound(__VA_ARGS__), sizeof(ARGUMENTS), [](const void* a) { \
        [[maybe_unused]] typedef TYPE T;                                                           \
        (BODY)(*static_cast<const ARGUMENTS*>(a));                                                 \
    });

#define DYNAMIC_SHARED(NAME) char* NAME = softgpu::dynamic_shared()
#define SHARED(TYPE, NAME, EXTENTS)                                                                \
    static char NAME##_key;                                                                        \
    using NAME##_shared = TYPE EXTENTS;                                                            \
    NAME##_shared& NAME = *static_cast<NAME##_shared*>(                                            \
        softgpu::static_shared(&NAME##_key, sizeof(NAME##_shared), alignof(NAME##_shared)))

// Address in the window of shared memory, as instructions take it.
uint32_t shared_address(const void* p);

inline void __syncthreads() { softgpu::sync_block(); }
inline void __syncwarp(unsigned mask = ~0u) { softgpu::exchange("syncwarp", mask, {}); }
template <class T> T __shfl_xor_sync(unsigned mask, T value, int with) {
    return softgpu::from_lane(mask, value, [=](unsigned lane) { return lane ^ with; });
}
inline bool __any_sync(unsigned mask, bool value) {
    const softgpu::Slot* all = softgpu::exchange("any", mask, softgpu::slot(value)).all;
    return std::any_of(all, all + 32, [](auto& one) { return one.bytes[0]; });
}
inline bool __all_sync(unsigned mask, bool value) { return !__any_sync(mask, !value); }
template <class T> T __shfl_sync(unsigned mask, T value, int source) {
    return softgpu::from_lane(mask, value, [=](unsigned) { return source; });
}

inline uint32_t __float_as_uint(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
inline float __uint_as_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
inline float __bfloat162float(__nv_bfloat16 x) { return __uint_as_float((uint32_t)x.bits << 16); }
inline __nv_bfloat16 __float2bfloat16(float x) {
    uint32_t bits = __float_as_uint(x);
    if (x != x) return {0x7fff};
    return {(uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return {__float2bfloat16(x), __float2bfloat16(y)};
}
inline float __half2float(__half x) {
    // The exponent biases differ by 112.
    float size = __uint_as_float((x.bits & 0x7fffu) << 13) * 0x1p112f;
    if (size >= 65536.0f) size = x.bits & 1023 ? NAN : INFINITY;
    return x.bits >> 15 ? -size : size;
}
// Rounds to nearest, ties to even; infinite from 65520 on; multiples of 2^-24 below 2^-14.
inline __half __float2half_rn(float x) {
    uint16_t sign = __float_as_uint(x) >> 16 & 0x8000;
    float size = std::fabs(x);
    if (x != x) return {0x7fff};
    if (size >= 65520.0f) return {(uint16_t)(sign | 0x7c00)};
    if (size < 0x1p-14f) return {(uint16_t)(sign | (uint16_t)std::nearbyint(size * 0x1p24f))};
    uint32_t bits = __float_as_uint(size) - (112u << 23);
    return {(uint16_t)(sign | (bits + 0xfff + (bits >> 13 & 1)) >> 13)};
}
inline __half2 __floats2half2_rn(float x, float y) {
    return {__float2half_rn(x), __float2half_rn(y)};
}
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return ((uint64_t)a * b) >> 32; }
// No atomics are needed: blocks run one after the other, in a random order.
inline uint32_t atomicMax(uint32_t* at, uint32_t x) {
    uint32_t old = *at;
    *at = std::max(old, x);
    return old;
}
inline float __fmul_rn(float x, float y) { return x * y; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

// d += a·b on fragments of m16n8k16, laid out among the lanes as PTX ISA has it.
template <class T>
void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    struct Fragments {
        uint32_t a[4], b[2];
    } mine;
    memcpy(mine.a, a, 16);
    memcpy(mine.b, b, 8);
    auto [all, own] = softgpu::exchange("mma", ~0u, softgpu::slot(mine));
    auto half = [](uint32_t word, int k) {
        T x{(uint16_t)(word >> 16 * (k & 1))};
        if constexpr (std::is_same_v<T, __half>) return __half2float(x);
        else return __bfloat162float(x);
    };
    auto word = [all = all](unsigned lane, unsigned i) {
        uint32_t taken;
        memcpy(&taken, all[lane].bytes + 4 * i, 4);
        return taken;
    };
    unsigned row = own >> 2, column = 2 * (own & 3);
    // Rows `row`, `row` + 8 of a; columns `column`, `column` + 1 of b.
    float left[2][16], right[2][16];
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 16; k++) {
            unsigned has = (k & 7) / 2;
            left[i][k] = half(word(4 * row + has, i + 2 * (k >> 3)), k);
            right[i][k] = half(word(4 * (column + i) + has, 4 + (k >> 3)), k);
        }
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 16; k++) d[i] += left[i >> 1][k] * right[i & 1][k];
}

inline float exp2_fast(float x) { return exp2f(x); }

// Four 8×8 matrices from shared memory: lane i gives the address of row i % 8 of matrix i / 8.
inline void ldmatrix(uint32_t (&x)[4], const void* row, bool turned) {
    if (reinterpret_cast<uintptr_t>(row) % 16) softgpu::misuse("ldmatrix of a row that is not at a multiple of 16 bytes");
    auto [all, lane] = softgpu::exchange(turned ? "ldmatrix.trans" : "ldmatrix", ~0u, softgpu::slot(row));
    for (unsigned matrix = 0; matrix < 4; matrix++) {
        auto element = [all = all, matrix](unsigned r, unsigned c) {
            const uint16_t* from;
            memcpy(&from, all[8 * matrix + r].bytes, sizeof from);
            return (uint32_t)from[c];
        };
        unsigned major = lane / 4, minor = lane % 4 * 2;
        uint32_t low = turned ? element(minor, major) : element(major, minor);
        uint32_t high = turned ? element(minor + 1, major) : element(major, minor + 1);
        x[matrix] = low | high << 16;
    }
}
inline void load_rows(uint32_t (&x)[4], const void* row) { ldmatrix(x, row, false); }
inline void load_columns(uint32_t (&x)[4], const void* row) { ldmatrix(x, row, true); }

inline void copy_async(void* shared, const void* global, bool there) {
    softgpu::copy_later(shared, there ? global : nullptr);
}
inline void copy_commit() { softgpu::copy_commit(); }
template <int PENDING> void copy_wait() { softgpu::copy_wait(PENDING); }
