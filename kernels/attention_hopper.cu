// Self-attention on Hopper's tensor cores (wgmma and TMA, bf16 in, f32 sums; sm_90a alone), for heads
// of 64, 80, 96, 128 or 160.
//
// FlashAttention-3 (Shah et al. 2024): a block is one producer, a thread that asks for tiles, and two
// warpgroups that multiply them, each 64 rows of queries. Tiles come by TMA through a tensor map of
// qkv (columns of a head, q k v of each head, positions, samples), which also puts zeros past the end
// of a sample; two keep coming while two are used. Scores of the next tile are multiplied while the
// softmax of this one waits for nothing, and y of the last one too; probabilities go from registers.
//
// A tile in shared memory is pieces of 64 columns (32 where 64 do not divide the head: 80 is as 96,
// with zeros), each row of a piece 128 (64) bytes, swizzled: of an address, bits 4-6 (4-5) are what
// they are not-equal bits 7-9 (7-8), so that eight rows lie in different banks.
//
// Bytes moved are those of attention_mma.cu with B = 128.
#include "attention.cuh"
#include "hopper.cuh"

struct AttentionHopper {
    TensorMap qkv, dy; // [d, 3·heads or heads, seq, samples], boxes of 64 positions
    Attention a;
};

inline constexpr float LOG2E = 1.44269504f;
inline constexpr int GROUP = 128;     // threads of a warpgroup
inline constexpr int MULTIPLIERS = 2; // warpgroups that multiply
inline constexpr int HOPPER_THREADS = GROUP * (1 + MULTIPLIERS);
inline constexpr int BOX = 64;        // rows that a copy brings
inline constexpr int STAGES = 2;
// 168 each at start, 64512 in all.
inline constexpr int PRODUCER_REGISTERS = 24, MULTIPLIER_REGISTERS = 240;

#ifdef SOFTGPU
inline float exp2_fast(float x) { return exp2f(x); }
#else
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

__device__ __forceinline__ uint32_t pack(float low, float high) {
    __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
    uint32_t word;
    memcpy(&word, &two, 4);
    return word;
}

// ROWS rows of a head of D in shared memory.
template <int D, int ROWS> struct Tile {
    static constexpr int PIECE = D % 64 == 0 ? 64 : 32;
    static constexpr int PIECES = (D + PIECE - 1) / PIECE;
    static constexpr int WIDTH = PIECE * PIECES;
    static constexpr uint32_t ROW = 2 * PIECE;            // bytes of a row of a piece
    static constexpr uint32_t PIECE_BYTES = ROWS * ROW;
    static constexpr uint32_t BYTES = PIECES * PIECE_BYTES;
    // 128 bytes are swizzled, or 64.
    static constexpr uint64_t SWIZZLE = PIECE == 64 ? 1 : 2;

    // Where the two elements from an even column on are.
    static __device__ __forceinline__ uint32_t at(int row, int column) {
        uint32_t byte = column / PIECE * PIECE_BYTES + row * ROW + column % PIECE * 2;
        return byte ^ (byte >> 7 & (ROW / 16 - 1)) << 4;
    }

    static __device__ __forceinline__ uint64_t descriptor(const char* from, uint32_t leading, uint32_t stride) {
        return (shared_address(from) & 0x3ffff) >> 4 | (uint64_t)(leading >> 4) << 16 |
               (uint64_t)(stride >> 4) << 32 | SWIZZLE << 62;
    }
    // Rows from `row` on (of eights, `stride` bytes apart), columns column .. column + 16: the sum
    // goes along columns. Swizzled rows have no leading offset; it is to be 1.
    static __device__ __forceinline__ uint64_t rows(const char* tile, int row, int column) {
        return descriptor(tile + column / PIECE * PIECE_BYTES + row * ROW + column % PIECE * 2, 16, 8 * ROW);
    }
    // Rows row .. row + 16, all columns: the sum goes along rows. Pieces are `leading` bytes apart.
    static __device__ __forceinline__ uint64_t columns(const char* tile, int row) {
        return descriptor(tile + row * ROW, PIECE_BYTES, 8 * ROW);
    }

    // Asks for rows row .. row + ROWS of q, k or v of a head.
    static __device__ __forceinline__ void fetch(char* tile, const TensorMap* map, uint64_t* barrier, int part, int row, int sample) {
        barrier_arrive_expecting(barrier, BYTES);
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++)
#pragma unroll
            for (int box = 0; box < ROWS; box += BOX)
                tensor_load(tile + piece * PIECE_BYTES + box * ROW, map, barrier, piece * PIECE, part, row + box, sample);
    }
};

