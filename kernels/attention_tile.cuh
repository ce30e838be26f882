// Softmax, forward and backward, over a tile of scores in registers: shared parts of the tensor-core
// kernels of attention.
//
// A warp has 16 rows of N columns, as fragments of mma.sync and of wgmma: thread t has rows t / 4 and
// t / 4 + 8 (`half` 0 and 1), and in each the columns 8·n + t % 4 · 2 + i. Scores are products that are
// not yet scaled.
//
// These kernels are bound by instructions, not by products. Dropout, ALiBi, masks and rescaling are
// therefore branches that a whole warp takes or does not: what is off costs nothing per element.
#pragma once
#include "attention.cuh"

// Calls `body(at, x)` for the thread's numbers of its row (half 0, or 1: eight rows below), `at` columns
// after its first.
template <int N, class Body> __device__ __forceinline__ void each_of(float (&s)[N / 8][4], int half, Body body) {
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) body(8 * n + i, s[n][2 * half + i]);
}

// Bit mask of the thread's numbers of a row that dropout removes. All words are drawn before any is
// used, since registers are the bottleneck.
template <int N, class T>
__device__ __forceinline__ uint32_t dropped_keys(const Head<T>& head, int query, int column) {
    const DropoutMask& drop = head.a.drop;
    uint64_t dropped = run_row(drop);
    uint32_t bits = 0;
#pragma unroll 2
    for (int n = 0; n < N / 8; n++) {
        uint32_t key = column + 8 * n; // even
        uint4 words = philox(drop.key, dropped + head.row + query, head.a.first_head + head.head, key / 4);
        uint32_t low = key % 4 ? words.z : words.x, high = key % 4 ? words.w : words.y;
        bits |= ((low < drop.bound ? 1u : 0u) | (high < drop.bound ? 2u : 0u)) << 2 * n;
    }
    return bits;
}

// Whether the mask has the number `at` columns after the first.
__device__ __forceinline__ bool has(uint32_t bits, int at) { return bits >> (at / 8 * 2 + at % 2) & 1; }

// Masks a row of a query's scores: adds ALiBi's distances, and sets invisible keys to −∞. `column` is
// the thread's first key.
template <int N, class T>
__device__ __forceinline__ void mask(const Head<T>& head, float (&s)[N / 8][4], int half, int query, int column, bool all, const int2& seen) {
    if (head.slope != 0) {
        float ratio = head.slope / head.a.scale, first = ratio * (column - query);
        each_of<N>(s, half, [&](int at, float& x) { x += fmaf(ratio, (float)at, first); });
    }
    if (!all) {
        int first = seen.x - column, last = seen.y - column;
        each_of<N>(s, half, [&](int at, float& x) {
            if (at < first || at >= last) x = -INFINITY;
        });
    }
}

// Online softmax of two rows, row and row + 8. `maximum` is the largest score, or a smaller one that the
// largest exceeds by at most SLACK powers of two: then nothing is rescaled, and probabilities are at most
// 256 before they are divided by their sum.
struct Softmax {
    static constexpr float SLACK = 8;
    float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {};

    // Turns scores into probabilities (after dropout) relative to `maximum`; `shrink` is the factor that
    // rescales earlier sums to it. False where it is 1 in all rows of the warp.
    template <int N, class T>
    __device__ __forceinline__ bool take(const Head<T>& head, float (&s)[N / 8][4], float (&shrink)[2],
                                         const int2* seen, int row, int key, bool all) {
        int column = key + threadIdx.x % 4 * 2;
        float scale = head.a.scale * LOG2E;
        bool any = false;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int query = row + 8 * half;
            mask<N>(head, s, half, query, column, all, seen[8 * half]);
            float top = maximum[half];
            each_of<N>(s, half, [&](int, float& x) { top = fmaxf(top, x); });
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
            bool rises = (top - maximum[half]) * scale > SLACK; // not if both are −∞
            if (!rises) top = maximum[half];
            float base = top == -INFINITY ? 0.0f : top * scale, total = 0;
            each_of<N>(s, half, [&](int, float& x) {
                x = exp2_fast(fmaf(x, scale, -base));
                total += x;
            });
            shrink[half] = rises ? exp2_fast(fmaf(maximum[half], scale, -base)) : 1.0f;
            any |= rises;
            maximum[half] = top;
            sum[half] = fmaf(sum[half], shrink[half], total);
            if (head.a.drop.bound) {
                uint32_t bits = dropped_keys<N>(head, query, column);
                each_of<N>(s, half, [&](int at, float& x) { x = has(bits, at) ? 0.0f : x * head.a.drop.kept; });
            }
        }
        return __any_sync(~0u, any);
    }

    // Divides y by the sums and stores lse. `row` is the first row's query.
    template <int W, class T>
    __device__ __forceinline__ void finish(const Head<T>& head, float (&y)[W][4], int row) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = sum[half];
            total += __shfl_xor_sync(~0u, total, 1);
            total += __shfl_xor_sync(~0u, total, 2);
            float factor = total == 0 ? 0.0f : 1 / total;
            rescale_half(y, half, factor);
            int query = row + 8 * half;
            if (threadIdx.x % 4 == 0 && query < (int)head.a.seq)
                head.a.lse[head.place(query)] = maximum[half] * head.a.scale + logf(total);
        }
    }

    // y of both rows times their factors.
    template <int W> static __device__ __forceinline__ void rescale(float (&y)[W][4], const float (&factors)[2]) {
        rescale_half(y, 0, factors[0]);
        rescale_half(y, 1, factors[1]);
    }
    template <int W> static __device__ __forceinline__ void rescale_half(float (&y)[W][4], int half, float factor) {
#pragma unroll
        for (int n = 0; n < W; n++) {
            y[n][2 * half] *= factor;
            y[n][2 * half + 1] *= factor;
        }
    }
};

