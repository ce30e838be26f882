// Cross-entropy over a vocabulary that may be split among ranks. One block per row.
//
// Bytes moved for each logit of size s: the stats s (one pass: each thread keeps a running maximum and
// sum), the losses alone nothing, with the gradient 2s. If the vocabulary is not split, one kernel does
// both: its second pass over a row reads the L2 cache, so that 2s are moved, not 3s.
#include "common.cuh"

// Column of the row's target, or -1 if another rank has it.
__device__ __forceinline__ int64_t place_of(const CrossEntropy& a, uint64_t row) {
    int64_t place = a.targets[row] - a.first;
    return a.targets[row] >= 0 && place >= 0 && place < (int64_t)a.own ? place : -1;
}

// exp(x − maximum), or exp(x) if the maximum is −∞: −∞ − −∞ would be NaN.
__device__ __forceinline__ float exp_from(float x, float maximum) {
    return expf(x - (maximum == -INFINITY ? 0.0f : maximum));
}

// Logit after the softcap.
__device__ __forceinline__ float capped(const CrossEntropy& a, float x) {
    return a.cap > 0.0f ? a.cap * tanhf(x / a.cap) : x;
}

template <class T, int V> __device__ void stats_by(const CrossEntropy& a) {
    uint64_t row = blockIdx.x;
    const T* logits = static_cast<const T*>(a.logits) + row * a.cols;
    float maximum = -INFINITY, sum = 0;
    auto visit = [&](auto& x) {
        for (float& each : x) each = capped(a, each);
        float top = maximum;
        for (float each : x) top = fmaxf(top, each);
        if (top > maximum) {
            sum *= exp_from(maximum, top);
            maximum = top;
        }
        for (float each : x) sum += exp_from(each, maximum);
    };
    uint32_t whole = a.own / V * V;
    for (uint32_t col = threadIdx.x * V; col < whole; col += blockDim.x * V) {
        float x[V];
        load(logits + col, x);
        visit(x);
    }
    for (uint32_t col = whole + threadIdx.x; col < a.own; col += blockDim.x) {
        float x[1];
        load(logits + col, x);
        visit(x);
    }
    float largest = block_max(maximum);
    // A thread without elements adds 0, for any maximum of the row.
    sum = block_sum(maximum == -INFINITY ? sum : sum * exp_from(maximum, largest));
    if (threadIdx.x == 0) {
        int64_t place = place_of(a, row);
        a.stats[3 * row] = largest;
        a.stats[3 * row + 1] = sum;
        a.stats[3 * row + 2] = place < 0 ? -INFINITY : capped(a, widen(logits[place]));
    }
}

template <class T> __device__ void cross_entropy_stats(const CrossEntropy& a) {
    if (a.vector) stats_by<T, WIDE<T>>(a);
    else stats_by<T, 1>(a);
}
KERNELS(cross_entropy_stats, cross_entropy_stats<T>, CrossEntropy, 512)

template <class T, int V>
__device__ void gradient_by(const CrossEntropy& a, float largest, float factor, float weight) {
    uint64_t row = blockIdx.x;
    T* logits = static_cast<T*>(a.logits) + row * a.cols;
    int64_t place = place_of(a, row);
    for (uint32_t col = threadIdx.x * V; col < a.cols; col += blockDim.x * V) {
        float x[V];
        load(logits + col, x);
#pragma unroll
        for (int i = 0; i < V; i++) {
            float y = capped(a, x[i]);
            float slope = factor * expf(y - largest) - (col + i == place ? weight : 0.0f);
            if (a.cap > 0.0f) slope *= 1.0f - (y / a.cap) * (y / a.cap);
            x[i] = weight == 0.0f || col + i >= a.own ? 0.0f : slope;
        }
        store(logits + col, x);
    }
}

template <class T> __device__ void cross_entropy(const CrossEntropy& a) {
    uint64_t row = blockIdx.x;
    float largest = -INFINITY, target = -INFINITY, weight = a.weights[row];
    for (uint32_t share = 0; share < a.shares; share++) {
        const float* stats = a.stats + 3 * (share * a.rows + row);
        largest = stats[0] > largest ? stats[0] : largest;
        target = stats[2] > target || stats[2] != stats[2] ? stats[2] : target;
    }
    double sum = 0;
    for (uint32_t share = 0; share < a.shares; share++) {
        const float* stats = a.stats + 3 * (share * a.rows + row);
        // A share without entries adds 0; without this check it would add −∞ − −∞.
        sum += stats[0] > -INFINITY ? stats[1] * exp((double)stats[0] - largest) : stats[1];
    }
    double log_z = log(sum) + largest;
    if (threadIdx.x == 0) {
        a.losses[row] = weight == 0.0f ? 0.0f : (float)(weight * (log_z - target));
        if (a.z_losses)
            a.z_losses[row] = weight == 0.0f ? 0.0f : (float)(weight * (a.z * log_z * log_z));
    }
    if (!a.scale) return;
    weight *= *a.scale;
    float factor = (float)(weight * (1.0 + 2.0 * a.z * log_z) / sum);
    if (a.vector) gradient_by<T, WIDE<T>>(a, largest, factor, weight);
    else gradient_by<T, 1>(a, largest, factor, weight);
}
KERNELS(cross_entropy, cross_entropy<T>, CrossEntropy, 512)

template <class T> __device__ void cross_entropy_unsplit(const CrossEntropy& a) {
    cross_entropy_stats<T>(a);
    __syncthreads(); // the row's stats are written
    cross_entropy<T>(a);
}
KERNELS(cross_entropy_unsplit, cross_entropy_unsplit<T>, CrossEntropy, 512)
