// Adafactor: sums of squares by rows, columns and fused matrices, and the update.
//
// Bytes moved for each element, of an f32 gradient and a rounded weight of size s: sums by row 4, by column
// 4, of the weight 4, of U 4; the update 12 + s. Means by row and column remain in the cache. Loads are
// 4 bytes wide and coalesced in a warp: a part of a matrix may begin anywhere in a row. Sums are taken
// by a fixed number of blocks and added in block order.
#include "common.cuh"

// Number of the fused matrix that contains a row (for a vector: a column).
__device__ __forceinline__ uint32_t fused_of(const MatrixPart& part, uint64_t row) {
    if (part.width1 == 0) return 0;
    uint32_t at = (uint32_t)(row % (part.width0 + part.width1 + part.width2));
    return (at >= part.width0) + (at >= part.width0 + part.width1);
}

__device__ __forceinline__ uint32_t width_of(const MatrixPart& part, uint32_t number) {
    return number == 0 ? part.width0 : number == 1 ? part.width1 : part.width2;
}

// Number of rows of a fused matrix in the whole tensor (for a vector: of columns).
__device__ __forceinline__ uint64_t rows_of(const MatrixPart& part, uint32_t number) {
    uint64_t all = part.vector ? part.whole_cols : part.whole_rows;
    return all / (part.width0 + part.width1 + part.width2) * width_of(part, number);
}

__device__ __forceinline__ float numel_of(const MatrixPart& part, uint32_t number) {
    return (float)(rows_of(part, number) * (part.vector ? 1 : part.whole_cols));
}

// First and end row of which this part has elements; `cols_of`: its columns of a row.
__device__ __forceinline__ uint64_t first_row(const MatrixPart& part) { return part.first / part.cols; }
__device__ __forceinline__ uint64_t end_row(const MatrixPart& part) {
    return (part.first + part.len + part.cols - 1) / part.cols;
}
struct Cols {
    uint32_t from, to;
};
__device__ __forceinline__ Cols cols_of(const MatrixPart& part, uint64_t row) {
    uint64_t start = row * part.cols, last = part.first + part.len;
    uint64_t from = part.first > start ? part.first - start : 0;
    uint64_t to = last < start + part.cols ? last - start : part.cols;
    return {(uint32_t)from, (uint32_t)to};
}

__device__ void sum_rows(const FactorRows& a) {
    uint64_t row = first_row(a.part) + blockIdx.x;
    Cols cols = cols_of(a.part, row);
    const float* x = a.x + (row * a.part.cols - a.part.first);
    float factor = *a.factor;
    double sum = 0;
    for (uint32_t col = cols.from + threadIdx.x; col < cols.to; col += blockDim.x) {
        float g = x[col] * factor;
        sum += (double)g * g;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) a.rows[row] += (float)sum;
}
KERNEL(factor_rows, sum_rows, FactorRows, 256)

// Column sums over `chunk` rows per block in y: parts [chunks, fused, cols].
constexpr int SUM_ROWS = 8;

__device__ void sum_cols(const FactorCols& a) {
    SHARED(double, shared, [3][SUM_ROWS][32]);
    uint32_t col = blockIdx.x * 32 + threadIdx.x;
    float factor = *a.factor;
    double sums[3] = {};
    uint64_t start = first_row(a.part) + blockIdx.y * a.chunk, last = end_row(a.part);
    uint64_t end = start + a.chunk < last ? start + a.chunk : last;
    for (uint64_t row = start + threadIdx.y; row < end; row += SUM_ROWS) {
        Cols cols = cols_of(a.part, row);
        if (col < cols.from || col >= cols.to) continue;
        float g = a.x[row * a.part.cols + col - a.part.first] * factor;
        uint32_t number = a.part.vector ? 0 : fused_of(a.part, row);
#pragma unroll
        for (uint32_t i = 0; i < 3; i++)
            if (number == i) sums[i] += (double)g * g;
    }
#pragma unroll
    for (int i = 0; i < 3; i++) shared[i][threadIdx.y][threadIdx.x] = sums[i];
    __syncthreads();
    if (threadIdx.y < a.count && col < a.part.cols) {
        double sum = 0;
        for (int y = 0; y < SUM_ROWS; y++) sum += shared[threadIdx.y][y][threadIdx.x];
        uint64_t row = (uint64_t)blockIdx.y * a.count + threadIdx.y;
        a.parts[row * a.part.cols + col] = (float)sum;
    }
}
KERNEL(factor_cols, sum_cols, FactorCols, 256)

// Factor of the column means of a matrix: row / mean of a row; 1 for a vector.
__device__ __forceinline__ float row_scale(const float* row, const float* mean, float eps, uint64_t at, uint32_t number) {
    return row ? row[at] / fmaxf(mean[number], eps) : 1.0f;
}

__device__ __forceinline__ float direction(float g, float scale, float mean, float eps) {
    return g / sqrtf(fmaxf(scale * mean, eps * eps));
}

