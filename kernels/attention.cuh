// Shared parts of all attention kernels: the arguments, a head's place in memory, the visible keys.
#pragma once
#include "common.cuh"

// One query head of one sample. The grid is (tiles, heads, samples).
template <class T> struct Head {
    const Attention& a;
    uint32_t head;
    uint64_t row; // row of the sample's first position
    float slope;

    __device__ __forceinline__ Head(const Attention& a) : Head(a, blockIdx.y) {}
    __device__ __forceinline__ Head(const Attention& a, uint32_t head)
        : a(a), head(head), row((uint64_t)blockIdx.z * a.seq), slope(a.slopes ? a.slopes[head] : 0) {}

    __device__ __forceinline__ void next() {
        head++;
        if (a.slopes) slope = a.slopes[head];
    }
    __device__ __forceinline__ uint32_t qkv_stride() const { return (a.heads + 2 * a.kv) * a.d; }
    __device__ __forceinline__ uint32_t out_stride() const { return a.heads * a.d; }
    // First element of a position-0 row; `which`: 0 query, 1 key, 2 value.
    __device__ __forceinline__ uint64_t qkv(int which) const { return row * qkv_stride() + part(which) * a.d; }
    // Heads before that one in a row.
    __device__ __forceinline__ uint32_t part(int which) const {
        uint32_t kv = a.inverse ? __umulhi(head, a.inverse) : head; // head / serves
        return 2 * kv + (which ? (kv + 1) * a.serves + which - 1 : head);
    }
    __device__ __forceinline__ uint64_t out() const { return row * out_stride() + head * a.d; }
    __device__ __forceinline__ uint64_t place(uint32_t position) const {
        return (row + position) * a.heads + head;
    }
    // Half-open range of the keys that a query sees.
    __device__ __forceinline__ int2 sees(uint32_t query) const {
        return within(query, query < a.seq ? range(query) : int2{0, 0});
    }
    // Visible keys of a query by the mask in memory; `within` then applies the window.
    __device__ __forceinline__ int2 range(uint32_t query) const {
        if (!a.ranges) return {0, (int)query + 1};
        return {a.ranges[2 * (row + query)], a.ranges[2 * (row + query) + 1]};
    }
    __device__ __forceinline__ int2 within(uint32_t query, int2 range) const {
        int oldest = (int)query + 1 - (int)a.window;
        int start = range.x > oldest ? range.x : oldest;
        int end = range.y < (int)a.seq ? range.y : (int)a.seq;
        return {start < end ? start : end, end};
    }
    // Dropout's factor of a probability; `first` is run_row(drop).
    __device__ __forceinline__ float kept(uint64_t first, uint32_t query, uint32_t key) const {
        if (a.drop.bound == 0) return 1;
        return drop_factor(a.drop, first + row + query, a.first_head + head, key);
    }
};

// Visible keys of a tile's queries: some see keys in first .. last; all see full_first .. full_last.
struct Extent {
    int first, last, full_first, full_last;
};

// Fills sees[0 .. count] and returns the extent; all threads of the block call it. `extent` is shared.
template <class T>
__device__ __forceinline__ Extent extent_of(const Head<T>& head, uint32_t query, int count, int2* sees, int* extent) {
    for (int i = threadIdx.x; i < count; i += blockDim.x) sees[i] = head.sees(query + i);
    __syncthreads();
    if (threadIdx.x < 32) {
        int first = 1 << 30, last = 0, full_first = 0, full_last = 1 << 30;
        for (int i = threadIdx.x; i < count && query + i < head.a.seq; i += 32) {
            int2 range = sees[i];
            if (range.x < range.y) {
                first = first < range.x ? first : range.x;
                last = last > range.y ? last : range.y;
            }
            full_first = full_first > range.x ? full_first : range.x;
            full_last = full_last < range.y ? full_last : range.y;
        }
#pragma unroll
        for (int with = 16; with > 0; with /= 2) {
            int other = __shfl_xor_sync(~0u, first, with);
            first = first < other ? first : other;
            other = __shfl_xor_sync(~0u, last, with);
            last = last > other ? last : other;
            other = __shfl_xor_sync(~0u, full_first, with);
            full_first = full_first > other ? full_first : other;
            other = __shfl_xor_sync(~0u, full_last, with);
            full_last = full_last < other ? full_last : other;
        }
        if (threadIdx.x == 0) {
            extent[0] = first;
            extent[1] = last;
            extent[2] = full_first;
            extent[3] = full_last;
        }
    }
    __syncthreads();
    return {extent[0], extent[1], extent[2], extent[3]};
}

// Whether a query sees any key of first .. last, and whether it sees all of them.
__device__ __forceinline__ bool meets(int2 sees, int first, int last) {
    return sees.x < last && sees.y > first && sees.x < sees.y;
}
__device__ __forceinline__ bool covers(int2 sees, int first, int last) {
    return sees.x <= first && sees.y >= last;
}

// For the tensor-core kernels: exponents in powers of two, and two 16-bit operands packed in a word.
inline constexpr float LOG2E = 1.44269504f, LN2 = 0.69314718f;

__device__ __forceinline__ __nv_bfloat162 two(bf16, float low, float high) { return __floats2bfloat162_rn(low, high); }
__device__ __forceinline__ __half2 two(f16, float low, float high) { return __floats2half2_rn(low, high); }

template <class T> __device__ __forceinline__ uint32_t pack(float low, float high) {
    auto halves = two(T(), low, high);
    uint32_t word;
    memcpy(&word, &halves, 4);
    return word;
}
