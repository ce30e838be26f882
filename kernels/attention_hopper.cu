// Self-attention on Hopper's tensor cores (wgmma and TMA, bf16 in, f32 sums; sm_90a alone): forward, for
// heads of 64, 80, 96, 128 or 160.
//
// FlashAttention-3 (Shah et al. 2024): the products of the next tile's scores and of the last tile's y
// are in flight together, and the softmax waits only for the scores; probabilities are operands in
// registers. With `ping_pong` the two warpgroups also issue their products in alternation (§ 3.1), so
// that one computes its softmax while the other's products run.
//
// Bytes moved are those of attention_mma.cu with B = 128.
#include "attention_hopper.cuh"

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
        int sample = blockIdx.z;
        barrier_arrive_expecting(&barriers->q, Queries::BYTES);
        Queries::fetch(q, map, &barriers->q, head.part(0), first, sample);
        Turn turn;
        for (int key = extent.first / N * N; key < extent.last; key += N, turn.next()) {
            barrier_wait(&barriers->k_free[turn.stage], turn.parity ^ 1);
            barrier_arrive_expecting(&barriers->k[turn.stage], Keys::BYTES);
            Keys::fetch(k + turn.stage * Keys::BYTES, map, &barriers->k[turn.stage], head.part(1), key, sample);
            barrier_wait(&barriers->v_free[turn.stage], turn.parity ^ 1);
            barrier_arrive_expecting(&barriers->v[turn.stage], Keys::BYTES);
            Keys::fetch(v + turn.stage * Keys::BYTES, map, &barriers->v[turn.stage], head.part(2), key, sample);
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

    // Releases a stage: this warp has read its tile.
    static __device__ __forceinline__ void free(uint64_t* barrier) {
        if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
    }

    // Alternates the issue of products between the two warpgroups, which have equally many turns: group
    // g begins when barrier 1 + g is complete, by its own wait and by the other group's arrival after
    // its turn. Group 0's first turn needs no arrival; group 1's last turn makes none.
    static __device__ __forceinline__ void take_turn(bool ping_pong, int group, bool first) {
        if (ping_pong && !(first && group == 0)) named_wait(1 + group, MULTIPLIERS * GROUP);
    }
    static __device__ __forceinline__ void give_turn(bool ping_pong, int group, bool last) {
        if (ping_pong && !(last && group == 1)) named_arrive(2 - group, MULTIPLIERS * GROUP);
    }

    __device__ __forceinline__ void multiply(const Head<bf16>& head, int first, const Extent& extent, bool ping_pong) {
        int group = threadIdx.x / GROUP - 1, thread = threadIdx.x % GROUP;
        int row = 64 * group + thread / 32 * 16 + thread % 32 / 4;
        float y[Keys::WIDTH / 8][4] = {}, s[N / 8][4], shrink[2];
        uint32_t p[N / 16][4];
        Softmax softmax;
        Turn now, next; // tiles of v, and of k
        auto all = [&](int key) { return key >= extent.full_first && key + N <= extent.full_last; };
        barrier_wait(&barriers->q, 0);
        int key = extent.first / N * N;
        if (key < extent.last) {
            take_turn(ping_pong, group, true);
            ask_scores(s, 64 * group, next);
            give_turn(ping_pong, group, false);
            wgmma_wait<0>(s);
            free(&barriers->k_free[next.stage]);
            softmax.take<N>(head, s, shrink, seen + row, first + row, key, all(key));
            pack_some<N>(p, [&](int n, int i) { return s[n][i]; });
            for (key += N; key < extent.last; key += N) {
                next.next();
                take_turn(ping_pong, group, false);
                ask_scores(s, 64 * group, next);
                ask_values(y, p, now);
                give_turn(ping_pong, group, false);
                wgmma_wait<1>(s);
                free(&barriers->k_free[next.stage]);
                bool moved = softmax.take<N>(head, s, shrink, seen + row, first + row, key, all(key));
                wgmma_wait<0>(y);
                free(&barriers->v_free[now.stage]);
                now.next();
                if (moved) Softmax::rescale(y, shrink);
                pack_some<N>(p, [&](int n, int i) { return s[n][i]; });
            }
            take_turn(ping_pong, group, false);
            ask_values(y, p, now);
            give_turn(ping_pong, group, true);
            wgmma_wait<0>(y);
        }
        softmax.finish(head, y, first + row);
        bf16* to = static_cast<bf16*>(head.a.y) + head.out();
        save<D, B>(y, q, row / 16 * 16, to, head.out_stride(), first, head.a.seq);
    }
};

template <int D> __device__ void forward_hopper(const AttentionHopper& arguments) {
#ifdef HAS_WGMMA
    DYNAMIC_SHARED(shared);
    Forward<D> forward(shared);
    forward.init();
    Head<bf16> head(arguments.attention);
    // The last tiles of a causal mask have the most keys: they start first.
    int first = (gridDim.x - 1 - blockIdx.x) * Forward<D>::B;
    Extent extent = extent_of(head, first, Forward<D>::B, forward.seen, forward.bounds);
    if (threadIdx.x < GROUP) {
        registers_release<PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) forward.produce(&arguments.qkv, head, first, extent);
    } else {
        registers_take<MULTIPLIER_REGISTERS>();
        forward.multiply(head, first, extent, arguments.ping_pong);
    }
#endif
}

#define HEAD(D) KERNEL(attention_wgmma_##D, forward_hopper<D>, AttentionHopper, HOPPER_THREADS, 1)
HEAD(64)
HEAD(80)
HEAD(96)
HEAD(128)
HEAD(160)
