// Instructions of Hopper (sm_90a): tile copies by the tensor memory accelerator (TMA) through tensor
// maps, barriers that count its bytes, and asynchronous products of a warpgroup of 128 threads (PTX ISA:
// mbarrier, cp.async.bulk.tensor, wgmma, setmaxnreg, bar). tests/softgpu/hopper.h has the same names.
#pragma once
#include "common.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(SOFTGPU)
#define HAS_WGMMA
#endif

#ifdef SOFTGPU
#include "hopper.h"
#else

__device__ __forceinline__ void barrier_init(uint64_t* barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Makes the barriers' initialization visible to TMA. Call it before the __syncthreads that follows the
// initialization.
__device__ __forceinline__ void barriers_ready() {
    asm volatile("fence.mbarrier_init.release.cluster;\n fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives, and adds `bytes` to the transaction count that completes the phase.
__device__ __forceinline__ void barrier_arrive_expecting(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// Waits until the phase of that parity is complete.
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred over;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
                 "@over bra passed;\n"
                 "bra again;\n"
                 "passed:\n"
                 "}" ::"r"(shared_address(barrier)), "r"(parity)
                 : "memory");
}

// Copies the map's box at these coordinates to shared memory; elements outside are zeros. The barrier
// counts all bytes of the box.
__device__ __forceinline__ void tensor_load(void* to, const TensorMap* map, uint64_t* barrier, int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

// Sets the registers per thread; all threads of the warpgroup must call it.
template <int N> __device__ __forceinline__ void registers_release() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void registers_take() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

// Named barriers 1 to 15 for `threads` threads, in whole warps: named_arrive does not block, named_wait
// blocks until all have arrived. `__syncthreads` uses barrier 0.
__device__ __forceinline__ void named_arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_wait(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Call it before the first product of a group: it orders earlier register writes before the product's
// reads.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Keeps the compiler from moving uses of these registers above this point.
template <int N> __device__ __forceinline__ void hold(float (&d)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) asm volatile("" : "+f"(d[n][i])::"memory");
}

// Waits for all groups but the last PENDING, whose results are in `d`.
template <int PENDING, int N> __device__ __forceinline__ void wgmma_wait(float (&d)[N][4]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
    hold(d);
}

#define REGISTERS_0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define REGISTERS_1 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define REGISTERS_2 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define REGISTERS_3 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define REGISTERS_4 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define SUMS_4(I) "+f"(d[I][0]), "+f"(d[I][1]), "+f"(d[I][2]), "+f"(d[I][3])
#define SUMS(I) SUMS_4(4 * I), SUMS_4(4 * I + 1), SUMS_4(4 * I + 2), SUMS_4(4 * I + 3)

#define WGMMA_ROWS(N, REGISTERS, A, B, ADDS, ...)                                                     \
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " ADDS ", 0;\n"                               \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" REGISTERS "}, " A ", " B  \
                 ", adds, 1, 1, 0, 0;\n}"                                                           \
                 : __VA_ARGS__                                                                     \
                 : "l"(a), "l"(b), "n"(ADD))

#define WGMMA_COLUMNS(N, REGISTERS, A, B, ...)                                                         \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" REGISTERS "}, {" A       \
                 "}, " B ", 1, 1, 1, 1;"                                                              \
                 : __VA_ARGS__                                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

// d (+)= a·bᵀ: 64×16 by 16×N. Both operands are K-major in shared memory, at the addresses of their
// descriptors. Fragments of d, and of a in the next function, are those of mma.sync; a warp has 16 rows.
template <bool ADD, int N8> __device__ __forceinline__ void wgmma_rows(float (&d)[N8][4], uint64_t a, uint64_t b) {
    if constexpr (N8 == 8)
        WGMMA_ROWS(64, REGISTERS_0 "," REGISTERS_1, "%32", "%33", "%34", SUMS(0), SUMS(1));
    else if constexpr (N8 == 16)
        WGMMA_ROWS(128, REGISTERS_0 "," REGISTERS_1 "," REGISTERS_2 "," REGISTERS_3, "%64", "%65", "%66",
                   SUMS(0), SUMS(1), SUMS(2), SUMS(3));
    else
        static_assert(N8 == 8, "no product of this width");
}

// d += a·b: 64×16 by 16×N. a is in registers; b is N-major in shared memory.
template <int N8> __device__ __forceinline__ void wgmma_columns(float (&d)[N8][4], const uint32_t (&a)[4], uint64_t b) {
    if constexpr (N8 == 8)
        WGMMA_COLUMNS(64, REGISTERS_0 "," REGISTERS_1, "%32,%33,%34,%35", "%36", SUMS(0), SUMS(1));
    else if constexpr (N8 == 12)
        WGMMA_COLUMNS(96, REGISTERS_0 "," REGISTERS_1 "," REGISTERS_2, "%48,%49,%50,%51", "%52", SUMS(0), SUMS(1),
                      SUMS(2));
    else if constexpr (N8 == 16)
        WGMMA_COLUMNS(128, REGISTERS_0 "," REGISTERS_1 "," REGISTERS_2 "," REGISTERS_3, "%64,%65,%66,%67", "%68",
                      SUMS(0), SUMS(1), SUMS(2), SUMS(3));
    else if constexpr (N8 == 20)
        WGMMA_COLUMNS(160, REGISTERS_0 "," REGISTERS_1 "," REGISTERS_2 "," REGISTERS_3 "," REGISTERS_4,
                      "%80,%81,%82,%83", "%84", SUMS(0), SUMS(1), SUMS(2), SUMS(3), SUMS(4));
    else
        static_assert(N8 == 8, "no product of this width");
}
#endif