// Values per query of a tile of N queries in shared memory: lse in powers of two, infinite where a query
// sees no key; delta times the scale of scores.
template <int N> struct QueryTile {
    float lse[N], delta[N];
    int2 sees[N];

    __device__ __forceinline__ void put(int at, float own_lse, float own_delta, float scale, const int2& range) {
        lse[at] = range.x < range.y ? own_lse * LOG2E : INFINITY;
        delta[at] = own_delta * scale;
        sees[at] = range;
    }
    // Values of the queries of the thread's columns 8·n and 8·n + 1 from its first, by one load.
    static __device__ __forceinline__ float2 pair(const float* values, int n) {
        return *reinterpret_cast<const float2*>(values + threadIdx.x % 4 * 2 + 8 * n);
    }
    __device__ __forceinline__ float delta_of(int n, int i) const {
        float2 two = pair(delta, n);
        return i % 2 ? two.y : two.x;
    }
};

// Turns scores of keys (rows key and key + 8) by queries (columns from `first`) into probabilities;
// dropped ones become negative (or -0).
template <int N, class T>
__device__ __forceinline__ void probabilities_of_keys(const Head<T>& head, const QueryTile<N>& queries, float (&s)[N / 8][4], int key, int first, bool all) {
    int column = threadIdx.x % 4 * 2, query = first + column;
    float scale = head.a.scale * LOG2E;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int here = key + 8 * half;
        if (head.slope != 0) {
            float ratio = head.slope / head.a.scale, start = ratio * (here - query);
            each_of<N>(s, half, [&](int at, float& x) { x += fmaf(-ratio, (float)at, start); });
        }
        if (!all)
            each_of<N>(s, half, [&](int at, float& x) {
                int2 sees = queries.sees[column + at];
                if (here < sees.x || here >= sees.y) x = -INFINITY;
            });
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
            float2 lse = QueryTile<N>::pair(queries.lse, n);
            float &low = s[n][2 * half], &high = s[n][2 * half + 1];
            low = exp2_fast(fmaf(low, scale, -lse.x));
            high = exp2_fast(fmaf(high, scale, -lse.y));
        }
        if (head.a.drop.bound) {
            uint64_t dropped = run_row(head.a.drop);
            uint32_t bits = 0;
#pragma unroll 2
            for (int i = 0; i < N / 4; i++)
                bits |= (head.kept(dropped, query + i / 2 * 8 + i % 2, here) == 0 ? 1u : 0u) << i;
            each_of<N>(s, half, [&](int at, float& x) {
                if (has(bits, at)) x = -x;
            });
        }
    }
}

// Turns scores of queries (rows row and row + 8) by keys (columns from `key`) into probabilities; dropped
// ones become negative (or -0).
template <int N, class T>
__device__ __forceinline__ void probabilities_of_queries(const Head<T>& head, float (&s)[N / 8][4], const float* lse, const int2* seen, int row, int key, bool all) {
    int column = key + threadIdx.x % 4 * 2;
    float scale = head.a.scale * LOG2E;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int query = row + 8 * half;
        mask<N>(head, s, half, query, column, all, seen[8 * half]);
        each_of<N>(s, half, [&](int, float& x) { x = exp2_fast(fmaf(x, scale, -lse[half])); });
        if (head.a.drop.bound) {
            uint32_t bits = dropped_keys<N>(head, query, column);
            each_of<N>(s, half, [&](int at, float& x) {
                if (has(bits, at)) x = -x;
            });
        }
    }
}

// Whether dropout removed this probability, which is marked by the sign.
__device__ __forceinline__ bool taken(float p) { return __float_as_uint(p) >> 31; }

// Turns gradients dp of probabilities p into gradients of products. `delta(n, i)` is that of the number's
// query, times the scale of scores.
template <int N, class Delta>
__device__ __forceinline__ void slopes(const Attention& a, const float (&p)[N / 8][4], float (&dp)[N / 8][4], Delta delta) {
    float kept = a.scale * a.drop.kept;
    if (a.drop.bound) {
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                dp[n][i] = fabsf(p[n][i]) * fmaf(dp[n][i], taken(p[n][i]) ? 0.0f : kept, -delta(n, i));
    } else {
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) dp[n][i] = p[n][i] * fmaf(dp[n][i], a.scale, -delta(n, i));
    }
}
