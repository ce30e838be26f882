// The part of NCCL that gptrain calls, among threads of one process, each with its own stand-in
// device. For tests only.
//
// A collective is two pieces of work in its stream: a rank deposits what it brings, and takes the
// result once all have. Ranks that call different things fail the communicator, with a message.
#include "softgpu.h"
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

typedef int Result;
enum : Result { OK = 0, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
#define API extern "C" __attribute__((visibility("default"))) Result

// A step waits for others until its `when`; what is asked for may be asked again, by a graph.
struct Step {
    std::function<bool()> when;
    std::function<void()> run;
};
typedef std::function<std::vector<Step>(bool in_graph)> Ask;
extern "C" void softgpu_push(void* stream, std::function<void()>* work);
extern "C" void softgpu_push_steps(void* stream, Ask* ask);
extern "C" void softgpu_push_when(void* stream, std::function<bool()>* when, std::function<void()>* work);

namespace {
// nccl.h
enum { INT32 = 2, FLOAT32 = 7, BFLOAT16 = 9 };
size_t size_of(int type) { return type == BFLOAT16 ? 2 : 4; }

struct Round {
    std::string what; // of the first that came
    std::map<int, std::string> brought;
    int taken = 0;
};
struct Meeting {
    std::mutex lock;
    std::condition_variable arrived;
    int ranks = 0;
    bool failed = false;
    std::map<uint64_t, Round> rounds;
    std::map<std::pair<int, int>, std::deque<std::string>> mail;
};
struct Comm {
    std::shared_ptr<Meeting> meeting;
    int rank, size;
    uint64_t calls = 0;
    // Held by every graph with a collective of this communicator.
    std::shared_ptr<int> graphs = std::make_shared<int>();
};
struct Id {
    char text[128];
};

std::mutex all_lock;
std::map<std::string, std::shared_ptr<Meeting>> all;
int next_id = 0;

std::string bytes_of(const void* from, size_t bytes) {
    return std::string(static_cast<const char*>(from), bytes);
}

void sum(int type, const std::map<int, std::string>& brought, size_t first, size_t count, void* to) {
    for (size_t i = 0; i < count; i++) {
        float total = 0;
        for (auto& [rank, bytes] : brought) {
            if (type == FLOAT32) total += reinterpret_cast<const float*>(bytes.data())[first + i];
            else total += __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(bytes.data())[first + i]);
        }
        if (type == FLOAT32) static_cast<float*>(to)[i] = total;
        else static_cast<__nv_bfloat16*>(to)[i] = __float2bfloat16(total);
    }
}

typedef std::function<void(const std::map<int, std::string>&)> Take;

Result collective(Comm* comm, const std::string& what, const void* from, size_t bytes, void* stream, Take take) {
    auto meeting = comm->meeting;
    int rank = comm->rank, size = comm->size;
    Ask ask = [=, held = comm->graphs](bool in_graph) {
        uint64_t call = comm->calls++;
        // A launch is captured by all ranks or by none.
        std::string named = in_graph ? what + " in a graph" : what;
        std::function<void()> deposit = [=] {
            std::lock_guard<std::mutex> guard(meeting->lock);
            Round& round = meeting->rounds[call];
            if (round.what.empty()) round.what = named;
            if (round.what != named && !meeting->failed) {
                fprintf(stderr, "softgpu: rank %d calls %s where another calls %s\n", rank, named.c_str(), round.what.c_str());
                meeting->failed = true;
            }
            round.brought[rank] = bytes_of(from, bytes);
        };
        std::function<bool()> all_here = [=] {
            std::lock_guard<std::mutex> guard(meeting->lock);
            return meeting->failed || (int)meeting->rounds[call].brought.size() == size;
        };
        std::function<void()> finish = [=] {
            std::lock_guard<std::mutex> guard(meeting->lock);
            if (meeting->failed) return;
            Round& round = meeting->rounds[call];
            take(round.brought);
            if (++round.taken == size) meeting->rounds.erase(call);
        };
        return std::vector<Step>{{nullptr, deposit}, {all_here, finish}};
    };
    softgpu_push_steps(stream, &ask);
    return OK;
}

std::string words(const char* op, size_t count, int type) {
    return std::string(op) + " of " + std::to_string(count) + " of type " + std::to_string(type);
}

struct Message {
    bool send;
    std::function<void()> post;
};
thread_local int depth = 0;
thread_local std::vector<Message> messages;

// Sends first: they wait for nobody.
void post() {
    for (bool send : {true, false})
        for (Message& m : messages)
            if (m.send == send) m.post();
    messages.clear();
}
} // namespace

