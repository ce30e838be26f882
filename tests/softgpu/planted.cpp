// Programs with one fault each, of the kinds that the stand-in detects: `planted NAME` prints the result
// or aborts with the stand-in's message. tests/ops/planted.rs has the expected outputs. For tests only.
#include "driver.h"

struct Function;
struct Comm;
struct Id {
    char text[128];
};
extern "C" {
Result cuCtxSetCurrent(Device*);
Result cuDevicePrimaryCtxRetain(Device**, int);
Result cuStreamCreateWithPriority(Stream**, unsigned, int);
Result cuStreamSynchronize(Stream*);
Result cuModuleGetFunction(Function**, void*, const char*);
Result cuLaunchKernel(Function*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream*, void**,
                      void**);
Result ncclGetUniqueId(Id*);
Result ncclCommInitRank(Comm**, int, Id, int);
Result ncclAllReduce(const void*, void*, size_t, int, int, Comm*, void*);
Result ncclSend(const void*, size_t, int, int, Comm*, void*);
Result ncclRecv(void*, size_t, int, int, Comm*, void*);
}

namespace {
struct Numbers {
    float* x;
    uint32_t count;
};
struct Large {
    float* x;
    char more[softgpu::ARGUMENT_BYTES];
};

void one(const Numbers& a) { a.x[0] = 1; }
KERNEL_OF(void, bound_of_64, one, Numbers, 64)
KERNEL_OF(void, large_argument, [](const Large& a) { a.x[0] = 1; }, Large, 64)

// 8 KiB of static shared memory in addition to the dynamic bytes of the launch.
void declare(const Numbers& a) {
    SHARED(float, shared, [2048]);
    shared[threadIdx.x] = 1;
    a.x[threadIdx.x] = shared[threadIdx.x];
}
KERNEL_OF(void, static_shared, declare, Numbers, 64)

// x = initial contents of shared memory; leaves numbers for the next block.
void read_first(const Numbers& a) {
    SHARED(float, shared, [64]);
    a.x[64 * blockIdx.x + threadIdx.x] = shared[threadIdx.x];
    shared[threadIdx.x] = 1;
}
KERNEL_OF(void, uninitialised, read_first, Numbers, 64)

void beside_static(const Numbers& a) {
    SHARED(float, shared, [64]);
    float* first = shared; // a pointer has no bounds that the compiler checks
    first[threadIdx.x + a.count] = 1;
}
KERNEL_OF(void, static_overrun, beside_static, Numbers, 64)

void beside_dynamic(const Numbers& a) {
    DYNAMIC_SHARED(shared);
    reinterpret_cast<float*>(shared)[threadIdx.x + a.count] = 1;
}
KERNEL_OF(void, dynamic_overrun, beside_dynamic, Numbers, 64)

// Sum over blocks in the order in which they run.
void add_in_turn(const Numbers& a) {
    if (threadIdx.x == 0) a.x[0] = a.x[0] * 0.75f + blockIdx.x;
}
KERNEL_OF(void, order_of_blocks, add_in_turn, Numbers, 64)

// Reads a tile that an asynchronous copy in flight may already have overwritten.
void overwrite(const Numbers& a) {
    DYNAMIC_SHARED(shared);
    float* tile = reinterpret_cast<float*>(shared);
    unsigned at = 4 * threadIdx.x;
    tile[at] = at;
    copy_async(tile + at, a.x + 256 + at, true);
    copy_commit();
    a.x[512 + threadIdx.x] = tile[at];
    copy_wait<0>();
}
KERNEL_OF(void, early_copy, overwrite, Numbers, 64)

void read_without_wait(const Numbers& a) {
    DYNAMIC_SHARED(shared);
    float* tile = reinterpret_cast<float*>(shared);
    copy_async(tile + 4 * threadIdx.x, a.x + 4 * threadIdx.x, true);
    copy_commit();
    a.x[512 + threadIdx.x] = tile[4 * threadIdx.x];
}
KERNEL_OF(void, late_copy, read_without_wait, Numbers, 64)

void copy_askew(const Numbers& a) {
    DYNAMIC_SHARED(shared);
    copy_async(shared, a.x + 1, true);
}
KERNEL_OF(void, misaligned_copy, copy_askew, Numbers, 64)

void load_askew(const Numbers& a) {
    uint4 words = *reinterpret_cast<const uint4*>(a.x + a.count);
    a.x[0] = words.x;
}
KERNEL_OF(void, misaligned_load, load_askew, Numbers, 64)

void shift_far(const Numbers& a) { a.x[0] = 1u << (32 * a.count); }
KERNEL_OF(void, wide_shift, shift_far, Numbers, 64)

void part_ways(const Numbers& a) {
    if (threadIdx.x < 16) a.x[threadIdx.x] = __shfl_xor_sync(~0u, 1.0f, 16);
    else __syncwarp();
}
KERNEL_OF(void, different_collectives, part_ways, Numbers, 64)

// Device with two streams.
struct Gpu {
    Device* device;
    Stream* streams[2];
    alignas(256) float x[1024] = {};

