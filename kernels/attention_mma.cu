// Self-attention on tensor cores (mma.sync m16n8k16, 16-bit operands, f32 sums; sm_80 and later), for
// heads of 32, 64, 80, 96, 128 or 160, and for any multiple of 8 below, whose last columns in shared
// memory are zeros.
//
// FlashAttention-2 (Dao 2023): each of four warps has whole rows of the tile, so that a softmax row is
// in four lanes, and the probabilities of one product are the operand fragments of the next one without
// leaving registers. Where registers allow, a warp has 32 rows, not 16: each ldmatrix from shared
// memory, which is the bottleneck, then feeds two products. Backward is two kernels, one for dk and dv
// and one for dq: seven products instead of the five of one kernel with atomic sums, but the same bits
// in every run and no f32 copy of dq.
// Rows in shared memory are padded by 16 bytes, so that the eight rows of an ldmatrix are in different
// banks. cp.async loads the next tile while this one is multiplied.
//
// Bytes moved for a head of d elements of size s = 2 over T positions, with tiles of B rows, causal:
// forward 2s·d·T (q, y) and 2s·d·T·(T / 2B) (k, v, once per query tile, mostly from the L2 cache), 4·T
// (lse). From a T of a few hundred on, arithmetic is the bottleneck: 2·T²·d forward and 7/2 of it
// backward.
//
// In f16, with a loss scale L, two intermediate results are rounded to f16: probabilities, at most 256 /
// (1 − dropout), and gradients of scores, scaled by L like dy. Such a gradient is p·(dp − delta) / √d
// with |dp| up to |dy|·|v|, divided before it is rounded. It exceeds 65504 only if |dy| is within a
// factor |v| / √d of that; then it is infinite, dq and dk are not finite, and the step is skipped as for
// any overflow. Scores, dp, delta, lse and all sums are f32 and have its range.
#include "attention_tile.cuh"

constexpr int WARPS = 4;
constexpr int MMA_THREADS = 32 * WARPS;

// Copies rows first .. first + ROWS of a head to shared memory; rows past the end and columns from d are
// zeros.
template <int ROWS, int D, class T>
__device__ __forceinline__ void fetch(T* to, const T* from, uint32_t stride, int first, int seq, int d) {
    constexpr int PIECES = D / 8;
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * PIECES; i += MMA_THREADS) {
        int r = i / PIECES, c = i % PIECES * 8;
        bool there = first + r < seq && c < d;
        copy_async(to + r * (D + 8) + c, from + (uint64_t)(there ? first + r : 0) * stride + c, there);
    }
}

// Groups of 16 rows per warp: in forward, in dk and dv, in dq.
template <int D> constexpr int ROWS = D <= 128 ? 2 : 1;
template <int D> constexpr int KV_ROWS = D <= 64 ? 2 : 1;
template <int D> constexpr int Q_ROWS = D <= 64 ? 2 : 1;
// Rows of a streamed tile: keys in forward and in dq, queries in dk and dv; fewer where the sums need
// the registers.
template <int D> constexpr int KEYS = D <= 80 ? 64 : 32;
template <int D> constexpr int Q_KEYS = D <= 64 ? 32 : D <= 96 ? 64 : 32;
template <int D> constexpr int KV_QUERIES = D == 64 || D == 160 ? 16 : 32;

// out += (16·M rows of x from `row`)·(N rows of y)ᵀ over D.
template <int D, int M, int N, class T>
__device__ __forceinline__ void multiply_rows(float (&out)[M][N / 8][4], const T* x, int row, const T* y) {
    constexpr int LD = D + 8;
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        uint32_t left[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
            load_rows(left[m], x + (row + 16 * m + lane % 16) * LD + k + lane / 16 * 8);
#pragma unroll
        for (int n = 0; n < N; n += 16) {
            uint32_t right[4];
            load_rows(right, y + (n + lane / 16 * 8 + lane % 8) * LD + k + lane / 8 % 2 * 8);
            uint32_t first[2] = {right[0], right[1]}, second[2] = {right[2], right[3]};
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma<T>(out[m][n / 8], left[m], first);
                mma<T>(out[m][n / 8 + 1], left[m], second);
            }
        }
    }
}

