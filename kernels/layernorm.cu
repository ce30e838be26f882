// Layer normalisation (Ba, Kiros & Hinton 2016) over each row, and RMS normalisation (Zhang &
// Sennrich 2019), the same without a mean and a shift.
//
// Bytes moved for each element of size s: forward 2s (x, y); backward 3s (dy, x, dx), 4s to add.
// Fused with the residual before it, forward 4s (x, branch, y, h) for 5s apart; backward 4s (dy, x,
// dx twice) for 5s, with dropout 5s (dbranch) for 6s.
// Forward gives a row to a warp, which keeps it in shared memory between its three passes. Backward
// gives a row to a block, thread t always the same columns, so that a thread sums the gradients of
// scale and shift of its columns over all rows of the block without asking another.
#include "common.cuh"

// Normalises the row that a warp has kept, each lane its columns, with the sum of these.
template <class T, int V, class A>
__device__ void normalise(const A& a, const T* kept, float sum, uint64_t row, T* to, bool add) {
    bool rms = !a.shift;
    float mean = rms ? 0.0f : warp_sum(sum) / a.cols, squares = 0;
    for (uint32_t col = threadIdx.x * V; col < a.cols; col += 32 * V) {
        float v[V];
        load(kept + col, v);
#pragma unroll
        for (int i = 0; i < V; i++) squares = fmaf(v[i] - mean, v[i] - mean, squares);
    }
    float rstd = 1.0f / sqrtf(warp_sum(squares) / a.cols + a.eps);
    if (threadIdx.x == 0) {
        a.stats[2 * row] = mean;
        a.stats[2 * row + 1] = rstd;
    }
    for (uint32_t col = threadIdx.x * V; col < a.cols; col += 32 * V) {
        float v[V], scale[V], shift[V] = {};
        load(kept + col, v);
        load(static_cast<const T*>(a.scale) + col, scale);
        if (!rms) load(static_cast<const T*>(a.shift) + col, shift);
#pragma unroll
        for (int i = 0; i < V; i++) {
            v[i] = (v[i] - mean) * rstd;
            // An RMS norm is rounded before the weight, as in transformers.
            if (rms) v[i] = widen(narrow<T>(v[i]));
            v[i] = fmaf(v[i], scale[i], shift[i]);
        }
        put(to + row * a.cols + col, v, add);
    }
}

