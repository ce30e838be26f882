// Shared parts of the attention kernels for Hopper: tiles in shared memory, and their copies, products
// and stores.
//
// A block has one producer warpgroup, which issues the copies of tiles, and two that multiply them, 64
// rows each. TMA copies tiles through tensor maps of qkv and dy, with zeros past the end of a sample;
// two stages are in flight while two are used. Named barriers 1 and 2 are for forward's turns
// (`Forward::take_turn`), 3 and 4 for the threads of one warpgroup.
//
// A tile in shared memory is split in pieces of 64 columns (32 if 64 does not divide the head; a head of
// 80 is padded with zeros to 96). Each row of a piece has 128 (64) bytes, swizzled: bits 4-6 (4-5) of an
// address are XORed with bits 7-9 (7-8), so that eight rows are in different banks.
#pragma once
#include "attention_tile.cuh"
#include "hopper.cuh"

inline constexpr int GROUP = 128;     // threads of a warpgroup
inline constexpr int MULTIPLIERS = 2; // warpgroups that multiply
inline constexpr int HOPPER_THREADS = GROUP * (1 + MULTIPLIERS);
inline constexpr int BOX = 64;        // rows of one TMA copy
inline constexpr int STAGES = 2;
// Registers per thread: 168 at the start, 64512 in the block.
inline constexpr int PRODUCER_REGISTERS = 24, MULTIPLIER_REGISTERS = 240;

// Tile of ROWS rows of a head of D in shared memory.
template <int D, int ROWS> struct Tile {
    static constexpr int PIECE = D % 64 == 0 ? 64 : 32;
    static constexpr int PIECES = (D + PIECE - 1) / PIECE;
    static constexpr int WIDTH = PIECE * PIECES;
    static constexpr uint32_t ROW = 2 * PIECE;            // bytes of a row of a piece
    static constexpr uint32_t PIECE_BYTES = ROWS * ROW;
    static constexpr uint32_t BYTES = PIECES * PIECE_BYTES;
    // Swizzle of a descriptor: 128 bytes (1) or 64 (2).
    static constexpr uint64_t SWIZZLE = PIECE == 64 ? 1 : 2;

    // Address of the two elements from an even column.
    static __device__ __forceinline__ uint32_t at(int row, int column) {
        uint32_t byte = column / PIECE * PIECE_BYTES + row * ROW + column % PIECE * 2;
        return byte ^ (byte >> 7 & (ROW / 16 - 1)) << 4;
    }

    static __device__ __forceinline__ uint64_t descriptor(const char* from, uint32_t leading, uint32_t stride) {
        return (shared_address(from) & 0x3ffff) >> 4 | (uint64_t)(leading >> 4) << 16 |
               (uint64_t)(stride >> 4) << 32 | SWIZZLE << 62;
    }
    // Descriptor of rows from `row` on (in groups of eight, `stride` bytes apart) and columns column ..
    // column + 16, K-major. Swizzled K-major operands have no leading offset; it must be 1.
    static __device__ __forceinline__ uint64_t rows(const char* tile, int row, int column) {
        return descriptor(tile + column / PIECE * PIECE_BYTES + row * ROW + column % PIECE * 2, 16, 8 * ROW);
    }
    // Descriptor of rows row .. row + 16 and all columns, N-major. Pieces are `leading` bytes apart.
    static __device__ __forceinline__ uint64_t columns(const char* tile, int row) {
        return descriptor(tile + row * ROW, PIECE_BYTES, 8 * ROW);
    }

    // Issues the copy of rows row .. row + ROWS of a part (q, k or v of a head; a head of dy), BYTES in
    // all.
    static __device__ __forceinline__ void fetch(char* tile, const TensorMap* map, uint64_t* barrier, int part, int row, int sample) {
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++)
#pragma unroll
            for (int box = 0; box < ROWS; box += BOX)
                tensor_load(tile + piece * PIECE_BYTES + box * ROW, map, barrier, piece * PIECE, part, row + box, sample);
    }
};

// Next stage, and the parity of its phase.
struct Turn {
    int stage = 0;
    uint32_t parity = 0;

    __device__ __forceinline__ void next() {
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        parity ^= stage == 0;
    }
};

// Packs a result's numbers `of(n, i)` as the left operand of the next product.
template <int N, class Of> __device__ __forceinline__ void pack_some(uint32_t (&p)[N / 16][4], Of of) {
#pragma unroll
    for (int k = 0; k < N / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) p[k][i] = pack<bf16>(of(2 * k + i / 2, i % 2 * 2), of(2 * k + i / 2, i % 2 * 2 + 1));
}

// Issues s = (64 rows of x from `row`)·(rows of y)ᵀ over D, in a group of its own.
template <int D, int ROWS, int N>
__device__ __forceinline__ void ask_rows(float (&s)[N / 8][4], const char* x, int row, const char* y) {
    wgmma_fence();
    wgmma_rows<false>(s, Tile<D, ROWS>::rows(x, row, 0), Tile<D, N>::rows(y, 0, 0));
#pragma unroll
    for (int k = 16; k < D; k += 16) wgmma_rows<true>(s, Tile<D, ROWS>::rows(x, row, k), Tile<D, N>::rows(y, 0, k));
    wgmma_commit();
}

// Issues y += p·(rows of x), in a group of its own.
template <int D, int N>
__device__ __forceinline__ void ask_columns(float (&y)[Tile<D, N>::WIDTH / 8][4], const uint32_t (&p)[N / 16][4], const char* x) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < N / 16; k++) wgmma_columns(y, p[k], Tile<D, N>::columns(x, 16 * k));
    wgmma_commit();
}

// Stores this warp's 16 rows of a result, staged in its own rows of a tile, 16 bytes at a time. First
// waits for the rest of its warpgroup, whose products may have read these rows.
template <int D, int ROWS>
__device__ __forceinline__ void save(const float (&x)[Tile<D, ROWS>::WIDTH / 8][4], char* tile, int own, bf16* to, uint32_t stride, int first, int seq) {
    int lane = threadIdx.x % 32;
    named_wait(MULTIPLIERS + threadIdx.x / GROUP, GROUP);
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t word = pack<bf16>(x[n][2 * half], x[n][2 * half + 1]);
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

// Start of the tiles: the swizzle repeats every 1024 bytes.
__device__ __forceinline__ char* aligned(char* shared) { return shared + (-shared_address(shared) & 1023); }