// out += weights · (K rows of x): weights are the 16·M×K result of multiply_rows.
template <int D, int M, int K, class T>
__device__ __forceinline__ void multiply_columns(float (&out)[M][D / 8][4], const float (&weights)[M][K / 8][4], const T* x) {
    constexpr int LD = D + 8;
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < K; k += 16) {
        uint32_t left[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) {
            const float(&a)[4] = weights[m][k / 8], (&b)[4] = weights[m][k / 8 + 1];
            left[m][0] = pack<T>(a[0], a[1]);
            left[m][1] = pack<T>(a[2], a[3]);
            left[m][2] = pack<T>(b[0], b[1]);
            left[m][3] = pack<T>(b[2], b[3]);
        }
#pragma unroll
        for (int n = 0; n < D; n += 16) {
            uint32_t right[4];
            load_columns(right, x + (k + lane % 16) * LD + n + lane / 16 * 8);
            uint32_t first[2] = {right[0], right[1]}, second[2] = {right[2], right[3]};
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma<T>(out[m][n / 8], left[m], first);
                mma<T>(out[m][n / 8 + 1], left[m], second);
            }
        }
    }
}

// Stores 16 rows of a result in global memory, staged in this warp's rows of shared memory, 16 bytes at
// a time.
template <int D, class T>
__device__ __forceinline__ void save(const float (&x)[D / 8][4], T* shared, T* to, uint32_t stride, int first, int seq, int d) {
    constexpr int LD = D + 8;
    int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < D / 8; n++)
        for (int half = 0; half < 2; half++) {
            uint32_t word = pack<T>(x[n][2 * half], x[n][2 * half + 1]);
            memcpy(shared + (lane / 4 + 8 * half) * LD + 8 * n + lane % 4 * 2, &word, 4);
        }
    __syncwarp();
    for (int i = lane; i < 16 * D / 8; i += 32) {
        int r = i / (D / 8), c = i % (D / 8) * 8;
        if (first + r >= seq || c >= d) continue;
        uint4 piece = *reinterpret_cast<const uint4*>(shared + r * LD + c);
        *reinterpret_cast<uint4*>(to + (uint64_t)(first + r) * stride + c) = piece;
    }
}

// Whether any of a warp's 16·M queries sees a key of first .. last.
template <int M> __device__ __forceinline__ bool sees_some(const int2* sees, int first, int last) {
    return __any_sync(~0u, meets(sees[threadIdx.x % (16 * M)], first, last));
}

template <class T, int D> __device__ void forward_mma(const Attention& a) {
    constexpr int LD = D + 8, M = ROWS<D>, B = 16 * M * WARPS, N = KEYS<D>;
    DYNAMIC_SHARED(shared);
    T* q = reinterpret_cast<T*>(shared);
    T* k = q + B * LD;
    T* v = k + N * LD;
    int2* seen = reinterpret_cast<int2*>(v + N * LD);
    int* bounds = reinterpret_cast<int*>(seen + B);
    Head<T> head(a);
    int seq = a.seq, d = a.d, stride = head.qkv_stride();
    // The last tiles of a causal mask have the most keys: they start first.
    int first = (gridDim.x - 1 - blockIdx.x) * B;
    const T* qkv = static_cast<const T*>(a.qkv);
    fetch<B, D>(q, qkv + head.qkv(0), stride, first, seq, d);
    Extent extent = extent_of(head, first, B, seen, bounds);
    int key = extent.first / N * N;
    if (key < extent.last) fetch<N, D>(k, qkv + head.qkv(1), stride, key, seq, d);
    copy_commit();

    int own = 16 * M * (threadIdx.x / 32), row = own + threadIdx.x % 32 / 4;
    float y[M][D / 8][4] = {};
    Softmax softmax[M];
    for (; key < extent.last; key += N) {
        copy_wait<0>();
        __syncthreads(); // k has arrived; all warps have read v
        fetch<N, D>(v, qkv + head.qkv(2), stride, key, seq, d);
        copy_commit();
        bool some = sees_some<M>(seen + own, key, key + N);
        float s[M][N / 8][4] = {};
        if (some) multiply_rows<D, M, N>(s, q, own, k);
        copy_wait<0>();
        __syncthreads(); // v has arrived; all warps have read k
        if (key + N < extent.last) fetch<N, D>(k, qkv + head.qkv(1), stride, key + N, seq, d);
        copy_commit();
        if (!some) continue;
        bool all = key >= extent.full_first && key + N <= extent.full_last;
#pragma unroll
        for (int m = 0; m < M; m++) {
            int at = row + 16 * m;
            float shrink[2];
            if (softmax[m].template take<N>(head, s[m], shrink, seen + at, first + at, key, all))
                Softmax::rescale(y[m], shrink);
        }
        multiply_columns<D, M, N>(y, s, v);
    }
    copy_wait<0>();
    __syncthreads();
#pragma unroll
    for (int m = 0; m < M; m++) {
        softmax[m].finish(head, y[m], first + row + 16 * m);
        T* to = static_cast<T*>(a.y) + head.out();
        int at = own + 16 * m;
        save<D>(y[m], q + at * LD, to, head.out_stride(), first + at, seq, d);
    }
}

