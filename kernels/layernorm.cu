// Layer normalisation (Ba, Kiros & Hinton 2016) over each row, and RMS normalisation (Zhang &
// Sennrich 2019), the same without a mean and a shift.
//
// Bytes moved for each element of size s: forward 2s (x, y); backward 3s (dy, x, dx), 4s to add. Fused
// with the residual before it, forward 4s (x, branch, y, h) for 5s apart; backward 4s (dy, x, dx twice)
// for 5s, with dropout 5s (dbranch) for 6s.
// Forward assigns a row to a warp, which keeps it in shared memory between its three passes. If shared
// memory holds few rows, it assigns a row to a block; with warps, too few bytes would be in flight.
// Backward assigns a row to a block and to thread t always the same columns, so that a thread sums the
// gradients of scale and shift of its columns over all rows of the block without communication.
#include "common.cuh"

// Sum over the threads of a row, which are a warp or a whole block.
__device__ __forceinline__ float row_sum(float x) { return blockDim.x == 32 ? warp_sum(x) : block_sum(x); }

// Normalises a row in `kept`, each thread its own columns; `sum` is the sum of the thread's elements.
template <class T, int V, class A>
__device__ void normalise(const A& a, const T* kept, float sum, uint64_t row, T* to, bool add) {
    bool rms = !a.shift;
    float mean = rms ? 0.0f : row_sum(sum) / a.cols, squares = 0;
    for (uint32_t col = threadIdx.x * V; col < a.cols; col += blockDim.x * V) {
        float v[V];
        load(kept + col, v);
#pragma unroll
        for (int i = 0; i < V; i++) squares = fmaf(v[i] - mean, v[i] - mean, squares);
    }
    float rstd = 1.0f / sqrtf(row_sum(squares) / a.cols + a.eps);
    if (threadIdx.x == 0) {
        a.stats[2 * row] = mean;
        a.stats[2 * row + 1] = rstd;
    }
    for (uint32_t col = threadIdx.x * V; col < a.cols; col += blockDim.x * V) {
        float v[V], scale[V], shift[V] = {};
        load(kept + col, v);
        load(static_cast<const T*>(a.scale) + col, scale);
        if (!rms) load(static_cast<const T*>(a.shift) + col, shift);
#pragma unroll
        for (int i = 0; i < V; i++) {
            v[i] = (v[i] - mean) * rstd;
            // Rounds an RMS norm before the weight, as transformers does.
            if (rms) v[i] = widen(narrow<T>(v[i]));
            v[i] = fmaf(v[i], scale[i], shift[i]);
        }
        put(to + row * a.cols + col, v, add);
    }
}

template <class T, int V> __device__ void layernorm_by(const LayerNorm& a) {
    DYNAMIC_SHARED(shared);
    // Each thread reads back only what it wrote.
    T* kept = reinterpret_cast<T*>(shared) + (uint64_t)threadIdx.y * a.cols;
    uint64_t row = (uint64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= a.rows) return;
    const T* x = static_cast<const T*>(a.x) + row * a.cols;
    float sum = 0;
    for (uint32_t col = threadIdx.x * V; col < a.cols; col += blockDim.x * V) {
        float v[V];
        load(x + col, v);
        store(kept + col, v);
#pragma unroll
        for (int i = 0; i < V; i++) sum += v[i];
    }
    normalise<T, V>(a, kept, sum, row, static_cast<T*>(a.y), a.add);
}

template <class T> __device__ void layernorm(const LayerNorm& a) {
    if (a.vector) layernorm_by<T, WIDE<T>>(a);
    else layernorm_by<T, 1>(a);
}
KERNELS(layernorm, layernorm<T>, LayerNorm, 256)