    explicit Gpu(int number) {
        cuDevicePrimaryCtxRetain(&device, number);
        cuCtxSetCurrent(device);
        int priority = 0;
        for (Stream*& s : streams) cuStreamCreateWithPriority(&s, 1, priority--);
    }
    template <class A> Result launch(const char* name, A arguments, unsigned blocks, unsigned threads, unsigned shared) {
        Function* function;
        if (Result code = cuModuleGetFunction(&function, nullptr, name)) return code;
        void* list[] = {&arguments};
        return cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared, streams[0], list, nullptr);
    }
    Result run(const char* name, uint32_t count = 1, unsigned blocks = 1, unsigned threads = 64, unsigned shared = 1024) {
        Result code = launch(name, Numbers{x, count}, blocks, threads, shared);
        if (!code) code = cuStreamSynchronize(streams[0]);
        if (code) printf("refused with %d\n", code);
        return code;
    }
};

// Two ranks, each a thread with a device, joined by `communicators` communicators.
void ranks(int communicators, const std::function<void(int, Gpu&, std::vector<Comm*>&)>& rank) {
    std::vector<Id> ids(communicators);
    for (Id& id : ids) ncclGetUniqueId(&id);
    std::vector<std::thread> threads;
    for (int number : {0, 1})
        threads.emplace_back([&, number] {
            Gpu gpu(number);
            std::vector<Comm*> comms(communicators);
            for (int i = 0; i < communicators; i++) ncclCommInitRank(&comms[i], 2, ids[i], number);
            rank(number, gpu, comms);
            for (Stream* s : gpu.streams) cuStreamSynchronize(s);
        });
    for (std::thread& thread : threads) thread.join();
}
constexpr int F32 = 7;

// Both ranks begin a receive and then send: this never ends on a GPU whose streams share a queue.
void receive_first() {
    ranks(2, [](int number, Gpu& gpu, std::vector<Comm*>& comms) {
        ncclRecv(gpu.x, 1, F32, 1 - number, comms[1 - number], gpu.streams[1]);
        gpu.launch("bound_of_64", Numbers{gpu.x + 8, 1}, 1, 64, 0);
        ncclSend(gpu.x + 8, 1, F32, 1 - number, comms[number], gpu.streams[0]);
    });
}
// Each rank begins another communicator's collective first.
void crossed_collectives() {
    ranks(2, [](int number, Gpu& gpu, std::vector<Comm*>& comms) {
        for (int i : {number, 1 - number})
            ncclAllReduce(gpu.x + i, gpu.x + i, 1, F32, 0, comms[i], gpu.streams[i]);
    });
}
} // namespace

int main(int, char** arguments) {
    std::string name = arguments[1];
    if (name == "receive_first" || name == "crossed_collectives") {
        name == "receive_first" ? receive_first() : crossed_collectives();
        printf("ended\n");
        return 0;
    }
    Gpu gpu(0);
    for (int i = 0; i < 512; i++) gpu.x[i] = i;
    if (name == "bound_of_64") gpu.run(name.c_str(), 1, 1, 96);
    else if (name == "large_argument") printf("refused with %d\n", gpu.launch(name.c_str(), Large{gpu.x, {}}, 1, 64, 0));
    else if (name == "static_shared") gpu.run(name.c_str(), 1, 1, 64, 44 << 10);
    else if (name == "order_of_blocks") {
        gpu.run(name.c_str(), 1, 100);
        float first = gpu.x[0];
        gpu.x[0] = 0;
        gpu.run(name.c_str(), 1, 100);
        printf(first == gpu.x[0] ? "the same\n" : "differs\n");
    } else {
        gpu.run(name.c_str(), name == "static_overrun" ? 1 : name == "dynamic_overrun" ? 200 : 1, 2);
        unsigned nan = 0, other = 0;
        for (int i = 0; i < 64; i++) nan += std::isnan(gpu.x[64 + i]) && std::isnan(gpu.x[i]);
        for (int i = 0; i < 64; i++) other += gpu.x[512 + i] != 4.0f * i;
        printf("%u not a number, %u wrong\n", nan, other);
    }
}