// Which of the stages is next, and the parity of the phase it is in.
struct Turn {
    int stage = 0;
    uint32_t parity = 0;

    __device__ __forceinline__ void next() {
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        parity ^= stage == 0;
    }
};

// The two factors of keys `key`, `key` + 1 (even).
__device__ __forceinline__ void kept_pair(const Head<bf16>& head, uint64_t dropped, int query, int key, float (&kept)[2]) {
    const Drop& drop = head.a.drop;
    uint4 words = philox(drop.key, dropped + head.row + query, head.a.first_head + head.head, key / 4);
    uint32_t low = key % 4 ? words.z : words.x, high = key % 4 ? words.w : words.y;
    kept[0] = low < drop.bound ? 0.0f : drop.kept;
    kept[1] = high < drop.bound ? 0.0f : drop.kept;
}

// The softmax of two rows, row and row + 8, as their keys pass by. Scores are products not yet scaled.
struct Softmax {
    float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {};

    // Scores become probabilities (dropped) relative to the new maximum; `shrink` is what sums
    // relative to the last one are multiplied with.
    template <int N>
    __device__ __forceinline__ void take(const Head<bf16>& head, float (&s)[N / 8][4], float (&shrink)[2],
                                         const int2* seen, int row, int key, bool all, uint64_t dropped) {
        int column = key + threadIdx.x % 4 * 2;
        float scale = head.a.scale * LOG2E;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int query = row + 8 * half;
            if (head.slope != 0) {
                float ratio = head.slope / head.a.scale, first = ratio * (column - query);
                each<N>(s, half, [&](int at, float& x) { x += fmaf(ratio, (float)at, first); });
            }
            if (!all) {
                int2 sees = seen[8 * half];
                int first = sees.x - column, last = sees.y - column;
                each<N>(s, half, [&](int at, float& x) {
                    if (at < first || at >= last) x = -INFINITY;
                });
            }
            float top = maximum[half];
            each<N>(s, half, [&](int, float& x) { top = fmaxf(top, x); });
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
            float base = top == -INFINITY ? 0.0f : top * scale, total = 0;
            each<N>(s, half, [&](int, float& x) {
                x = exp2_fast(fmaf(x, scale, -base));
                total += x;
            });
            shrink[half] = exp2_fast(fmaf(maximum[half], scale, -base));
            maximum[half] = top;
            sum[half] = fmaf(sum[half], shrink[half], total);
            if (head.a.drop.bound) {
#pragma unroll
                for (int n = 0; n < N / 8; n++) {
                    float kept[2];
                    kept_pair(head, dropped, query, column + 8 * n, kept);
                    s[n][2 * half] *= kept[0];
                    s[n][2 * half + 1] *= kept[1];
                }
            }
        }
    }

    // Calls `body(at, x)` for all of a row that a thread has, `at` keys after its first.
    template <int N, class Body>
    static __device__ __forceinline__ void each(float (&s)[N / 8][4], int half, Body body) {
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) body(8 * n + i, s[n][2 * half + i]);
    }
};

// Results as the left operand of the next product.
template <int N> __device__ __forceinline__ void pack_all(uint32_t (&p)[N / 16][4], const float (&s)[N / 8][4]) {
#pragma unroll
    for (int k = 0; k < N / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) p[k][i] = pack(s[2 * k + i / 2][i % 2 * 2], s[2 * k + i / 2][i % 2 * 2 + 1]);
}

// s = (64 rows of x from `row`)·(rows of y)ᵀ over D, in a group of its own.
template <int D, int ROWS, int N>
__device__ __forceinline__ void ask_rows(float (&s)[N / 8][4], const char* x, int row, const char* y) {
    wgmma_fence();
    wgmma_rows<false>(s, Tile<D, ROWS>::rows(x, row, 0), Tile<D, N>::rows(y, 0, 0));
#pragma unroll
    for (int k = 16; k < D; k += 16) wgmma_rows<true>(s, Tile<D, ROWS>::rows(x, row, k), Tile<D, N>::rows(y, 0, k));
    wgmma_commit();
}

