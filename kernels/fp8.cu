// 8-bit floats (Micikevicius et al. 2022): maxima of lines (rows or columns), their scales, and their
// codes; every line of codes is stored as a row.
//
// Bytes moved for each element of size s: maxima of rows, of columns or of both s; codes of rows or of
// columns s + 1, of both s + 2; codes of rows by their own maxima, with the maxima of columns, s + 1.
#include "common.cuh"

// Bits of a magnitude: they compare like the numbers, and NaN is above all.
__device__ __forceinline__ uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }
__device__ __forceinline__ uint32_t larger(uint32_t x, uint32_t y) { return x > y ? x : y; }

__device__ __forceinline__ uint32_t warp_largest(uint32_t x) {
#pragma unroll
    for (int with = 16; with > 0; with /= 2) x = larger(x, __shfl_xor_sync(~0u, x, with));
    return x;
}

// Maximum over a block of whole warps; every thread gets it.
__device__ __forceinline__ uint32_t block_largest(uint32_t x) {
    SHARED(uint32_t, parts, [32]);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    x = warp_largest(x);
    if (lane == 0) parts[warp] = x;
    __syncthreads();
    return warp_largest(lane < warps ? parts[lane] : 0);
}

// Merges a block's maximum with those of other blocks; the result does not depend on their order.
__device__ __forceinline__ void leave_largest(float* at, uint32_t x) {
    atomicMax(reinterpret_cast<uint32_t*>(at), x);
}

// Loads in flight per thread.
constexpr int AT_ONCE = 4;

// A warp reads 32·V columns of some rows; the eight warps of a block read the same columns.
template <class T, int V> __device__ void line_maxima_by(const LineMaxima& a) {
    SHARED(uint32_t, parts, [8][32 * V]);
    uint32_t col = (blockIdx.x * 32 + threadIdx.x) * V, most[V] = {};
    uint64_t step = (uint64_t)gridDim.y * 8, first = (uint64_t)blockIdx.y * 8 + threadIdx.y;
    for (uint64_t start = first; start < a.rows; start += AT_ONCE * step) {
        float x[AT_ONCE][V] = {};
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            uint64_t row = start + k * step;
            if (row < a.rows && col < a.cols)
                load(static_cast<const T*>(a.x) + row * a.cols + col, x[k]);
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            uint32_t of_row = 0;
#pragma unroll
            for (int i = 0; i < V; i++) {
                uint32_t size = magnitude(x[k][i]);
                most[i] = larger(most[i], size);
                of_row = larger(of_row, size);
            }
            if (!a.of_rows) continue;
            of_row = warp_largest(of_row);
            uint64_t row = start + k * step;
            if (threadIdx.x == 0 && row < a.rows) leave_largest(a.of_rows + row, of_row);
        }
    }
    if (!a.of_columns) return;
#pragma unroll
    for (int i = 0; i < V; i++) parts[threadIdx.y][threadIdx.x * V + i] = most[i];
    __syncthreads();
    uint32_t thread = threadIdx.y * 32 + threadIdx.x;
    uint32_t line = blockIdx.x * 32 * V + thread;
    if (thread >= 32 * V || line >= a.cols) return;
    uint32_t all = 0;
#pragma unroll
    for (int warp = 0; warp < 8; warp++) all = larger(all, parts[warp][thread]);
    leave_largest(a.of_columns + line, all);
}

template <class T> __device__ void line_maxima(const LineMaxima& a) {
    if (a.vector) line_maxima_by<T, WIDE<T>>(a);
    else line_maxima_by<T, 1>(a);
}
KERNELS(line_maxima, line_maxima<T>, LineMaxima, 256)

// Lower bound of a maximum: 2^-100.
__device__ __forceinline__ float scale_of(uint32_t most, float largest) {
    float maximum = __uint_as_float(most);
    return (maximum < 7.8886090522101181e-31f ? 7.8886090522101181e-31f : maximum) / largest;
}

// Maximum of each line; or, by one block, of all of them.
__device__ void scales_of(const Fp8Scales& a) {
    uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    if (!a.whole) {
        for (uint32_t line = thread; line < a.lines; line += step) {
            uint32_t most = 0;
            for (uint32_t share = 0; share < a.shares; share++)
                most = larger(most, magnitude(a.maxima[(uint64_t)share * a.lines + line]));
            a.scales[line] = scale_of(most, a.largest);
        }
        return;
    }
    uint32_t most = 0;
    for (uint64_t at = threadIdx.x; at < (uint64_t)a.shares * a.lines; at += blockDim.x)
        most = larger(most, magnitude(a.maxima[at]));
    float scale = scale_of(block_largest(most), a.largest);
    for (uint32_t line = threadIdx.x; line < a.lines; line += blockDim.x) a.scales[line] = scale;
}
KERNEL(fp8_scales, scales_of, Fp8Scales, 256)

