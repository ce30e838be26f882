// Hopper's instructions on the CPU, with the names of kernels/hopper.cuh. Written from the PTX ISA and
// the driver's documentation of tensor maps, not from the kernels that use them.
//
// Asynchronous work ends as late as possible, or at a random time. A tile of a TMA copy is NaN until its
// bytes arrive, which may be as late as the wait for them. Results of a product appear at the wait for
// its group, and are NaN until then; meanwhile neither its operands in shared memory nor those in
// registers may change. Misuse aborts with a message.
#pragma once
#include "softgpu.h"
#include "args.cuh"

namespace softgpu {
// Operands of d (+)= a·b, 64×16 by 16×n; `a` is in registers, or null: in shared memory by its
// descriptor.
struct Product {
    unsigned n;
    float* d;
    const uint32_t* a;
    uint64_t a_descriptor, b_descriptor;
    bool add, b_along_n; // "N-major"

    bool like(const Product& other) const;
};
void multiply(const Product& product);
void multiply_wait(int pending);
void change_registers(unsigned count, bool more);
} // namespace softgpu

void barrier_init(uint64_t* barrier, uint32_t arrivals);
void barriers_ready();
void barrier_arrive(uint64_t* barrier);
void barrier_arrive_expecting(uint64_t* barrier, uint32_t bytes);
void barrier_wait(uint64_t* barrier, uint32_t parity);
void tensor_load(void* to, const TensorMap* map, uint64_t* barrier, int x, int y, int z, int w);
void named_arrive(int barrier, int threads);
void named_wait(int barrier, int threads);
void wgmma_fence();
void wgmma_commit();

template <int N> void registers_release() { softgpu::change_registers(N, false); }
template <int N> void registers_take() { softgpu::change_registers(N, true); }
template <int PENDING, int N> void wgmma_wait(float (&)[N][4]) { softgpu::multiply_wait(PENDING); }
template <int N> void hold(float (&)[N][4]) {}
template <bool ADD, int N> void wgmma_rows(float (&d)[N][4], uint64_t a, uint64_t b) {
    softgpu::multiply({8 * N, d[0], nullptr, a, b, ADD, false});
}
template <int N> void wgmma_columns(float (&d)[N][4], const uint32_t (&a)[4], uint64_t b) {
    softgpu::multiply({8 * N, d[0], a, 0, b, true, true});
}