// y += p·(rows of x), in a group of its own.
template <int D, int N>
__device__ __forceinline__ void ask_columns(float (&y)[Tile<D, N>::WIDTH / 8][4], const uint32_t (&p)[N / 16][4], const char* x) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < N / 16; k++) wgmma_columns(y, p[k], Tile<D, N>::columns(x, 16 * k));
    wgmma_commit();
}

// This warp's 16 rows of a result through its own rows of a tile to memory, 16 bytes at a time.
template <int D, int ROWS>
__device__ __forceinline__ void save(const float (&x)[Tile<D, ROWS>::WIDTH / 8][4], char* tile, int own, bf16* to, uint32_t stride, int first, int seq) {
    int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t word = pack(x[n][2 * half], x[n][2 * half + 1]);
            memcpy(tile + Tile<D, ROWS>::at(own + lane / 4 + 8 * half, 8 * n + lane % 4 * 2), &word, 4);
        }
    __syncwarp();
    for (int i = lane; i < 16 * D / 8; i += 32) {
        int r = i / (D / 8), c = i % (D / 8) * 8;
        if (first + own + r >= seq) continue;
        uint4 piece = *reinterpret_cast<const uint4*>(tile + Tile<D, ROWS>::at(own + r, c));
        *reinterpret_cast<uint4*>(to + (uint64_t)(first + own + r) * stride + c) = piece;
    }
}

// Swizzled tiles repeat every 1024 bytes.
__device__ __forceinline__ char* aligned(char* shared) { return shared + (-shared_address(shared) & 1023); }