template <class T, int V> __device__ void layernorm_by(const LayerNorm& a) {
    DYNAMIC_SHARED(shared);
    // Each lane reads back only what it wrote.
    T* kept = reinterpret_cast<T*>(shared) + (uint64_t)threadIdx.y * a.cols;
    uint64_t row = (uint64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= a.rows) return;
    const T* x = static_cast<const T*>(a.x) + row * a.cols;
    float sum = 0;
    for (uint32_t col = threadIdx.x * V; col < a.cols; col += 32 * V) {
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
    for (uint32_t col = threadIdx.x * V; col < a.cols; col += 32 * V) {
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
        // The norm is of what was stored.
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

// With RESIDUAL, also the way back from dx to the branch of the residual before the norm.
// Thread t holds columns (t + k·threads)·V .. + V for k < K.
template <class T, int V, int K, bool RESIDUAL>
__device__ void layernorm_backward_by(const LayerNormBackward& a, void* dbranch, const DropoutMask& drop) {
    DYNAMIC_SHARED(shared);
    float* dscale = reinterpret_cast<float*>(shared);
    float* dshift = dscale + a.cols;
    float* dbias = dshift + a.cols;
    uint64_t first = RESIDUAL && dbranch ? run_row(drop) : 0;
    uint32_t columns[K];
#pragma unroll
    for (int k = 0; k < K; k++) {
        columns[k] = (threadIdx.x + k * blockDim.x) * V;
        if (columns[k] >= a.cols) continue;
        float none[V] = {};
        store(dscale + columns[k], none);
        store(dshift + columns[k], none);
        if constexpr (RESIDUAL) store(dbias + columns[k], none);
    }
    uint64_t start = (uint64_t)blockIdx.x * a.chunk;
    uint64_t end = start + a.chunk < a.rows ? start + a.chunk : a.rows;
    for (uint64_t row = start; row < end; row++) {
        float mean = a.stats[2 * row], rstd = a.stats[2 * row + 1];
        float g[K][V], xhat[K][V], sum = 0, along = 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (columns[k] >= a.cols) continue;
            uint64_t at = row * a.cols + columns[k];
            load(static_cast<const T*>(a.dy) + at, g[k]);
            load(static_cast<const T*>(a.x) + at, xhat[k]);
            float scale[V], to_scale[V], to_shift[V];
            load(static_cast<const T*>(a.scale) + columns[k], scale);
            load(dscale + columns[k], to_scale);
            load(dshift + columns[k], to_shift);
#pragma unroll
            for (int i = 0; i < V; i++) {
                xhat[k][i] = (xhat[k][i] - mean) * rstd;
                to_scale[i] = fmaf(g[k][i], xhat[k][i], to_scale[i]);
                to_shift[i] += g[k][i];
                g[k][i] *= scale[i];
                sum += g[k][i];
                along = fmaf(g[k][i], xhat[k][i], along);
            }
            store(dscale + columns[k], to_scale);
            store(dshift + columns[k], to_shift);
        }
        sum = block_sum(sum) / a.cols;
        if (a.rms) sum = 0;
        along = block_sum(along) / a.cols;
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (columns[k] >= a.cols) continue;
#pragma unroll
            for (int i = 0; i < V; i++) g[k][i] = rstd * fmaf(-xhat[k][i], along, g[k][i] - sum);
            put(static_cast<T*>(a.dx) + row * a.cols + columns[k], g[k], RESIDUAL || a.add);
            if constexpr (RESIDUAL) {
                // dbranch is of dx as stored, and dbias of dbranch as stored.
                float sums[V];
#pragma unroll
                for (int i = 0; i < V; i++) g[k][i] = widen(narrow<T>(g[k][i]));
                if (dbranch) {
                    apply(drop, first + row, columns[k], g[k]);
                    store(static_cast<T*>(dbranch) + row * a.cols + columns[k], g[k]);
                }
                load(dbias + columns[k], sums);
#pragma unroll
                for (int i = 0; i < V; i++) sums[i] += widen(narrow<T>(g[k][i]));
                store(dbias + columns[k], sums);
            }
        }
    }
    constexpr int SUMS = RESIDUAL ? 3 : 2;
    float* parts = a.parts + (uint64_t)blockIdx.x * SUMS * a.cols;
#pragma unroll
    for (int k = 0; k < K; k++) {
        if (columns[k] >= a.cols) continue;
        float sums[V];
        load(dscale + columns[k], sums);
        store(parts + columns[k], sums);
        load(dshift + columns[k], sums);
        store(parts + a.cols + columns[k], sums);
        if constexpr (RESIDUAL) {
            load(dbias + columns[k], sums);
            store(parts + 2 * a.cols + columns[k], sums);
        }
    }
}

template <class T, int V, int K> __device__ void layernorm_backward(const LayerNormBackward& a) {
    layernorm_backward_by<T, V, K, false>(a, nullptr, DropoutMask());
}
template <class T, int V, int K> __device__ void norm_residual_backward(const NormResidualBackward& a) {
    layernorm_backward_by<T, V, K, true>(a.norm, a.dbranch, a.drop);
}
// Wide rows: K·V·threads columns. Any other: one by one, in eights.
KERNELS(layernorm_backward_wide1, (layernorm_backward<T, WIDE<T>, 1>), LayerNormBackward, 512)
KERNELS(layernorm_backward_wide16, (layernorm_backward<T, WIDE<T>, 16 / WIDE<T>>), LayerNormBackward, 1024)
KERNELS(layernorm_backward_any, (layernorm_backward<T, 1, 8>), LayerNormBackward, 1024)
// Three rows of sums leave place for 13,653 columns, 864 threads of 16.
KERNELS(norm_residual_backward_wide1, (norm_residual_backward<T, WIDE<T>, 1>), NormResidualBackward, 512)
KERNELS(norm_residual_backward_wide16, (norm_residual_backward<T, WIDE<T>, 16 / WIDE<T>>), NormResidualBackward, 864)
KERNELS(norm_residual_backward_any, (norm_residual_backward<T, 1, 8>), NormResidualBackward, 1024)