// Partial sums of x, or of U: parts [blocks, 3].
__device__ void sum_fused(const FusedSums& a) {
    float factor = a.factor ? *a.factor : 1.0f;
    double sums[3] = {};
    uint64_t last = end_row(a.part);
    for (uint64_t row = first_row(a.part) + blockIdx.x; row < last; row += gridDim.x) {
        Cols cols = cols_of(a.part, row);
        uint32_t of = a.part.vector ? 0 : fused_of(a.part, row);
        const float* x = a.x + (row * a.part.cols - a.part.first);
        const float* means = a.col + (uint64_t)of * a.part.cols;
        float scale = a.factor ? row_scale(a.row, a.mean, a.eps, row, of) : 1.0f;
        for (uint32_t col = cols.from + threadIdx.x; col < cols.to; col += blockDim.x) {
            float u = x[col] * factor;
            if (a.factor) u = direction(u, scale, means[col], a.eps);
            uint32_t number = a.part.vector ? fused_of(a.part, col) : of;
#pragma unroll
            for (uint32_t i = 0; i < 3; i++)
                if (number == i) sums[i] += (double)u * u;
        }
    }
#pragma unroll
    for (int i = 0; i < 3; i++) {
        double sum = block_sum(sums[i]);
        if (threadIdx.x == 0) a.parts[blockIdx.x * 3 + i] = sum;
    }
}
KERNEL(fused_sums, sum_fused, FusedSums, 256)

__device__ void finish_fused(const FusedFinish& a) {
    for (uint32_t number = 0; number < a.count; number++) {
        double sum = 0;
        for (uint32_t i = threadIdx.x; i < a.blocks; i += blockDim.x) sum += a.parts[i * 3 + number];
        sum = block_sum(sum);
        if (threadIdx.x == 0) a.out[number] += (float)sum;
    }
}
KERNEL(fused_finish, finish_fused, FusedFinish, 256)

// Runs in one thread on the device, so that no step waits for the host to count updates.
__device__ void decay_and_rho(const AdafactorScalars& a) {
    double updates = (double)*a.updates;
    double rho = a.lr;
    if (a.relative_step) rho = fmin(rho, 1.0 / sqrt(updates));
    a.out[0] = (float)pow(updates, (double)a.beta2_decay);
    a.out[1] = (float)rho;
}
KERNEL(adafactor_scalars, decay_and_rho, AdafactorScalars, 1)

// Moves v towards sum·scale by the fraction `towards`.
__device__ __forceinline__ float moved(float v, float sum, float scale, float towards) {
    return fmaf(fmaf(sum, scale, -v), towards, v);
}

// One block per fused matrix.
__device__ void move_moment(const SecondMoment& a) {
    float factor = a.scalars[0], towards = a.scalars[1];
    if (factor != factor) return; // NaN skips the update
    const MatrixPart& part = a.part;
    uint32_t number = blockIdx.x;
    uint64_t of = part.vector ? 1 : rows_of(part, number);
    bool by_col = part.cols == part.whole_cols;
    double sum = 0;
    const float* col_sums = a.col_sums + (uint64_t)number * part.cols;
    float* cols = a.col + (uint64_t)number * part.cols;
    for (uint32_t col = threadIdx.x; col < part.cols; col += blockDim.x) {
        float mean = moved(cols[col], col_sums[col], 1.0f / (float)of, towards);
        cols[col] = mean;
        if (by_col) sum += mean;
    }
    if (!a.row) return;
    for (uint64_t row = threadIdx.x; row < part.rows; row += blockDim.x) {
        if (fused_of(part, row) != number) continue;
        float mean = moved(a.row[row], a.row_sums[row], 1.0f / (float)part.whole_cols, towards);
        a.row[row] = mean;
        if (!by_col) sum += mean;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) a.mean[number] = (float)(sum / (double)(by_col ? part.cols : of));
}
KERNEL(move_second_moment, move_moment, SecondMoment, 512)

template <class L> __device__ void adafactor(const Adafactor& a) {
    SHARED(float, steps, [3]);
    float factor = a.scalars[0];
    if (factor != factor) return; // NaN skips the update
    const MatrixPart& part = a.part;
    if (threadIdx.x < 3 && width_of(part, threadIdx.x)) {
        float numel = numel_of(part, threadIdx.x);
        float scale = a.weight_squares ? fmaxf(sqrtf(a.weight_squares[threadIdx.x] / numel), a.scale_eps) : 1.0f;
        float rms = sqrtf(a.update_squares[threadIdx.x] / numel);
        steps[threadIdx.x] = a.scalars[2] * a.lr_scale * scale / fmaxf(rms / a.clip_threshold, 1.0f);
    }
    __syncthreads();
    uint32_t col = blockIdx.x * blockDim.x + threadIdx.x;
    uint64_t last = end_row(part);
    for (uint64_t row = first_row(part) + blockIdx.y; row < last; row += gridDim.y) {
        Cols cols = cols_of(part, row);
        if (col < cols.from || col >= cols.to) continue;
        uint32_t of = part.vector ? 0 : fused_of(part, row);
        uint32_t number = part.vector ? fused_of(part, col) : of;
        uint64_t at = row * part.cols + col - part.first;
        float mean = a.col[(uint64_t)of * part.cols + col];
        float scale = row_scale(a.row, a.mean, a.eps, row, of);
        float u = direction(a.grad[at] * factor, scale, mean, a.eps);
        float w = fmaf(-steps[number], u, a.master[at] * a.keep);
        a.master[at] = w;
        if (a.weight) static_cast<L*>(a.weight)[at] = narrow<L>(w);
    }
}
KERNELS(adafactor, adafactor<T>, Adafactor, 256)