// Applies dropout to probabilities whose sign marks the dropped ones.
template <int N> __device__ __forceinline__ void apply_dropout(const DropoutMask& drop, float (&p)[N / 8][4]) {
    if (drop.bound == 0) return;
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) p[n][i] = taken(p[n][i]) ? 0.0f : p[n][i] * drop.kept;
}

// Per-query values that forward stored, and the keys that the query sees.
struct Row {
    float lse, delta;
    int2 sees;
};

// Raw values of a row, as in memory. Nothing is computed from them yet, so that the loads do not stall.
template <class T> __device__ __forceinline__ Row load_row(const Head<T>& head, int query) {
    if (query >= (int)head.a.seq) return {0, 0, {0, 0}};
    uint64_t place = head.place(query);
    return {head.a.lse[place], head.a.delta[place], head.range(query)};
}

// One block per key/value head; it loops over the query heads of its group. The next tile of queries is
// in flight while one is multiplied. One barrier per iteration; a warp that sees nothing of a tile then
// skips it.
template <class T, int D> __device__ void backward_kv_mma(const Attention& a) {
    constexpr int LD = D + 8, M = KV_ROWS<D>, B = 16 * M * WARPS, Q = KV_QUERIES<D>;
    DYNAMIC_SHARED(shared);
    T* k = reinterpret_cast<T*>(shared);
    T* v = k + B * LD;
    T* q = v + B * LD; // two stages: one is multiplied, one is in flight
    T* dy = q + 2 * Q * LD;
    QueryTile<Q>* tiles = reinterpret_cast<QueryTile<Q>*>(dy + 2 * Q * LD);
    Head<T> next(a, blockIdx.y * a.serves);
    int seq = a.seq, d = a.d, key = blockIdx.x * B, own = 16 * M * (threadIdx.x / 32);
    const T* qkv = static_cast<const T*>(a.qkv);
    const T* dys = static_cast<const T*>(a.dy);
    fetch<B, D>(k, qkv + next.qkv(1), next.qkv_stride(), key, seq, d);
    fetch<B, D>(v, qkv + next.qkv(2), next.qkv_stride(), key, seq, d);

    // Queries that may see these keys: earlier ones precede the keys, and for later ones the keys are
    // outside the window.
    int first = a.ranges ? 0 : key / Q * Q, last = seq;
    if (!a.ranges && key + B + (int)a.window - 1 < seq) last = key + B + (int)a.window - 1;
    int next_query = first;
    uint32_t last_head = next.head + a.serves - 1;
    Row row = {};
    auto fetch_queries = [&](int stage) {
        if (next_query < last) {
            fetch<Q, D>(q + stage * Q * LD, qkv + next.qkv(0), next.qkv_stride(), next_query, seq, d);
            fetch<Q, D>(dy + stage * Q * LD, dys + next.out(), next.out_stride(), next_query, seq, d);
            if (threadIdx.x < Q) row = load_row(next, next_query + threadIdx.x);
        }
        copy_commit();
    };
    fetch_queries(0);
    float dk[M][D / 8][4] = {}, dv[M][D / 8][4] = {};
    int at = key + own + threadIdx.x % 32 / 4;
    for (int stage = 0; next_query < last; stage ^= 1) {
        Head<T> head = next;
        int query = next_query;
        QueryTile<Q>& tile = tiles[stage];
        if (threadIdx.x < Q)
            tile.put(threadIdx.x, row.lse, row.delta, a.scale, head.within(query + threadIdx.x, row.sees));
        copy_wait<0>();
        __syncthreads(); // this tile has arrived; all warps have read the one before
        next_query += Q;
        if (next_query >= last && head.head < last_head) {
            next.next();
            next_query = first;
        }
        fetch_queries(stage ^ 1);

        int2 sees = tile.sees[threadIdx.x % Q];
        int from = key + own, to = from + 16 * M;
        if (!__any_sync(~0u, meets(sees, from, to))) continue;
        bool all = __all_sync(~0u, covers(sees, from, to));
        const T *qs = q + stage * Q * LD, *ds = dy + stage * Q * LD;
        float s[M][Q / 8][4] = {}, dp[M][Q / 8][4] = {};
        multiply_rows<D, M, Q>(s, k, own, qs);
        multiply_rows<D, M, Q>(dp, v, own, ds);
#pragma unroll
        for (int m = 0; m < M; m++) {
            probabilities_of_keys<Q>(head, tile, s[m], at + 16 * m, query, all);
            slopes<Q>(a, s[m], dp[m], [&](int n, int i) { return tile.delta_of(n, i); });
            apply_dropout<Q>(a.drop, s[m]);
        }
        multiply_columns<D, M, Q>(dv, s, ds);
        multiply_columns<D, M, Q>(dk, dp, qs);
    }
    copy_wait<0>();
    T* dqkv = static_cast<T*>(a.dqkv);
    int stride = next.qkv_stride();
#pragma unroll
    for (int m = 0; m < M; m++) {
        int row = own + 16 * m;
        save<D>(dk[m], k + row * LD, dqkv + next.qkv(1), stride, key + row, seq, d);
        save<D>(dv[m], v + row * LD, dqkv + next.qkv(2), stride, key + row, seq, d);
    }
}

