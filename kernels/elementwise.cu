// Elementwise kernels: copy, dropout, residual; and column sums.
//
// Bytes moved for each element of size s (2 or 4): copy s + s'; dropout 2s; residual 3s (x, branch, y);
// residual_backward 2s (dy, dbranch), or s if dbranch is dy's memory and nothing is dropped; column sums
// s. Everything else (bias, partial sums of a few hundred rows each) remains in the cache.
#include "common.cuh"

template <class X, class Y, int V> __device__ void copy_by(const Copy& a) {
    each<V>(a.numel, [&](uint64_t at) {
        float x[V];
        load(static_cast<const X*>(a.x) + at, x);
        put(static_cast<Y*>(a.y) + at, x, a.add);
    });
}

template <class X, class Y> __device__ void copy(const Copy& a) {
    constexpr int V = WIDE<X> > WIDE<Y> ? WIDE<X> : WIDE<Y>;
    if (a.vector) copy_by<X, Y, V>(a);
    else copy_by<X, Y, 1>(a);
}
KERNELS(copy_f32, (copy<float, T>), Copy, 256)
KERNELS(copy_bf16, (copy<bf16, T>), Copy, 256)
KERNELS(copy_f16, (copy<f16, T>), Copy, 256)

template <class T, int V> __device__ void dropout_by(const Dropout& a) {
    uint64_t first = run_row(a.drop);
    each_piece<V>(a.rows, a.cols, [&](uint64_t row, uint32_t col) {
        float x[V];
        load(static_cast<const T*>(a.x) + row * a.cols + col, x);
        apply(a.drop, first + row, col, x);
        put(static_cast<T*>(a.y) + row * a.cols + col, x, a.add);
    });
}

template <class T> __device__ void dropout(const Dropout& a) {
    if (a.vector) dropout_by<T, WIDE<T>>(a);
    else dropout_by<T, 1>(a);
}
KERNELS(dropout, dropout<T>, Dropout, 256)

// y = x + dropout(branch + bias)
template <class T, int V> __device__ void residual_by(const Residual& a) {
    uint64_t first = run_row(a.drop);
    each_piece<V>(a.rows, a.cols, [&](uint64_t row, uint32_t col) {
        uint64_t at = row * a.cols + col;
        float x[V], sum[V];
        load(static_cast<const T*>(a.x) + at, x);
        load(static_cast<const T*>(a.branch) + at, sum);
        add_bias(static_cast<const T*>(a.bias), col, sum);
        apply(a.drop, first + row, col, sum);
#pragma unroll
        for (int i = 0; i < V; i++) sum[i] += x[i];
        store(static_cast<T*>(a.y) + at, sum);
    });
}

template <class T> __device__ void residual(const Residual& a) {
    if (a.vector) residual_by<T, WIDE<T>>(a);
    else residual_by<T, 1>(a);
}
KERNELS(residual, residual<T>, Residual, 256)

// Column sums over `chunk` rows per block in y: parts [chunks, cols]. With `to`, sums dropout(x), which
// is stored there first.
constexpr int SUM_ROWS = 8;

template <class T, int V> __device__ void column_parts_by(const ColumnParts& a) {
    SHARED(float, shared, [SUM_ROWS][32 * V]);
    uint64_t first = a.to ? run_row(a.drop) : 0;
    uint32_t col = (blockIdx.x * 32 + threadIdx.x) * V;
    float sums[V] = {};
    if (col < a.cols) {
        uint64_t start = (uint64_t)blockIdx.y * a.chunk;
        uint64_t end = start + a.chunk < a.rows ? start + a.chunk : a.rows;
        for (uint64_t row = start + threadIdx.y; row < end; row += SUM_ROWS) {
            float x[V];
            load(static_cast<const T*>(a.x) + row * a.cols + col, x);
            if (a.to) {
                apply(a.drop, first + row, col, x);
                T* to = static_cast<T*>(a.to) + row * a.cols + col;
                store(to, x);
                // Sums the rounded values that were stored.
#pragma unroll
                for (int i = 0; i < V; i++) x[i] = widen(narrow<T>(x[i]));
            }
#pragma unroll
            for (int i = 0; i < V; i++) sums[i] += x[i];
        }
    }
#pragma unroll
    for (int i = 0; i < V; i++) shared[threadIdx.y][threadIdx.x * V + i] = sums[i];
    __syncthreads();
    if (threadIdx.y == 0 && col < a.cols) {
        for (int y = 1; y < SUM_ROWS; y++)
#pragma unroll
            for (int i = 0; i < V; i++) sums[i] += shared[y][threadIdx.x * V + i];
        store(a.parts + (uint64_t)blockIdx.y * a.cols + col, sums);
    }
}

template <class T> __device__ void column_parts(const ColumnParts& a) {
    if (a.vector) column_parts_by<T, WIDE<T>>(a);
    else column_parts_by<T, 1>(a);
}
KERNELS(column_parts, column_parts<T>, ColumnParts, 256)

// outs[y] (+)= Σ over the parts of block y, which are `stride` elements apart. Few blocks have hundreds of parts per thread:
// the latency of loads is the bottleneck, so IN_FLIGHT of them are issued before the first is added.
__device__ void sum_columns(const ColumnSums& a) {
    constexpr int IN_FLIGHT = 16;
    SHARED(float, shared, [SUM_ROWS][32]);
    uint32_t col = blockIdx.x * 32 + threadIdx.x;
    float* out = a.outs[blockIdx.y];
    if (!out) return;
    const float* parts = a.parts + (uint64_t)blockIdx.y * a.cols;
    float sum = 0;
    if (col < a.cols)
        for (uint32_t first = threadIdx.y; first < a.count; first += SUM_ROWS * IN_FLIGHT) {
            float x[IN_FLIGHT];
#pragma unroll
            for (int k = 0; k < IN_FLIGHT; k++) {
                uint32_t i = first + k * SUM_ROWS;
                x[k] = i < a.count ? parts[i * a.stride + col] : 0.0f;
            }
#pragma unroll
            for (int k = 0; k < IN_FLIGHT; k++) sum += x[k];
        }
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && col < a.cols) {
        for (int y = 1; y < SUM_ROWS; y++) sum += shared[y][threadIdx.x];
        out[col] = a.add[blockIdx.y] ? out[col] + sum : sum;
    }
}
KERNEL(column_sums, sum_columns, ColumnSums, 256)