// Nearest code, ties to even (`Fp8::encode` of base/fp8.rs). Beyond the largest E5M2 number `cvt` gives
// 57,344, and the code without it infinity; no number is beyond, since scales come from maxima.
template <bool E5M2> __device__ __forceinline__ uint8_t encode(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t codes;
    if (E5M2) asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(0.0f), "f"(x));
    else asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(0.0f), "f"(x));
    return (uint8_t)codes;
#else
    constexpr uint32_t FRACTION = E5M2 ? 2 : 3, DROP = 23 - FRACTION, REBIAS = E5M2 ? 112 : 120;
    constexpr uint32_t BEYOND = E5M2 ? 0x7c : 0x7e;
    uint32_t sign = __float_as_uint(x) >> 24 & 0x80, size = magnitude(x), code;
    if (size > 0x7f800000u) return (uint8_t)(sign | 0x7f);
    if (size < (REBIAS + 1) << 23) {
        // One unit in the last place of this sum is one code, so the addition rounds to codes.
        uint32_t units = (REBIAS + 1 - FRACTION + 23) << 23;
        code = __float_as_uint(__uint_as_float(size) + __uint_as_float(units)) - units;
    } else {
        code = ((size + (1u << (DROP - 1)) - 1 + (size >> DROP & 1)) >> DROP) - (REBIAS << FRACTION);
        code = code < BEYOND ? code : BEYOND;
    }
    return (uint8_t)(sign | code);
#endif
}

// Stores the codes of V adjacent numbers, in one store of V bytes.
template <int V> __device__ __forceinline__ void store_codes(uint8_t* to, const uint8_t (&codes)[V]) {
    if constexpr (V == 1) {
        *to = codes[0];
    } else {
#pragma unroll
        for (int i = 0; i < V; i += 4) {
            uint32_t word;
            memcpy(&word, codes + i, 4);
            *reinterpret_cast<uint32_t*>(to + i) = word;
        }
    }
}

template <class T, bool E5M2, int V> __device__ void fp8_rows_by(const Fp8Codes& a) {
    each_piece<V>(a.rows, a.cols, [&](uint64_t row, uint32_t col) {
        uint64_t at = row * a.cols + col;
        float x[V], factor = 1.0f / a.row_scales[row];
        load(static_cast<const T*>(a.x) + at, x);
        uint8_t codes[V];
#pragma unroll
        for (int i = 0; i < V; i++) codes[i] = encode<E5M2>(x[i] * factor);
        store_codes(static_cast<uint8_t*>(a.row_codes) + at, codes);
    });
}

template <class T, bool E5M2> __device__ void fp8_rows(const Fp8Codes& a) {
    if (a.vector) fp8_rows_by<T, E5M2, WIDE<T>>(a);
    else fp8_rows_by<T, E5M2, 1>(a);
}
KERNELS(fp8_rows_e4m3, (fp8_rows<T, false>), Fp8Codes, 256)
KERNELS(fp8_rows_e5m2, (fp8_rows<T, true>), Fp8Codes, 256)

// A warp has one row at a time: its maximum, then its codes, for which it reads the row again from the
// cache. Maxima of columns are merged in shared memory, with a write only for a larger value, and at the
// end across blocks.
template <class T, bool E5M2, int V> __device__ void fp8_own_rows_by(const Fp8OwnRows& a) {
    DYNAMIC_SHARED(shared);
    uint32_t* columns = reinterpret_cast<uint32_t*>(shared);
    uint32_t warp = threadIdx.x / 32, first = threadIdx.x % 32 * V, warps = blockDim.x / 32;
    if (a.of_columns) {
        for (uint32_t col = threadIdx.x; col < a.cols; col += blockDim.x) columns[col] = 0;
        __syncthreads();
    }
    for (uint64_t row = (uint64_t)blockIdx.x * warps + warp; row < a.rows; row += gridDim.x * warps) {
        const T* from = static_cast<const T*>(a.x) + row * a.cols;
        uint8_t* to = static_cast<uint8_t*>(a.codes) + row * a.cols;
        uint32_t most = 0;
        for (uint32_t start = first; start < a.cols; start += AT_ONCE * 32 * V) {
            float x[AT_ONCE][V] = {};
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++)
                if (start + k * 32 * V < a.cols) load(from + start + k * 32 * V, x[k]);
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                uint32_t col = start + k * 32 * V;
#pragma unroll
                for (int i = 0; i < V; i++) {
                    uint32_t size = magnitude(x[k][i]);
                    most = larger(most, size);
                    if (!a.of_columns || col >= a.cols || size <= columns[col + i]) continue;
                    atomicMax(columns + col + i, size);
                }
            }
        }
        float scale = scale_of(warp_largest(most), a.largest), factor = 1.0f / scale;
        if (first == 0) a.scales[row] = scale;
        for (uint32_t col = first; col < a.cols; col += 32 * V) {
            float x[V];
            load(from + col, x);
            uint8_t codes[V];
#pragma unroll
            for (int i = 0; i < V; i++) codes[i] = encode<E5M2>(x[i] * factor);
            store_codes(to + col, codes);
        }
    }
    if (!a.of_columns) return;
    __syncthreads();
    for (uint32_t col = threadIdx.x; col < a.cols; col += blockDim.x)
        leave_largest(a.of_columns + col, columns[col]);
}

