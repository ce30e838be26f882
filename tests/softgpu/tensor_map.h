// Contents of a tensor map's 128 bytes in the stand-in: written by cuTensorMapEncodeTiled, read by TMA.
#pragma once
#include <cstdint>

namespace softgpu {
struct Map {
    static constexpr uint64_t MAGIC = 0x70616d726f736e65;
    uint64_t magic;
    uint64_t address;
    uint32_t sizes[4];
    uint64_t strides[3]; // in bytes, of all but the first dimension
    uint32_t box[4];
    uint32_t swizzle; // bytes: 0, 32, 64, 128
    uint32_t element; // bytes
};
static_assert(sizeof(Map) <= 128);
} // namespace softgpu