// y = x + dropout(branch + bias), h = layernorm(y).
template <class T, int V> __device__ void residual_norm_by(const ResidualNorm& a) {
    DYNAMIC_SHARED(shared);
    T* kept = reinterpret_cast<T*>(shared) + (uint64_t)threadIdx.y * a.cols;
    uint64_t row = (uint64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= a.rows) return;
    uint64_t place = run_row(a.drop) + row;
    float sum = 0;
    for (uint32_t col = threadIdx.x * V; col < a.cols; col += blockDim.x * V) {
        uint64_t at = row * a.cols + col;
        float x[V], y[V];
        load(static_cast<const T*>(a.x) + at, x);
        load(static_cast<const T*>(a.branch) + at, y);
        add_bias(static_cast<const T*>(a.bias), col, y);
        apply(a.drop, place, col, y);
#pragma unroll
        for (int i = 0; i < V; i++) y[i] += x[i];
        store(static_cast<T*>(a.y) + at, y);
        store(kept + col, y);
        // Normalises the rounded values that were stored.
#pragma unroll
        for (int i = 0; i < V; i++) sum += widen(narrow<T>(y[i]));
    }
    normalise<T, V>(a, kept, sum, row, static_cast<T*>(a.h), false);
}

template <class T> __device__ void residual_norm(const ResidualNorm& a) {
    if (a.vector) residual_norm_by<T, WIDE<T>>(a);
    else residual_norm_by<T, 1>(a);
}
KERNELS(residual_norm, residual_norm<T>, ResidualNorm, 256)

// With RESIDUAL, also computes the gradient of the branch of the residual before the norm. Thread t has
// columns (t + k·threads)·V .. + V: for k < K, kept in registers between the row's sums and dx; with K =
// 0 for any number of k, which are read twice.
template <class T, int V, int K, bool RESIDUAL>
__device__ void layernorm_backward_by(const LayerNormBackward& a, void* dbranch, const DropoutMask& drop) {
    DYNAMIC_SHARED(shared);
    float* dscale = reinterpret_cast<float*>(shared);
    float* dshift = dscale + a.cols;
    float* dbias = dshift + a.cols;
    uint64_t first = RESIDUAL && dbranch ? run_row(drop) : 0;
    constexpr int HELD = K ? K : 1;
    const uint32_t start_col = threadIdx.x * V, step = blockDim.x * V;
    const uint32_t pieces = K ? K : (a.cols + step - 1) / step;
    for (uint32_t col = start_col; col < a.cols; col += step) {
        float none[V] = {};
        store(dscale + col, none);
        store(dshift + col, none);
        if constexpr (RESIDUAL) store(dbias + col, none);
    }
    uint64_t start = (uint64_t)blockIdx.x * a.chunk;
    uint64_t end = start + a.chunk < a.rows ? start + a.chunk : a.rows;
    for (uint64_t row = start; row < end; row++) {
        float mean = a.stats[2 * row], rstd = a.stats[2 * row + 1];
        float g[HELD][V], xhat[HELD][V], scale[V], sum = 0, along = 0;
        auto read = [&](uint32_t col, float (&g)[V], float (&xhat)[V]) {
            load(static_cast<const T*>(a.dy) + row * a.cols + col, g);
            load(static_cast<const T*>(a.x) + row * a.cols + col, xhat);
            load(static_cast<const T*>(a.scale) + col, scale);
#pragma unroll
            for (int i = 0; i < V; i++) xhat[i] = (xhat[i] - mean) * rstd;
        };
#pragma unroll HELD
        for (uint32_t k = 0; k < pieces; k++) {
            uint32_t col = start_col + k * step, at = K ? k : 0;
            if (col >= a.cols) continue;
            float to_scale[V], to_shift[V];
            read(col, g[at], xhat[at]);
            load(dscale + col, to_scale);
            load(dshift + col, to_shift);
#pragma unroll
            for (int i = 0; i < V; i++) {
                to_scale[i] = fmaf(g[at][i], xhat[at][i], to_scale[i]);
                to_shift[i] += g[at][i];
                g[at][i] *= scale[i];
                sum += g[at][i];
                along = fmaf(g[at][i], xhat[at][i], along);
            }
            store(dscale + col, to_scale);
            store(dshift + col, to_shift);
        }
        sum = block_sum(sum) / a.cols;
        if (a.rms) sum = 0;
        along = block_sum(along) / a.cols;
#pragma unroll HELD
        for (uint32_t k = 0; k < pieces; k++) {
            uint32_t col = start_col + k * step, at = K ? k : 0;
            if (col >= a.cols) continue;
            if constexpr (K == 0) {
                read(col, g[at], xhat[at]);
#pragma unroll
                for (int i = 0; i < V; i++) g[at][i] *= scale[i];
            }
#pragma unroll
            for (int i = 0; i < V; i++) g[at][i] = rstd * fmaf(-xhat[at][i], along, g[at][i] - sum);
            put(static_cast<T*>(a.dx) + row * a.cols + col, g[at], RESIDUAL || a.add);
            if constexpr (RESIDUAL) {
                // dbranch is computed from the stored dx, and dbias from the stored dbranch.
                float sums[V];
#pragma unroll
                for (int i = 0; i < V; i++) g[at][i] = widen(narrow<T>(g[at][i]));
                if (dbranch) {
                    apply(drop, first + row, col, g[at]);
                    store(static_cast<T*>(dbranch) + row * a.cols + col, g[at]);
                }
                load(dbias + col, sums);
#pragma unroll
                for (int i = 0; i < V; i++) sums[i] += widen(narrow<T>(g[at][i]));
                store(dbias + col, sums);
            }
        }
    }
    constexpr int SUMS = RESIDUAL ? 3 : 2;
    float* parts = a.parts + (uint64_t)blockIdx.x * SUMS * a.cols;
    for (uint32_t col = start_col; col < a.cols; col += step) {
#pragma unroll
        for (int i = 0; i < SUMS; i++) {
            float sums[V];
            load(dscale + i * a.cols + col, sums);
            store(parts + i * a.cols + col, sums);
        }
    }
}