template <class T, bool E5M2> __device__ void fp8_own_rows(const Fp8OwnRows& a) {
    if (a.vector) fp8_own_rows_by<T, E5M2, WIDE<T>>(a);
    else fp8_own_rows_by<T, E5M2, 1>(a);
}
KERNELS(fp8_own_rows_e4m3, (fp8_own_rows<T, false>), Fp8OwnRows, 512)
KERNELS(fp8_own_rows_e5m2, (fp8_own_rows<T, true>), Fp8OwnRows, 512)

// A block transposes a tile of 64 × 64 in shared memory, where lines are padded by 4 bytes against bank
// conflicts. Codes of rows, if requested, come from the same loads.
constexpr int TILE = 64, LINE = TILE + 4;

template <class T, bool E5M2, int V> __device__ void fp8_columns_by(const Fp8Codes& a, uint8_t* tile) {
    constexpr int ACROSS = TILE / V, DOWN = 256 / ACROSS;
    uint64_t first_row = (uint64_t)blockIdx.y * TILE;
    uint32_t line = threadIdx.x % ACROSS * V, col = blockIdx.x * TILE + line;
    if (col >= a.cols) return;
    float factors[V];
#pragma unroll
    for (int i = 0; i < V; i++) factors[i] = 1.0f / a.column_scales[col + i];
#pragma unroll
    for (uint32_t down = threadIdx.x / ACROSS; down < TILE; down += DOWN) {
        uint64_t row = first_row + down;
        if (row >= a.rows) break;
        float x[V];
        load(static_cast<const T*>(a.x) + row * a.cols + col, x);
#pragma unroll
        for (int i = 0; i < V; i++)
            tile[(line + i) * LINE + down] = encode<E5M2>(x[i] * factors[i]);
        if (!a.row_codes) continue;
        uint8_t codes[V];
        float factor = 1.0f / a.row_scales[row];
#pragma unroll
        for (int i = 0; i < V; i++) codes[i] = encode<E5M2>(x[i] * factor);
        store_codes(static_cast<uint8_t*>(a.row_codes) + row * a.cols + col, codes);
    }
}

template <class T, bool E5M2> __device__ void fp8_columns(const Fp8Codes& a) {
    SHARED(uint32_t, tile, [TILE * LINE / 4]);
    uint8_t* codes = reinterpret_cast<uint8_t*>(tile);
    if (a.vector) fp8_columns_by<T, E5M2, WIDE<T>>(a, codes);
    else fp8_columns_by<T, E5M2, 1>(a, codes);
    __syncthreads();
    // Stores 16 bytes of a line per thread.
    uint32_t line = threadIdx.x / 4, part = threadIdx.x % 4 * 16, col = blockIdx.x * TILE + line;
    uint64_t row = (uint64_t)blockIdx.y * TILE + part;
    if (col >= a.cols || row >= a.rows) return;
    uint8_t* to = static_cast<uint8_t*>(a.column_codes) + (uint64_t)col * a.rows + row;
    if (a.wide) {
        uint4 raw;
        memcpy(&raw, codes + line * LINE + part, 16);
        *reinterpret_cast<uint4*>(to) = raw;
    } else {
        for (uint32_t i = 0; i < 16 && row + i < a.rows; i++) to[i] = codes[line * LINE + part + i];
    }
}
KERNELS(fp8_columns_e4m3, (fp8_columns<T, false>), Fp8Codes, 256)
KERNELS(fp8_columns_e5m2, (fp8_columns<T, true>), Fp8Codes, 256)
