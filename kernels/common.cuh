// Shared parts of all kernels: loads and stores, sums over threads, random words.
//
// Kernels compute in f32 and are templates over the dtype T of activations. KERNELS(name, body,
// arguments, threads) exports one for each dtype, KERNEL the one that has no dtype. Each takes one
// struct of args.cuh by value. Where rows are multiples of 16 bytes (`vector`), threads move 16 bytes
// at a time.
#pragma once

#ifdef SOFTGPU
#include "softgpu.h"
#elif defined(__HIP__)
#include "device_amd.cuh"
#else
#include "device.cuh"
#endif
#include "args.cuh"

typedef __nv_bfloat16 bf16;
typedef __half f16;

// Dtypes of activations. A body that contains a comma is in parentheses.
#define KERNELS(NAME, BODY, ...)                                                                   \
    KERNEL_OF(float, NAME##_f32, BODY, __VA_ARGS__)                                                \
    KERNELS_OF_HALF(NAME, BODY, __VA_ARGS__)
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800 // the compiler rejects bf16 there
#define KERNELS_OF_HALF(NAME, BODY, ...) KERNEL_OF(f16, NAME##_f16, BODY, __VA_ARGS__)
#else
#define KERNELS_OF_HALF(NAME, BODY, ...)                                                           \
    KERNEL_OF(bf16, NAME##_bf16, BODY, __VA_ARGS__)                                                \
    KERNEL_OF(f16, NAME##_f16, BODY, __VA_ARGS__)
#endif
#define KERNEL(NAME, BODY, ...) KERNEL_OF(void, NAME, BODY, __VA_ARGS__)

// Elements per load or store of a thread.
template <class T> constexpr int WIDE = 16 / sizeof(T);

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float widen(f16 x) { return __half2float(x); }
template <class T> __device__ __forceinline__ T narrow(float x);
template <> __device__ __forceinline__ float narrow(float x) { return x; }
template <> __device__ __forceinline__ bf16 narrow(float x) { return __float2bfloat16(x); }
// Infinite from 65520 on: the overflow that loss scaling detects.
template <> __device__ __forceinline__ f16 narrow(float x) { return __float2half_rn(x); }

template <class T, int V> __device__ __forceinline__ void load(const T* from, float (&x)[V]) {
    if constexpr (V == 1) {
        x[0] = widen(*from);
    } else {
        static_assert(V % WIDE<T> == 0);
#pragma unroll
        for (int at = 0; at < V; at += WIDE<T>) {
            uint4 raw = *reinterpret_cast<const uint4*>(from + at);
            T values[WIDE<T>];
            memcpy(values, &raw, 16);
#pragma unroll
            for (int i = 0; i < WIDE<T>; i++) x[at + i] = widen(values[i]);
        }
    }
}

template <class T, int V> __device__ __forceinline__ void store(T* to, const float (&x)[V]) {
    if constexpr (V == 1) {
        *to = narrow<T>(x[0]);
    } else {
        static_assert(V % WIDE<T> == 0);
#pragma unroll
        for (int at = 0; at < V; at += WIDE<T>) {
            T values[WIDE<T>];
#pragma unroll
            for (int i = 0; i < WIDE<T>; i++) values[i] = narrow<T>(x[at + i]);
            uint4 raw;
            memcpy(&raw, values, 16);
            *reinterpret_cast<uint4*>(to + at) = raw;
        }
    }
}

// Overwrites the destination, or adds to it.
template <class T, int V> __device__ __forceinline__ void put(T* to, float (&x)[V], bool add) {
    if (add) {
        float old[V];
        load(to, old);
#pragma unroll
        for (int i = 0; i < V; i++) x[i] += old[i];
    }
    store(to, x);
}

// x += elements col .. col + V of a bias, if there is one.
template <class T, int V>
__device__ __forceinline__ void add_bias(const T* bias, uint32_t col, float (&x)[V]) {
    if (!bias) return;
    float values[V];
    load(bias + col, values);
#pragma unroll
    for (int i = 0; i < V; i++) x[i] += values[i];
}

template <class N> __device__ __forceinline__ N warp_sum(N x) {
#pragma unroll
    for (int with = 16; with > 0; with /= 2) x += __shfl_xor_sync(~0u, x, with);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int with = 16; with > 0; with /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, with));
    return x;
}

// Sum over a block of whole warps in one dimension; every thread gets it.
template <class N> __device__ __forceinline__ N block_sum(N x) {
    SHARED(N, parts, [32]);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    x = warp_sum(x);
    if (lane == 0) parts[warp] = x;
    __syncthreads();
    x = warp_sum(lane < warps ? parts[lane] : N(0));
    __syncthreads(); // the next call may overwrite the parts
    return x;
}

__device__ __forceinline__ float block_max(float x) {
    SHARED(float, parts, [32]);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    x = warp_max(x);
    if (lane == 0) parts[warp] = x;
    __syncthreads();
    x = warp_max(lane < warps ? parts[lane] : -INFINITY);
    __syncthreads();
    return x;
}

// Row of the whole run at which the tensor starts.
__device__ __forceinline__ uint64_t run_row(const DropoutMask& drop) {
    return drop.bound ? (uint64_t)*drop.first_sample * drop.seq + drop.first_row : 0;
}

// Philox 4x32-10 (Salmon et al., SC 2011) of the counter row << 64 | head << 32 | quad.
__device__ __forceinline__ uint4 philox(uint64_t key, uint64_t row, uint32_t head, uint32_t quad) {
    uint32_t x0 = quad, x1 = head, x2 = (uint32_t)row, x3 = (uint32_t)(row >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint32_t a = x0 * 0xD2511F53u, a_high = __umulhi(x0, 0xD2511F53u);
        uint32_t b = x2 * 0xCD9E8D57u, b_high = __umulhi(x2, 0xCD9E8D57u);
        x0 = b_high ^ x1 ^ k0;
        x1 = b;
        x2 = a_high ^ x3 ^ k1;
        x3 = a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {x0, x1, x2, x3};
}

// Dropout's factor of one element; `row` counts from the start of the run.
__device__ __forceinline__ float drop_factor(const DropoutMask& drop, uint64_t row, uint32_t head, uint32_t col) {
    uint4 words = philox(drop.key, row, head, col / 4);
    uint32_t which = col % 4;
    uint32_t word = which == 0 ? words.x : which == 1 ? words.y : which == 2 ? words.z : words.w;
    return word < drop.bound ? 0.0f : drop.kept;
}

// x *= factors of elements col .. col + V.
template <int V>
__device__ __forceinline__ void apply(const DropoutMask& drop, uint64_t row, uint32_t col, float (&x)[V]) {
    if (drop.bound == 0) return;
    if constexpr (V == 1) {
        x[0] *= drop_factor(drop, row, 0, col);
    } else {
#pragma unroll
        for (int at = 0; at < V; at += 4) {
            uint4 words = philox(drop.key, row, 0, (col + at) / 4);
            x[at] *= words.x < drop.bound ? 0.0f : drop.kept;
            x[at + 1] *= words.y < drop.bound ? 0.0f : drop.kept;
            x[at + 2] *= words.z < drop.bound ? 0.0f : drop.kept;
            x[at + 3] *= words.w < drop.bound ? 0.0f : drop.kept;
        }
    }
}

// Calls `body(row, col)` for the first of each V columns of a matrix; the grid is two-dimensional.
template <int V, class Body>
__device__ __forceinline__ void each_piece(uint64_t rows, uint32_t cols, Body body) {
    uint32_t col = (blockIdx.x * blockDim.x + threadIdx.x) * V;
    if (col >= cols) return;
    uint64_t step = (uint64_t)gridDim.y * blockDim.y;
    for (uint64_t row = (uint64_t)blockIdx.y * blockDim.y + threadIdx.y; row < rows; row += step)
        body(row, col);
}

// Calls `body(at)` for the first of each V elements.
template <int V, class Body> __device__ __forceinline__ void each(uint64_t numel, Body body) {
    uint64_t step = (uint64_t)gridDim.x * blockDim.x * V;
    for (uint64_t at = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) * V; at < numel; at += step)
        body(at);
}