API ncclGetVersion(int* version) {
    *version = 22800;
    return OK;
}
extern "C" __attribute__((visibility("default"))) const char* ncclGetErrorString(Result) {
    return "an error of the software stand-in";
}
API ncclGetUniqueId(Id* id) {
    std::lock_guard<std::mutex> guard(all_lock);
    memset(id, 0, sizeof *id);
    snprintf(id->text, sizeof id->text, "meeting %d", next_id++);
    all[id->text] = std::make_shared<Meeting>();
    return OK;
}
API ncclCommInitRank(Comm** comm, int size, Id id, int rank) {
    std::shared_ptr<Meeting> meeting;
    {
        std::lock_guard<std::mutex> guard(all_lock);
        auto found = all.find(id.text);
        if (found == all.end() || rank < 0 || rank >= size) return INVALID_ARGUMENT;
        meeting = found->second;
    }
    std::unique_lock<std::mutex> guard(meeting->lock);
    meeting->ranks++;
    meeting->arrived.notify_all();
    meeting->arrived.wait(guard, [&] { return meeting->ranks >= size; });
    *comm = new Comm{meeting, rank, size};
    return OK;
}
API ncclCommDestroy(Comm* comm) {
    if (comm->graphs.use_count() > 1) {
        fprintf(stderr, "softgpu: NCCL waits for ever for graphs with a communicator that is destroyed\n");
        abort();
    }
    delete comm;
    return OK;
}
API ncclCommAbort(Comm* comm) {
    delete comm;
    return OK;
}
API ncclCommGetAsyncError(Comm* comm, Result* error) {
    std::lock_guard<std::mutex> guard(comm->meeting->lock);
    *error = comm->meeting->failed ? INVALID_USAGE : OK;
    return OK;
}
API ncclAllReduce(const void* from, void* to, size_t count, int type, int, Comm* comm, void* stream) {
    return collective(comm, words("all_reduce", count, type), from, count * size_of(type), stream,
                      [=](auto& brought) { sum(type, brought, 0, count, to); });
}
API ncclReduceScatter(const void* from, void* to, size_t count, int type, int, Comm* comm, void* stream) {
    size_t first = comm->rank * count;
    return collective(comm, words("reduce_scatter", count, type), from, comm->size * count * size_of(type),
                      stream, [=](auto& brought) { sum(type, brought, first, count, to); });
}
API ncclAllGather(const void* from, void* to, size_t count, int type, Comm* comm, void* stream) {
    size_t bytes = count * size_of(type);
    return collective(comm, words("all_gather", count, type), from, bytes, stream, [=](auto& brought) {
        for (auto& [rank, part] : brought) memcpy(static_cast<char*>(to) + rank * bytes, part.data(), bytes);
    });
}
API ncclSend(const void* from, size_t count, int type, int peer, Comm* comm, void* stream) {
    auto meeting = comm->meeting;
    std::pair<int, int> lane{comm->rank, peer};
    messages.push_back({true, [=] {
        std::function<void()> work = [=] {
            std::lock_guard<std::mutex> guard(meeting->lock);
            meeting->mail[lane].push_back(bytes_of(from, count * size_of(type)));
        };
        softgpu_push(stream, &work);
    }});
    if (depth == 0) post();
    return OK;
}
API ncclRecv(void* to, size_t count, int type, int peer, Comm* comm, void* stream) {
    auto meeting = comm->meeting;
    std::pair<int, int> lane{peer, comm->rank};
    size_t bytes = count * size_of(type);
    messages.push_back({false, [=] {
        std::function<bool()> here = [=] {
            std::lock_guard<std::mutex> guard(meeting->lock);
            return meeting->failed || !meeting->mail[lane].empty();
        };
        std::function<void()> take = [=] {
            std::lock_guard<std::mutex> guard(meeting->lock);
            if (meeting->failed) return;
            std::string message = std::move(meeting->mail[lane].front());
            meeting->mail[lane].pop_front();
            if (message.size() != bytes) {
                fprintf(stderr, "softgpu: %zu bytes received where %zu were sent\n", bytes, message.size());
                meeting->failed = true;
                return;
            }
            memcpy(to, message.data(), bytes);
        };
        softgpu_push_when(stream, &here, &take);
    }});
    if (depth == 0) post();
    return OK;
}
API ncclGroupStart() {
    depth++;
    return OK;
}
API ncclGroupEnd() {
    if (--depth == 0) post();
    return OK;
}
