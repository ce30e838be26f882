// Tiled self-attention for any head width up to 256 and any dtype: f32 arithmetic on the CUDA cores. For
// 16-bit dtypes and common head widths attention_mma.cu is many times faster.
//
// After FlashAttention (Dao et al. 2022; Dao 2023): forward keeps an online softmax; backward recomputes
// the probabilities from lse, once for dk and dv and once for dq, so that no two blocks add to one
// number and every run gives the same bits.
// Bytes moved for a head of d elements of size s over T positions, causal, with tiles of 32: forward
// 2s·d·T (q, y), 2s·d·T·(T / 64) (k, v, once per query tile that sees them, mostly from the L2 cache)
// and 4·T (lse); backward twice that (q and dy are streamed for a tile of keys, k and v for a tile of
// queries) and 5s·d·T (dqkv; dy and y once more for their products).
#include "attention.cuh"

constexpr int TILE = 32;     // rows of a tile: queries or keys
constexpr int THREADS = 256; // 16 × 16: thread (ty, tx) has rows ty, ty + 16 and columns tx, tx + 16, …

// Loads a [TILE, d] tile into shared memory. Rows are padded by one element against bank conflicts.
template <class T>
__device__ __forceinline__ void fill(float* to, const T* from, uint32_t stride, uint32_t first, const Attention& a) {
    for (uint32_t i = threadIdx.x; i < TILE * a.d; i += THREADS) {
        uint32_t r = i / a.d, c = i % a.d;
        to[r * (a.d + 1) + c] = first + r < a.seq ? widen(from[(uint64_t)(first + r) * stride + c]) : 0.0f;
    }
}

// Dot products, 2×2, of rows ty, ty + 16 of `x` and rows tx, tx + 16 of `y`.
__device__ __forceinline__ void products(const float* x, const float* y, uint32_t d, float (&out)[2][2]) {
    uint32_t tx = threadIdx.x % 16, ty = threadIdx.x / 16, wide = d + 1;
    float sums[2][2] = {};
    for (uint32_t c = 0; c < d; c++) {
        float x0 = x[ty * wide + c], x1 = x[(ty + 16) * wide + c];
        float y0 = y[tx * wide + c], y1 = y[(tx + 16) * wide + c];
        sums[0][0] = fmaf(x0, y0, sums[0][0]);
        sums[0][1] = fmaf(x0, y1, sums[0][1]);
        sums[1][0] = fmaf(x1, y0, sums[1][0]);
        sums[1][1] = fmaf(x1, y1, sums[1][1]);
    }
    memcpy(out, sums, sizeof sums);
}

// sums += weights · x over TILE rows of x; weights[r, i] is at r·rows + i·cols.
template <int W>
__device__ __forceinline__ void accumulate(float (&sums)[2][W], const float* weights, int rows, int cols, const float* x, uint32_t d) {
    uint32_t tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    for (int i = 0; i < TILE; i++) {
        float w0 = weights[ty * rows + i * cols], w1 = weights[(ty + 16) * rows + i * cols];
#pragma unroll
        for (int j = 0; j < W; j++) {
            float value = tx + 16 * j < d ? x[i * (d + 1) + tx + 16 * j] : 0.0f;
            sums[0][j] = fmaf(w0, value, sums[0][j]);
            sums[1][j] = fmaf(w1, value, sums[1][j]);
        }
    }
}

template <class T, int W>
__device__ __forceinline__ void save(const float (&sums)[2][W], T* to, uint32_t stride, uint32_t first, const Attention& a) {
    uint32_t tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    for (int half = 0; half < 2; half++) {
        uint32_t row = first + ty + 16 * half;
        if (row >= a.seq) continue;
#pragma unroll
        for (int j = 0; j < W; j++)
            if (tx + 16 * j < a.d) to[(uint64_t)row * stride + tx + 16 * j] = narrow<T>(sums[half][j]);
    }
}

struct Small {
    float p[TILE][TILE + 1];
    float dp[TILE][TILE + 1];
    float maximum[TILE], sum[TILE], shrink[TILE];
    int2 sees[TILE];
    int extent[4];
};

// Score of a query and a key, or −∞ if the key is masked.
template <class T>
__device__ __forceinline__ float score(const Head<T>& head, float product, int2 sees, int query, int key) {
    if (key < sees.x || key >= sees.y) return -INFINITY;
    return fmaf(product, head.a.scale, head.slope * (key - query));
}

