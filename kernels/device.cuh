// Parts that the software stand-in (tests/softgpu/softgpu.h) replaces: the export of a kernel, and the
// instructions that have no name in C++.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#ifdef __CUDACC_RTC__ // NVRTC has no C library
typedef unsigned char uint8_t;
typedef int int32_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#else
#include <stdint.h>
#endif

// The numbers are those of __launch_bounds__: maximum threads per block and, optionally, minimum blocks
// per multiprocessor. BODY may use T.
#define KERNEL_OF(TYPE, NAME, BODY, ARGUMENTS, ...)                                                \
    extern "C" __global__ void __launch_bounds__(__VA_ARGS__)                                      \
        NAME(const __grid_constant__ ARGUMENTS arguments) {                                        \
        [[maybe_unused]] typedef TYPE T;                                                           \
        (BODY)(arguments);                                                                         \
    }

// EXTENTS of an array, in brackets, or nothing.
#define SHARED(TYPE, NAME, EXTENTS) __shared__ TYPE NAME EXTENTS
#define DYNAMIC_SHARED(NAME) extern __shared__ __align__(128) char NAME[]

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// 2ˣ, with a relative error of about 2⁻²²; subnormal results are zero.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// d += a·b: 16×16 by 16×8, 16-bit operands, f32 sums.
template <class T>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
#define MMA(TYPE, NAME)                                                                            \
    template <>                                                                                    \
    __device__ __forceinline__ void mma<TYPE>(float (&d)[4], const uint32_t (&a)[4],               \
                                              const uint32_t (&b)[2]) {                            \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 "                \
                     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                       \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));          \
    }
MMA(__nv_bfloat16, "bf16")
MMA(__half, "f16")

// Four 8×8 matrices from shared memory: lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void load_rows(uint32_t (&x)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared_address(row)));
}

// The same, with each matrix transposed.
__device__ __forceinline__ void load_columns(uint32_t (&x)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared_address(row)));
}

// Copies 16 bytes to shared memory asynchronously; zeros if not `there`.
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared_address(shared)), "l"(global), "r"(there ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for all groups of copies but the last PENDING.
template <int PENDING> __device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
