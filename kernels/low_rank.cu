// Low-rank gradients: a guarded axpy, and orthonormalization of columns.
//
// Bytes moved for each element: axpy 8, or 12 where it accumulates.
#include "common.cuh"

template <int V> __device__ void axpy_by(const Axpy& a, float by) {
    each<V>(a.numel, [&](uint64_t at) {
        float x[V], y[V];
        load(a.x + at, x);
        if (a.add) load(a.y + at, y);
#pragma unroll
        for (int i = 0; i < V; i++) y[i] = a.add ? fmaf(by, x[i], y[i]) : by * x[i];
        store(a.y + at, y);
    });
}

__device__ void guarded_axpy(const Axpy& a) {
    float by = a.a * *a.factor;
    if (by != by) return; // NaN: y is unchanged
    if (a.vector) axpy_by<4>(a, by);
    else axpy_by<1>(a, by);
}
KERNEL(axpy, guarded_axpy, Axpy, 256)

// Matrix [rows, cols] of a block. A row always belongs to the same thread, so no barrier is needed
// between a change of a column and its reads.
struct Columns {
    float* x;
    uint32_t rows, cols;

    __device__ __forceinline__ double dot(uint32_t j, uint32_t k) const {
        double sum = 0;
        for (uint32_t i = threadIdx.x; i < rows; i += blockDim.x) {
            const float* row = x + (uint64_t)i * cols;
            sum += (double)row[j] * row[k];
        }
        return block_sum(sum);
    }

    // Subtracts from column k its projections on the columns before it, twice: see
    // device/cpu/low_rank.rs.
    __device__ __forceinline__ void project(uint32_t k) const {
        for (uint32_t time = 0; time < 2 * k; time++) {
            uint32_t j = time < k ? time : time - k;
            float by = (float)-dot(j, k);
            for (uint32_t i = threadIdx.x; i < rows; i += blockDim.x) {
                float* row = x + (uint64_t)i * cols;
                row[k] = fmaf(by, row[j], row[k]);
            }
        }
    }
};

__device__ void orthogonalize_columns(const Orthogonalize& a) {
    Columns m = {a.x[blockIdx.x], a.rows[blockIdx.x], a.cols};
    for (uint32_t k = 0; k < m.cols; k++) {
        m.project(k);
        double norm = sqrt(m.dot(k, k));
        if (norm == 0) {
            for (uint32_t i = threadIdx.x; i < m.rows; i += blockDim.x)
                m.x[(uint64_t)i * m.cols + k] = i == k ? 1.0f : 0.0f;
            m.project(k);
            norm = sqrt(m.dot(k, k));
        }
        if (norm == 0) continue;
        float by = (float)(1.0 / norm);
        for (uint32_t i = threadIdx.x; i < m.rows; i += blockDim.x)
            m.x[(uint64_t)i * m.cols + k] *= by;
    }
}
KERNEL(orthogonalize, orthogonalize_columns, Orthogonalize, 512)