template <class T, int W> __device__ void forward(const Attention& a) {
    DYNAMIC_SHARED(shared);
    float* q = reinterpret_cast<float*>(shared);
    float* k = q + TILE * (a.d + 1);
    float* v = k + TILE * (a.d + 1);
    Small& s = *reinterpret_cast<Small*>(v + TILE * (a.d + 1));
    Head<T> head(a);
    uint64_t dropped = run_row(a.drop);
    int first = blockIdx.x * TILE, tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    const T* qkv = static_cast<const T*>(a.qkv);
    fill(q, qkv + head.qkv(0), head.qkv_stride(), first, a);
    if (threadIdx.x < TILE) {
        s.maximum[threadIdx.x] = -INFINITY;
        s.sum[threadIdx.x] = 0;
    }
    Extent extent = extent_of(head, first, TILE, s.sees, s.extent);
    float y[2][W] = {};
    for (int key = extent.first / TILE * TILE; key < extent.last; key += TILE) {
        __syncthreads();
        fill(k, qkv + head.qkv(1), head.qkv_stride(), key, a);
        fill(v, qkv + head.qkv(2), head.qkv_stride(), key, a);
        __syncthreads();
        float product[2][2];
        products(q, k, a.d, product);
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 2; j++) {
                int r = ty + 16 * i, c = tx + 16 * j;
                s.p[r][c] = score(head, product[i][j], s.sees[r], first + r, key + c);
            }
        __syncthreads();
        // Eight threads per row.
        int r = threadIdx.x / 8, c = threadIdx.x % 8;
        float maximum = s.maximum[r], old = maximum, sum = 0;
        for (int i = c; i < TILE; i += 8) maximum = fmaxf(maximum, s.p[r][i]);
        for (int with = 4; with > 0; with /= 2) maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, with));
        float base = maximum == -INFINITY ? 0.0f : maximum;
        for (int i = c; i < TILE; i += 8) {
            float p = expf(s.p[r][i] - base);
            sum += p;
            s.p[r][i] = p * head.kept(dropped, first + r, key + i);
        }
        for (int with = 4; with > 0; with /= 2) sum += __shfl_xor_sync(~0u, sum, with);
        if (c == 0) {
            float shrink = expf(old - base);
            s.shrink[r] = shrink;
            s.maximum[r] = maximum;
            s.sum[r] = fmaf(s.sum[r], shrink, sum);
        }
        __syncthreads();
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < W; j++) y[i][j] *= s.shrink[ty + 16 * i];
        accumulate(y, &s.p[0][0], TILE + 1, 1, v, a.d);
    }
    __syncthreads();
    for (int i = 0; i < 2; i++) {
        float sum = s.sum[ty + 16 * i], factor = sum > 0 || sum != sum ? 1 / sum : 0;
        for (int j = 0; j < W; j++) y[i][j] *= factor;
    }
    save(y, static_cast<T*>(a.y) + head.out(), head.out_stride(), first, a);
    int query = first + threadIdx.x;
    if (threadIdx.x < TILE && query < (int)a.seq)
        a.lse[head.place(query)] = s.maximum[threadIdx.x] + logf(s.sum[threadIdx.x]);
}

// delta = Σ dy·y of each head, by a power of two of lanes that read V columns at a time.
template <class T, int V> __device__ void delta_of(const Attention& a) {
    uint32_t lanes = 1;
    while (lanes < 32 && lanes * V < a.d) lanes *= 2;
    uint64_t i = (uint64_t)blockIdx.x * (blockDim.x / lanes) + threadIdx.x / lanes;
    float sum = 0;
    if (i < a.rows * a.heads)
        for (uint32_t c = threadIdx.x % lanes * V; c < a.d; c += lanes * V) {
            float dy[V], y[V];
            load(static_cast<const T*>(a.dy) + i * a.d + c, dy);
            load(static_cast<const T*>(a.y) + i * a.d + c, y);
#pragma unroll
            for (int k = 0; k < V; k++) sum += dy[k] * y[k];
        }
    for (uint32_t with = lanes / 2; with > 0; with /= 2) sum += __shfl_xor_sync(~0u, sum, with);
    if (i < a.rows * a.heads && threadIdx.x % lanes == 0) a.delta[i] = sum;
}

struct Tiles {
    float *q, *k, *v, *dy;
    Small& small;
    __device__ Tiles(char* shared, uint32_t d)
        : q(reinterpret_cast<float*>(shared)), k(q + TILE * (d + 1)), v(k + TILE * (d + 1)),
          dy(v + TILE * (d + 1)), small(*reinterpret_cast<Small*>(dy + TILE * (d + 1))) {}
};

