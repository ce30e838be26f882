// Self-attention on Hopper's tensor cores, backward, for heads of 64, 80, 96 or 128.
//
// Two kernels, one for dk and dv and one for dq, as in attention_mma.cu: seven products instead of the
// five of one kernel with atomic sums, but the same bits in every run. Only the left operand of wgmma
// may be in registers: scores are transposed (keys × queries) for dv += pᵀ·dy and dk += dsᵀ·q, and not
// transposed for dq += ds·k.
//
// Bytes moved are those of attention_mma.cu with B = 128.
#include "attention_hopper.cuh"

// Barriers of a block's own tiles, which are loaded once, and of the streamed tiles, which are reused.
struct Barriers {
    uint64_t own, full[STAGES], free[STAGES];

    __device__ __forceinline__ void init() {
        if (threadIdx.x == 0) {
            barrier_init(&own, 1);
            for (int stage = 0; stage < STAGES; stage++) {
                barrier_init(&full[stage], 1);
                barrier_init(&free[stage], 4 * MULTIPLIERS); // warps
            }
            barriers_ready();
        }
        __syncthreads();
    }
};

template <int D> struct BackwardKeys {
    static constexpr int B = 64 * MULTIPLIERS, N = 64;
    using Own = Tile<D, B>;
    using Passing = Tile<D, N>;

    // Stage of N streamed queries. `all`: every query sees all keys of the block. `first` is negative
    // after the last stage.
    struct alignas(16) Queries {
        QueryTile<N> tile;
        int first, all;
        uint32_t head;
    };
    char *k, *v, *q, *dy;
    Queries* queries;
    Barriers* barriers;

    __device__ __forceinline__ BackwardKeys(char* shared) {
        k = aligned(shared);
        v = k + Own::BYTES;
        q = v + Own::BYTES;
        dy = q + STAGES * Passing::BYTES;
        queries = reinterpret_cast<Queries*>(dy + STAGES * Passing::BYTES);
        barriers = reinterpret_cast<Barriers*>(queries + STAGES);
    }

    // Producer warp: lane 0 issues the TMA copies, all lanes store lse, delta and visible keys of the
    // queries. It loops over the query heads of the keys' group.
    __device__ __forceinline__ void produce(const AttentionHopper& arguments, Head<bf16>& head, int key) {
        const Attention& a = head.a;
        int lane = threadIdx.x, sample = blockIdx.z, seq = a.seq;
        int last = key + B < seq ? key + B : seq;
        if (lane == 0) {
            barrier_arrive_expecting(&barriers->own, 2 * Own::BYTES);
            Own::fetch(k, &arguments.qkv, &barriers->own, head.part(1), key, sample);
            Own::fetch(v, &arguments.qkv, &barriers->own, head.part(2), key, sample);
        }
        Turn turn;
        int first = a.ranges ? 0 : key / N * N;
        uint32_t end = head.head + a.serves;
        for (int query = first; head.head < end; query += N) {
            if (query >= seq) {
                query = first - N; // the next head's first query follows
                head.head++;
                continue;
            }
            bool some = false, all = true;
            int2 sees[N / 32];
#pragma unroll
            for (int i = 0; i < N / 32; i++) {
                sees[i] = head.sees(query + lane + 32 * i);
                some |= sees[i].x < last && sees[i].y > key && sees[i].x < sees[i].y;
                all &= sees[i].x <= key && sees[i].y >= last;
            }
            if (!__any_sync(~0u, some)) continue;
            all = __all_sync(~0u, all);
            Queries& to = queries[turn.stage];
            barrier_wait(&barriers->free[turn.stage], turn.parity ^ 1);
#pragma unroll
            for (int i = 0; i < N / 32; i++) {
                int at = lane + 32 * i;
                uint64_t place = head.place(query + at < seq ? query + at : 0);
                to.tile.put(at, a.lse[place], a.delta[place], a.scale, sees[i]);
            }
            if (lane == 0) {
                to.first = query;
                to.all = all;
                to.head = head.head;
            }
            __syncwarp();
            if (lane == 0) {
                uint64_t* full = &barriers->full[turn.stage];
                barrier_arrive_expecting(full, 2 * Passing::BYTES);
                Passing::fetch(q + turn.stage * Passing::BYTES, &arguments.qkv, full, head.part(0), query, sample);
                Passing::fetch(dy + turn.stage * Passing::BYTES, &arguments.dy, full, head.head, query, sample);
            }
            turn.next();
        }
        if (lane == 0) {
            barrier_wait(&barriers->free[turn.stage], turn.parity ^ 1);
            queries[turn.stage].first = -1;
            barrier_arrive(&barriers->full[turn.stage]);
        }
    }

    __device__ __forceinline__ void multiply(Head<bf16>& head, int first) {
        const Attention& a = head.a;
        int group = threadIdx.x / GROUP - 1, thread = threadIdx.x % GROUP;
        int own = 64 * group, row = own + thread / 32 * 16 + thread % 32 / 4;
        float dk[Own::WIDTH / 8][4] = {}, dv[Own::WIDTH / 8][4] = {}, s[N / 8][4], dp[N / 8][4];
        uint32_t left[N / 16][4], left_slope[N / 16][4];
        barrier_wait(&barriers->own, 0);
        for (Turn turn;; turn.next()) {
            barrier_wait(&barriers->full[turn.stage], turn.parity);
            const Queries& passing = queries[turn.stage];
            if (passing.first < 0) break;
            while (head.head < passing.head) head.next();
            const char *qs = q + turn.stage * Passing::BYTES, *dys = dy + turn.stage * Passing::BYTES;
            ask_rows<D, B, N>(s, k, own, qs);
            ask_rows<D, B, N>(dp, v, own, dys);
            wgmma_wait<1>(s);
            probabilities_of_keys<N>(head, passing.tile, s, first + row, passing.first, passing.all);
            if (a.drop.bound)
                pack_some<N>(left, [&](int n, int i) { return taken(s[n][i]) ? 0.0f : s[n][i] * a.drop.kept; });
            else
                pack_some<N>(left, [&](int n, int i) { return s[n][i]; });
            ask_columns<D, N>(dv, left, dys);
            wgmma_wait<1>(dp);
            slopes<N>(a, s, dp, [&](int n, int i) { return passing.tile.delta_of(n, i); });
            pack_some<N>(left_slope, [&](int n, int i) { return dp[n][i]; });
            ask_columns<D, N>(dk, left_slope, qs);
            wgmma_wait<0>(dv);
            hold(dk);
            if (thread % 32 == 0) barrier_arrive(&barriers->free[turn.stage]);
        }
        bf16* dqkv = static_cast<bf16*>(a.dqkv);
        save<D, B>(dk, k, row / 16 * 16, dqkv + head.qkv(1), head.qkv_stride(), first, a.seq);
        save<D, B>(dv, v, row / 16 * 16, dqkv + head.qkv(2), head.qkv_stride(), first, a.seq);
    }
};

