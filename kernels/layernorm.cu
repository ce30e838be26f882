// Layer normalisation (Ba, Kiros & Hinton 2016) over each row.
//
// Bytes moved for each element of size s: forward 2s (x, y); backward 3s (dy, x, dx), 4s to add.
// Forward gives a row to a warp, which keeps it in shared memory between its three passes. Backward
// gives a row to a block, thread t always the same columns, so that a thread sums the gradients of
// scale and shift of its columns over all rows of the block without asking another.
#include "common.cuh"

struct LayerNorm {
    const void* x;
    const void* scale;
    const void* shift;
    void* y;
    float* stats; // [rows, 2]
    uint64_t rows;
    uint32_t cols;
    float eps;
    uint32_t add, vector;
};

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
    float mean = warp_sum(sum) / a.cols, squares = 0;
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
        float v[V], scale[V], shift[V];
        load(kept + col, v);
        load(static_cast<const T*>(a.scale) + col, scale);
        load(static_cast<const T*>(a.shift) + col, shift);
#pragma unroll
        for (int i = 0; i < V; i++) v[i] = fmaf((v[i] - mean) * rstd, scale[i], shift[i]);
        put(static_cast<T*>(a.y) + row * a.cols + col, v, a.add);
    }
}

template <class T> __device__ void layernorm(const LayerNorm& a) {
    if (a.vector) layernorm_by<T, WIDE<T>>(a);
    else layernorm_by<T, 1>(a);
}
KERNELS(layernorm, layernorm<T>, LayerNorm, 256)

struct LayerNormBackward {
    const void* dy;
    const void* x;
    const float* stats;
    const void* scale;
    void* dx;
    float* parts; // [blocks, 2, cols]: of dscale and of dshift
    uint64_t rows;
    uint32_t cols;
    uint32_t chunk; // rows of a block
    uint32_t add, unused;
};

// Thread t holds columns (t + k·threads)·V .. + V for k < K.
template <class T, int V, int K> __device__ void layernorm_backward(const LayerNormBackward& a) {
    DYNAMIC_SHARED(shared);
    float* dscale = reinterpret_cast<float*>(shared);
    float* dshift = dscale + a.cols;
    uint32_t columns[K];
#pragma unroll
    for (int k = 0; k < K; k++) {
        columns[k] = (threadIdx.x + k * blockDim.x) * V;
        if (columns[k] >= a.cols) continue;
        float none[V] = {};
        store(dscale + columns[k], none);
        store(dshift + columns[k], none);
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
        along = block_sum(along) / a.cols;
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (columns[k] >= a.cols) continue;
#pragma unroll
            for (int i = 0; i < V; i++) g[k][i] = rstd * fmaf(-xhat[k][i], along, g[k][i] - sum);
            put(static_cast<T*>(a.dx) + row * a.cols + columns[k], g[k], a.add);
        }
    }
    float* parts = a.parts + (uint64_t)blockIdx.x * 2 * a.cols;
#pragma unroll
    for (int k = 0; k < K; k++) {
        if (columns[k] >= a.cols) continue;
        float sums[V];
        load(dscale + columns[k], sums);
        store(parts + columns[k], sums);
        load(dshift + columns[k], sums);
        store(parts + a.cols + columns[k], sums);
    }
}
// Wide rows: K·V·threads columns. Any other: one by one, in eights.
KERNELS(layernorm_backward_wide1, (layernorm_backward<T, WIDE<T>, 1>), LayerNormBackward, 512)
KERNELS(layernorm_backward_wide16, (layernorm_backward<T, WIDE<T>, 16 / WIDE<T>>), LayerNormBackward, 1024)
KERNELS(layernorm_backward_any, (layernorm_backward<T, 1, 8>), LayerNormBackward, 1024)