// Stores a tile's probabilities (after dropout) in p and the gradients of its scores in dp.
template <class T>
__device__ __forceinline__ void tile_slopes(const Head<T>& head, const Tiles& t, int query, int key, uint64_t dropped) {
    const Attention& a = head.a;
    float product[2][2], slope[2][2];
    products(t.q, t.k, a.d, product);
    products(t.dy, t.v, a.d, slope);
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            int r = ty + 16 * i, c = tx + 16 * j;
            float x = score(head, product[i][j], t.small.sees[r], query + r, key + c);
            float p = 0, dp = 0;
            if (x > -INFINITY || x != x) {
                float kept = head.kept(dropped, query + r, key + c);
                float probability = expf(x - a.lse[head.place(query + r)]);
                p = probability * kept;
                dp = a.scale * probability * (slope[i][j] * kept - a.delta[head.place(query + r)]);
            }
            t.small.p[r][c] = p;
            t.small.dp[r][c] = dp;
        }
}

// One block per key/value head; it loops over the query heads of its group.
template <class T, int W> __device__ void backward_kv(const Attention& a) {
    DYNAMIC_SHARED(shared);
    Tiles t(shared, a.d);
    Head<T> head(a, blockIdx.y * a.serves);
    uint64_t dropped = run_row(a.drop);
    int key = blockIdx.x * TILE;
    const T* qkv = static_cast<const T*>(a.qkv);
    fill(t.k, qkv + head.qkv(1), head.qkv_stride(), key, a);
    fill(t.v, qkv + head.qkv(2), head.qkv_stride(), key, a);
    float dk[2][W] = {}, dv[2][W] = {};
    for (uint32_t end = head.head + a.serves;;) {
        for (int query = a.ranges ? 0 : key; query < (int)a.seq; query += TILE) {
            __syncthreads();
            Extent extent = extent_of(head, query, TILE, t.small.sees, t.small.extent);
            if (extent.last <= key || extent.first >= key + TILE) continue;
            fill(t.q, qkv + head.qkv(0), head.qkv_stride(), query, a);
            fill(t.dy, static_cast<const T*>(a.dy) + head.out(), head.out_stride(), query, a);
            __syncthreads();
            tile_slopes(head, t, query, key, dropped);
            __syncthreads();
            accumulate(dv, &t.small.p[0][0], 1, TILE + 1, t.dy, a.d);
            accumulate(dk, &t.small.dp[0][0], 1, TILE + 1, t.q, a.d);
        }
        if (head.head + 1 == end) break;
        head.next();
    }
    T* dqkv = static_cast<T*>(a.dqkv);
    save(dk, dqkv + head.qkv(1), head.qkv_stride(), key, a);
    save(dv, dqkv + head.qkv(2), head.qkv_stride(), key, a);
}

template <class T, int W> __device__ void backward_q(const Attention& a) {
    DYNAMIC_SHARED(shared);
    Tiles t(shared, a.d);
    Head<T> head(a);
    uint64_t dropped = run_row(a.drop);
    int query = blockIdx.x * TILE;
    const T* qkv = static_cast<const T*>(a.qkv);
    fill(t.q, qkv + head.qkv(0), head.qkv_stride(), query, a);
    fill(t.dy, static_cast<const T*>(a.dy) + head.out(), head.out_stride(), query, a);
    Extent extent = extent_of(head, query, TILE, t.small.sees, t.small.extent);
    float dq[2][W] = {};
    for (int key = extent.first / TILE * TILE; key < extent.last; key += TILE) {
        __syncthreads();
        fill(t.k, qkv + head.qkv(1), head.qkv_stride(), key, a);
        fill(t.v, qkv + head.qkv(2), head.qkv_stride(), key, a);
        __syncthreads();
        tile_slopes(head, t, query, key, dropped);
        __syncthreads();
        accumulate(dq, &t.small.dp[0][0], TILE + 1, 1, t.k, a.d);
    }
    save(dq, static_cast<T*>(a.dqkv) + head.qkv(0), head.qkv_stride(), query, a);
}

KERNELS(attention_delta, (delta_of<T, 1>), Attention, 256)
KERNELS(attention_delta_wide, (delta_of<T, WIDE<T>>), Attention, 256)
// W: columns of a head per thread, for head widths up to 16·W.
#define WIDTH(W)                                                                                   \
    KERNELS(attention_##W, (forward<T, W>), Attention, THREADS, 1)                                 \
    KERNELS(attention_kv_##W, (backward_kv<T, W>), Attention, THREADS)                             \
    KERNELS(attention_q_##W, (backward_q<T, W>), Attention, THREADS)
WIDTH(4)
WIDTH(8)
WIDTH(16)