template <int D> struct BackwardQueries {
    static constexpr int B = 64 * MULTIPLIERS, N = 64;
    using Own = Tile<D, B>;
    using Passing = Tile<D, N>;

    char *q, *dy, *k, *v;
    Barriers* barriers;
    int2* seen;
    int* bounds;

    __device__ __forceinline__ BackwardQueries(char* shared) {
        q = aligned(shared);
        dy = q + Own::BYTES;
        k = dy + Own::BYTES;
        v = k + STAGES * Passing::BYTES;
        barriers = reinterpret_cast<Barriers*>(v + STAGES * Passing::BYTES);
        seen = reinterpret_cast<int2*>(barriers + 1);
        bounds = reinterpret_cast<int*>(seen + B);
    }

    __device__ __forceinline__ void produce(const AttentionHopper& arguments, const Head<bf16>& head, int first, const Extent& extent) {
        int sample = blockIdx.z;
        barrier_arrive_expecting(&barriers->own, 2 * Own::BYTES);
        Own::fetch(q, &arguments.qkv, &barriers->own, head.part(0), first, sample);
        Own::fetch(dy, &arguments.dy, &barriers->own, head.head, first, sample);
        Turn turn;
        for (int key = extent.first / N * N; key < extent.last; key += N, turn.next()) {
            uint64_t* full = &barriers->full[turn.stage];
            barrier_wait(&barriers->free[turn.stage], turn.parity ^ 1);
            barrier_arrive_expecting(full, 2 * Passing::BYTES);
            Passing::fetch(k + turn.stage * Passing::BYTES, &arguments.qkv, full, head.part(1), key, sample);
            Passing::fetch(v + turn.stage * Passing::BYTES, &arguments.qkv, full, head.part(2), key, sample);
        }
    }

    __device__ __forceinline__ void multiply(const Head<bf16>& head, int first, const Extent& extent) {
        const Attention& a = head.a;
        int group = threadIdx.x / GROUP - 1, thread = threadIdx.x % GROUP;
        int own = 64 * group, row = own + thread / 32 * 16 + thread % 32 / 4;
        float lse[2], delta[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t query = first + row + 8 * half;
            uint64_t place = head.place(query < a.seq ? query : 0);
            int2 sees = seen[row + 8 * half];
            lse[half] = sees.x < sees.y ? a.lse[place] * LOG2E : INFINITY; // infinite if all keys are masked
            delta[half] = a.delta[place] * a.scale;
        }
        float dq[Own::WIDTH / 8][4] = {}, s[N / 8][4], dp[N / 8][4];
        uint32_t left[N / 16][4];
        barrier_wait(&barriers->own, 0);
        Turn turn;
        for (int key = extent.first / N * N; key < extent.last; key += N, turn.next()) {
            barrier_wait(&barriers->full[turn.stage], turn.parity);
            const char *ks = k + turn.stage * Passing::BYTES, *vs = v + turn.stage * Passing::BYTES;
            ask_rows<D, B, N>(s, q, own, ks);
            ask_rows<D, B, N>(dp, dy, own, vs);
            wgmma_wait<1>(s);
            bool all = key >= extent.full_first && key + N <= extent.full_last;
            probabilities_of_queries<N>(head, s, lse, seen + row, first + row, key, all);
            wgmma_wait<0>(dp);
            slopes<N>(a, s, dp, [&](int, int i) { return delta[i / 2]; });
            pack_some<N>(left, [&](int n, int i) { return dp[n][i]; });
            ask_columns<D, N>(dq, left, ks);
            wgmma_wait<0>(dq);
            if (thread % 32 == 0) barrier_arrive(&barriers->free[turn.stage]);
        }
        bf16* to = static_cast<bf16*>(a.dqkv) + head.qkv(0);
        save<D, B>(dq, q, row / 16 * 16, to, head.qkv_stride(), first, a.seq);
    }
};