template <class T, int D> __device__ void backward_q_mma(const Attention& a) {
    constexpr int LD = D + 8, M = Q_ROWS<D>, B = 16 * M * WARPS, N = Q_KEYS<D>;
    DYNAMIC_SHARED(shared);
    T* q = reinterpret_cast<T*>(shared);
    T* dy = q + B * LD;
    T* k = dy + B * LD; // two stages: one is multiplied, one is in flight
    T* v = k + 2 * N * LD;
    int2* seen = reinterpret_cast<int2*>(v + 2 * N * LD);
    int* bounds = reinterpret_cast<int*>(seen + B);
    Head<T> head(a);
    int seq = a.seq, d = a.d, first = (gridDim.x - 1 - blockIdx.x) * B, stride = head.qkv_stride();
    const T* qkv = static_cast<const T*>(a.qkv);
    fetch<B, D>(q, qkv + head.qkv(0), stride, first, seq, d);
    fetch<B, D>(dy, static_cast<const T*>(a.dy) + head.out(), head.out_stride(), first, seq, d);
    Extent extent = extent_of(head, first, B, seen, bounds);
    auto fetch_keys = [&](int key, int stage) {
        if (key < extent.last) {
            fetch<N, D>(k + stage * N * LD, qkv + head.qkv(1), stride, key, seq, d);
            fetch<N, D>(v + stage * N * LD, qkv + head.qkv(2), stride, key, seq, d);
        }
        copy_commit();
    };
    int key = extent.first / N * N;
    fetch_keys(key, 0);
    int own = 16 * M * (threadIdx.x / 32);
    int row = own + threadIdx.x % 32 / 4;
    // Values of rows row + 8·j, as a QueryTile has them.
    float lse[2 * M], delta[2 * M], dq[M][D / 8][4] = {};
#pragma unroll
    for (int j = 0; j < 2 * M; j++) {
        int query = first + row + 8 * j;
        uint64_t place = head.place(query < seq ? query : 0);
        int2 sees = seen[row + 8 * j];
        lse[j] = sees.x < sees.y ? a.lse[place] * LOG2E : INFINITY;
        delta[j] = a.delta[place] * a.scale;
    }
    for (int stage = 0; key < extent.last; key += N, stage ^= 1) {
        copy_wait<0>();
        __syncthreads(); // this tile has arrived; all warps have read the one before
        fetch_keys(key + N, stage ^ 1);
        if (!sees_some<M>(seen + own, key, key + N)) continue;
        const T *ks = k + stage * N * LD, *vs = v + stage * N * LD;
        float s[M][N / 8][4] = {}, dp[M][N / 8][4] = {};
        multiply_rows<D, M, N>(s, q, own, ks);
        multiply_rows<D, M, N>(dp, dy, own, vs);
        bool all = key >= extent.full_first && key + N <= extent.full_last;
#pragma unroll
        for (int m = 0; m < M; m++) {
            int at = row + 16 * m;
            probabilities_of_queries<N>(head, s[m], lse + 2 * m, seen + at, first + at, key, all);
            slopes<N>(a, s[m], dp[m], [&](int, int i) { return delta[2 * m + i / 2]; });
        }
        multiply_columns<D, M, N>(dq, dp, ks);
    }
    copy_wait<0>();
    __syncthreads();
    T* to = static_cast<T*>(a.dqkv) + head.qkv(0);
#pragma unroll
    for (int m = 0; m < M; m++) {
        int at = own + 16 * m;
        save<D>(dq[m], q + at * LD, to, stride, first + at, seq, d);
    }
}

#define HEAD(D)                                                                                    \
    KERNELS_OF_HALF(attention_mma_##D, (forward_mma<T, D>), Attention, MMA_THREADS, 1)             \
    KERNELS_OF_HALF(attention_kv_mma_##D, (backward_kv_mma<T, D>), Attention, MMA_THREADS, 1)      \
    KERNELS_OF_HALF(attention_q_mma_##D, (backward_q_mma<T, D>), Attention, MMA_THREADS, 1)
HEAD(32)
HEAD(64)
HEAD(80)
HEAD(96)
HEAD(128)
HEAD(160)
