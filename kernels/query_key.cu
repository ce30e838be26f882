// Queries and keys before attention: an RMS norm of each head (Qwen3), then RoPE (Su et al. 2021).
//
// A warp has one head of one row at a time; lane l has columns l, l + 32, … of the first half and the
// same columns of the second: both elements of each pair that RoPE rotates. In backward a block has the
// heads of consecutive rows, so that the sums for the norm's scales are added in one order.
// Bytes moved for each element of queries and keys of size s: forward 2s; backward 2s, with a norm 3s.
#include "common.cuh"

constexpr int WARPS = 8;
constexpr int PAIRS = 4; // per lane: heads have at most 256 columns

// One head of one row.
template <class T> struct HeadRow {
    uint32_t d, half, lane;
    uint64_t row;
    uint64_t at; // its first element
    bool key, value;

    __device__ __forceinline__ HeadRow(const QueryKey& a, uint64_t number)
        : d(a.d), half((a.d + 1) / 2), lane(threadIdx.x % 32) {
        uint32_t parts = a.heads + 2 * a.kv, group = a.heads / a.kv + 2;
        row = number / parts;
        uint32_t in = number % parts % group;
        at = number * d;
        key = in == group - 2;
        value = in == group - 1;
    }

    // Columns outside the head are zeros.
    __device__ __forceinline__ void read(const T* from, float (&x)[2][PAIRS]) const {
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            uint32_t c = lane + 32 * i;
            x[0][i] = c < half ? widen(from[c]) : 0.0f;
            x[1][i] = c < half && c + half < d ? widen(from[c + half]) : 0.0f;
        }
    }

    __device__ __forceinline__ void write(T* to, const float (&x)[2][PAIRS]) const {
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            uint32_t c = lane + 32 * i;
            if (c < half) to[c] = narrow<T>(x[0][i]);
            if (c < half && c + half < d) to[c + half] = narrow<T>(x[1][i]);
        }
    }

    // 1/√(mean of x² + eps)
    __device__ __forceinline__ float root(const float (&x)[2][PAIRS], float eps) const {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) sum = fmaf(x[0][i], x[0][i], fmaf(x[1][i], x[1][i], sum));
        return 1.0f / sqrtf(warp_sum(sum) / d + eps);
    }

    // Rotates by the angles of the row's position, or back by them.
    __device__ __forceinline__ void turn(const QueryKey& a, float (&x)[2][PAIRS], float sign) const {
        const float* angles = a.table + (uint64_t)a.positions[row] * d;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            uint32_t c = lane + 32 * i;
            if (c >= half) continue;
            float cos = angles[c], sin = sign * angles[c + half];
            float first = x[0][i], second = x[1][i];
            x[0][i] = fmaf(first, cos, -(second * sin));
            x[1][i] = fmaf(second, cos, first * sin);
        }
    }
};

template <class T> __device__ void query_key(const QueryKey& a) {
    uint64_t number = (uint64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (number >= a.rows * (a.heads + 2 * a.kv)) return;
    HeadRow<T> head(a, number);
    if (head.value && !a.copy) return;
    float x[2][PAIRS];
    head.read(static_cast<const T*>(a.qkv) + head.at, x);
    if (a.query_scale && !head.value) {
        float scale[2][PAIRS], root = head.root(x, a.eps);
        head.read(static_cast<const T*>(head.key ? a.key_scale : a.query_scale), scale);
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; i++) {
            float& own = x[i / PAIRS][i % PAIRS];
            // Rounds before the weight and after it, as transformers does.
            own = widen(narrow<T>(own * root));
            own = widen(narrow<T>(own * scale[i / PAIRS][i % PAIRS]));
        }
    }
    if (a.positions && !head.value) head.turn(a, x, 1.0f);
    head.write(static_cast<T*>(a.to) + head.at, x);
}
KERNELS(query_key, query_key<T>, QueryKey, 256)

// Stores dx, and the block's sums for the gradients of the scales in parts.
template <class T> __device__ void query_key_backward(const QueryKey& a) {
    SHARED(float, shared, [WARPS][2][2 * 32 * PAIRS]);
    uint64_t all = a.rows * (a.heads + 2 * a.kv), start = (uint64_t)blockIdx.x * a.chunk;
    uint64_t end = start + a.chunk < all ? start + a.chunk : all;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float sums[2][2 * PAIRS] = {}; // gradients of the query's scale, and of the key's
    for (uint64_t number = start + warp; number < end; number += WARPS) {
        HeadRow<T> head(a, number);
        if (head.value && !a.copy) continue;
        float dy[2][PAIRS];
        head.read(static_cast<const T*>(a.dy) + head.at, dy);
        if (a.positions && !head.value) head.turn(a, dy, -1.0f);
        if (a.query_scale && !head.value) {
            float x[2][PAIRS], scale[2][PAIRS], along = 0;
            head.read(static_cast<const T*>(a.qkv) + head.at, x);
            head.read(static_cast<const T*>(head.key ? a.key_scale : a.query_scale), scale);
            float root = head.root(x, a.eps);
#pragma unroll
            for (int i = 0; i < 2 * PAIRS; i++) {
                float &g = dy[i / PAIRS][i % PAIRS], &own = x[i / PAIRS][i % PAIRS];
                own *= root;
                float sum = g * own;
                sums[0][i] += head.key ? 0.0f : sum;
                sums[1][i] += head.key ? sum : 0.0f;
                g *= scale[i / PAIRS][i % PAIRS];
                along = fmaf(g, own, along);
            }
            along = warp_sum(along) / a.d;
#pragma unroll
            for (int i = 0; i < 2 * PAIRS; i++) {
                float& g = dy[i / PAIRS][i % PAIRS];
                g = root * fmaf(-x[i / PAIRS][i % PAIRS], along, g);
            }
        }
        head.write(static_cast<T*>(a.to) + head.at, dy);
    }
    if (!a.parts) return;
    // Sum i of a lane belongs to column lane + 32·(i % PAIRS), of the second half for i from PAIRS.
#pragma unroll
    for (int i = 0; i < 2 * PAIRS; i++) {
        shared[warp][0][lane + 32 * i] = sums[0][i];
        shared[warp][1][lane + 32 * i] = sums[1][i];
    }
    __syncthreads();
    uint32_t half = (a.d + 1) / 2;
    float* to = a.parts + (uint64_t)blockIdx.x * 2 * a.d;
    for (uint32_t c = threadIdx.x; c < 2 * a.d; c += 32 * WARPS) {
        uint32_t which = c / a.d, column = c % a.d;
        uint32_t place = column < half ? column : 32 * PAIRS + column - half;
        float sum = 0;
        for (int w = 0; w < WARPS; w++) sum += shared[w][which][place];
        to[c] = sum;
    }
}
KERNELS(query_key_backward, query_key_backward<T>, QueryKey, 256)