template <int D> __device__ void backward_kv_hopper(const AttentionHopper& arguments) {
#ifdef HAS_WGMMA
    DYNAMIC_SHARED(shared);
    BackwardKeys<D> backward(shared);
    backward.barriers->init();
    Head<bf16> head(arguments.attention, blockIdx.y * arguments.attention.serves);
    int key = blockIdx.x * BackwardKeys<D>::B;
    if (threadIdx.x < GROUP) {
        registers_release<PRODUCER_REGISTERS>();
        if (threadIdx.x < 32) backward.produce(arguments, head, key);
    } else {
        registers_take<MULTIPLIER_REGISTERS>();
        backward.multiply(head, key);
    }
#endif
}

template <int D> __device__ void backward_q_hopper(const AttentionHopper& arguments) {
#ifdef HAS_WGMMA
    DYNAMIC_SHARED(shared);
    BackwardQueries<D> backward(shared);
    backward.barriers->init();
    Head<bf16> head(arguments.attention);
    int first = (gridDim.x - 1 - blockIdx.x) * BackwardQueries<D>::B;
    Extent extent = extent_of(head, first, BackwardQueries<D>::B, backward.seen, backward.bounds);
    if (threadIdx.x < GROUP) {
        registers_release<PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) backward.produce(arguments, head, first, extent);
    } else {
        registers_take<MULTIPLIER_REGISTERS>();
        backward.multiply(head, first, extent);
    }
#endif
}

#define HEAD(D)                                                                                        \
    KERNEL(attention_kv_wgmma_##D, backward_kv_hopper<D>, AttentionHopper, HOPPER_THREADS, 1)            \
    KERNEL(attention_q_wgmma_##D, backward_q_hopper<D>, AttentionHopper, HOPPER_THREADS, 1)
HEAD(64)
HEAD(80)
HEAD(96)
HEAD(128)