template <class T, int V, int K> __device__ void layernorm_backward(const LayerNormBackward& a) {
    layernorm_backward_by<T, V, K, false>(a, nullptr, DropoutMask());
}
template <class T, int V, int K> __device__ void norm_residual_backward(const NormResidualBackward& a) {
    layernorm_backward_by<T, V, K, true>(a.norm, a.dbranch, a.drop);
}
// Rows that are multiples of 16 bytes: one vector per thread, then 16 columns per thread up to the
// kernel's thread bound, which the launcher queries; longer rows are read twice. Other rows: one element
// at a time, read twice.
KERNELS(layernorm_backward_wide1, (layernorm_backward<T, WIDE<T>, 1>), LayerNormBackward, 512)
KERNELS(layernorm_backward_wide16, (layernorm_backward<T, WIDE<T>, 16 / WIDE<T>>), LayerNormBackward, 1024)
KERNELS(layernorm_backward_long, (layernorm_backward<T, WIDE<T>, 0>), LayerNormBackward, 512)
KERNELS(layernorm_backward_any, (layernorm_backward<T, 1, 0>), LayerNormBackward, 512)
// 72 registers: 896 threads of 16 columns are 14,336 columns, BLOOM-176B's.
KERNELS(norm_residual_backward_wide1, (norm_residual_backward<T, WIDE<T>, 1>), NormResidualBackward, 512)
KERNELS(norm_residual_backward_wide16, (norm_residual_backward<T, WIDE<T>, 16 / WIDE<T>>), NormResidualBackward, 896)
KERNELS(norm_residual_backward_long, (norm_residual_backward<T, WIDE<T>, 0>), NormResidualBackward, 512)
KERNELS(norm_residual_backward_any, (norm_residual_backward<T, 1, 0>), NormResidualBackward, 512)