template <int D> struct Forward {
    static constexpr int B = 64 * MULTIPLIERS, N = D <= 128 ? 128 : 64;
    using Queries = Tile<D, B>;
    using Keys = Tile<D, N>;

    struct Barriers {
        uint64_t q, k[STAGES], v[STAGES], k_free[STAGES], v_free[STAGES];
    };
    char *q, *k, *v;
    Barriers* barriers;
    int2* seen;
    int* bounds;

    __device__ __forceinline__ Forward(char* shared) {
        q = aligned(shared);
        k = q + Queries::BYTES;
        v = k + STAGES * Keys::BYTES;
        barriers = reinterpret_cast<Barriers*>(v + STAGES * Keys::BYTES);
        seen = reinterpret_cast<int2*>(barriers + 1);
        bounds = reinterpret_cast<int*>(seen + B);
    }

    __device__ __forceinline__ void init() {
        if (threadIdx.x == 0) {
            barrier_init(&barriers->q, 1);
            for (int stage = 0; stage < STAGES; stage++) {
                barrier_init(&barriers->k[stage], 1);
                barrier_init(&barriers->v[stage], 1);
                barrier_init(&barriers->k_free[stage], 4 * MULTIPLIERS); // warps
                barrier_init(&barriers->v_free[stage], 4 * MULTIPLIERS);
            }
            barriers_ready();
        }
        __syncthreads();
    }

    __device__ __forceinline__ void produce(const TensorMap* map, const Head<bf16>& head, int first, const Extent& extent) {
        int part = 3 * head.head, sample = blockIdx.z;
        Queries::fetch(q, map, &barriers->q, part, first, sample);
        Turn turn;
        for (int key = extent.first / N * N; key < extent.last; key += N, turn.next()) {
            barrier_wait(&barriers->k_free[turn.stage], turn.parity ^ 1);
            Keys::fetch(k + turn.stage * Keys::BYTES, map, &barriers->k[turn.stage], part + 1, key, sample);
            barrier_wait(&barriers->v_free[turn.stage], turn.parity ^ 1);
            Keys::fetch(v + turn.stage * Keys::BYTES, map, &barriers->v[turn.stage], part + 2, key, sample);
        }
    }

    __device__ __forceinline__ void ask_scores(float (&s)[N / 8][4], int own, Turn turn) {
        barrier_wait(&barriers->k[turn.stage], turn.parity);
        ask_rows<D, B, N>(s, q, own, k + turn.stage * Keys::BYTES);
    }

    __device__ __forceinline__ void ask_values(float (&y)[Keys::WIDTH / 8][4], const uint32_t (&p)[N / 16][4], Turn turn) {
        barrier_wait(&barriers->v[turn.stage], turn.parity);
        ask_columns<D, N>(y, p, v + turn.stage * Keys::BYTES);
    }

    // This warp is done with a tile.
    static __device__ __forceinline__ void free(uint64_t* barrier) {
        if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
    }

    __device__ __forceinline__ void multiply(const Head<bf16>& head, int first, const Extent& extent) {
        uint64_t dropped = head.a.drop.first();
        int group = threadIdx.x / GROUP - 1, thread = threadIdx.x % GROUP;
        int row = 64 * group + thread / 32 * 16 + thread % 32 / 4;
        float y[Keys::WIDTH / 8][4] = {}, s[N / 8][4], shrink[2];
        uint32_t p[N / 16][4];
        Softmax softmax;
        Turn now, next; // of v, and of k
        auto all = [&](int key) { return key >= extent.full_first && key + N <= extent.full_last; };
        barrier_wait(&barriers->q, 0);
        int key = extent.first / N * N;
        if (key < extent.last) {
            ask_scores(s, 64 * group, next);
            wgmma_wait<0>(s);
            free(&barriers->k_free[next.stage]);
            softmax.template take<N>(head, s, shrink, seen + row, first + row, key, all(key), dropped);
            pack_all<N>(p, s);
            for (key += N; key < extent.last; key += N) {
                next.next();
                ask_scores(s, 64 * group, next);
                ask_values(y, p, now);
                wgmma_wait<1>(s);
                free(&barriers->k_free[next.stage]);
                softmax.template take<N>(head, s, shrink, seen + row, first + row, key, all(key), dropped);
                wgmma_wait<0>(y);
                free(&barriers->v_free[now.stage]);
                now.next();
#pragma unroll
                for (int n = 0; n < Keys::WIDTH / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) y[n][i] *= shrink[i / 2];
                pack_all<N>(p, s);
            }
            ask_values(y, p, now);
            wgmma_wait<0>(y);
        }
        finish(head, softmax, y, first, row);
    }

    __device__ __forceinline__ void finish(const Head<bf16>& head, const Softmax& softmax, float (&y)[Keys::WIDTH / 8][4], int first, int row) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = softmax.sum[half];
            total += __shfl_xor_sync(~0u, total, 1);
            total += __shfl_xor_sync(~0u, total, 2);
            float factor = total == 0 ? 0.0f : 1 / total;
#pragma unroll
            for (int n = 0; n < Keys::WIDTH / 8; n++) {
                y[n][2 * half] *= factor;
                y[n][2 * half + 1] *= factor;
            }
            int query = first + row + 8 * half;
            if (threadIdx.x % 4 == 0 && query < (int)head.a.seq)
                head.a.lse[head.place(query)] = softmax.maximum[half] * head.a.scale + logf(total);
        }
        bf16* to = static_cast<bf16*>(head.a.y) + head.out();
        save<D, B>(y, q, row / 16 * 16, to, head.out_stride(), first, head.a.seq);
    }
};

template <int D> __device__ void forward_hopper(const AttentionHopper& arguments) {
#ifdef HAS_WGMMA
    DYNAMIC_SHARED(shared);
    Forward<D> forward(shared);
    forward.init();
    Head<bf16> head(arguments.a);
    // The last tiles of a causal mask are the longest: they start first.
    int first = (gridDim.x - 1 - blockIdx.x) * Forward<D>::B;
    Extent extent = extent_of(head, first, Forward<D>::B, forward.seen, forward.bounds);
    if (threadIdx.x < GROUP) {
        registers_release<PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) forward.produce(&arguments.qkv, head, first, extent);
    } else {
        registers_take<MULTIPLIER_REGISTERS>();
        forward.multiply(head, first, extent);
    }
#endif
}

#define HEAD(D) KERNEL(attention_wgmma_##D, forward_hopper<D>, AttentionHopper, HOPPER_THREADS, 1)
HEAD(64)
HEAD(80)
HEAD(96)
HEAD(128)
HEAD(160)
