// Parts that AMD's compiler needs in place of device.cuh, for gfx90a. A group of 32 lanes is the unit of
// sums, as on NVIDIA's GPUs: two of them share a wave of 64.
#pragma once
#include <hip/hip_runtime.h>
#include <hip/hip_fp16.h>
#include <stdint.h>
#include <string.h>

// Numbers of 16 bits under CUDA's names. Conversion rounds to nearest even.
struct __nv_bfloat16 {
    uint16_t bits;
};
struct __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
__device__ __forceinline__ float __bfloat162float(__nv_bfloat16 x) { return __uint_as_float((uint32_t)x.bits << 16); }
__device__ __forceinline__ __nv_bfloat16 __float2bfloat16(float x) {
    uint32_t bits = __float_as_uint(x);
    return {(uint16_t)(x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
__device__ __forceinline__ __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return {__float2bfloat16(x), __float2bfloat16(y)};
}

// The first number is that of __launch_bounds__; the second, blocks per multiprocessor, has another
// meaning here.
#define FIRST(NUMBER, ...) NUMBER
#define KERNEL_OF(TYPE, NAME, BODY, ARGUMENTS, ...)                                                \
    extern "C" __global__ void __launch_bounds__(FIRST(__VA_ARGS__, 0)) NAME(const ARGUMENTS arguments) { \
        [[maybe_unused]] typedef TYPE T;                                                           \
        (BODY)(arguments);                                                                         \
    }
#define SHARED(TYPE, NAME, EXTENTS) __shared__ TYPE NAME EXTENTS
#define DYNAMIC_SHARED(NAME) extern __shared__ __align__(128) char NAME[]

// Exchanges of a group of 32. Kernels call them with all lanes, so the mask is not needed.
template <class N> __device__ __forceinline__ N __shfl_xor_sync(unsigned, N x, int with) { return __shfl_xor(x, with, 32); }
__device__ __forceinline__ uint32_t ballot_of_group(bool x) { return (uint32_t)(__ballot(x) >> (__lane_id() & 32)); }
__device__ __forceinline__ bool __any_sync(unsigned, bool x) { return ballot_of_group(x) != 0; }
__device__ __forceinline__ bool __all_sync(unsigned, bool x) { return ballot_of_group(!x) == 0; }
__device__ __forceinline__ void __syncwarp() { __builtin_amdgcn_wave_barrier(); }
