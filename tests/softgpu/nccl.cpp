// Part of NCCL that gptrain calls, among threads or processes of one machine, each with its own stand-in
// device. For tests only.
//
// Ranks exchange files in a folder, in memory if /dev/shm exists; the unique id is its name. A
// collective is two pieces of work in its stream: a rank writes a file with its input, and computes the
// result once the files of all ranks exist. The sender of a message waits until it is received. So a
// rank that is killed or stopped leaves the others waiting, as real NCCL does over NVLink.
// SOFTGPU_NCCL_SERIAL=1: a device has one collective in flight at a time, in the order of the host's
// calls, as NCCL before 2.26 requires of its users; ranks with different orders then deadlock. Ranks
// that call different operations fail the communicator, with a message; an abort ends all waits in it.
#include "softgpu.h"
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unistd.h>
#include <vector>

typedef int Result;
enum : Result { OK = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
#define API extern "C" __attribute__((visibility("default"))) Result

// Step that waits for other ranks until `when` returns true; a graph calls its Ask once per launch.
struct Step {
    std::function<bool()> when;
    std::function<void()> run;
    bool receive = false; // receives a message
};
typedef std::function<std::vector<Step>(bool in_graph)> Ask;
extern "C" void softgpu_push_steps(void* stream, Ask* ask);
extern "C" void* softgpu_device(void* stream);
extern "C" void softgpu_hold(void* device, long bytes);
// Wakes the waiting threads of this process; other processes poll.
extern "C" void softgpu_tell();

namespace {
namespace fs = std::filesystem;

// nccl.h
enum { INT32 = 2, INT64 = 4, FLOAT16 = 6, FLOAT32 = 7, BFLOAT16 = 9 };
size_t size_of(int type) {
    return type == BFLOAT16 || type == FLOAT16 ? 2 : type == INT64 ? 8 : 4;
}

char last_error[256] = "";

struct Meeting {
    fs::path folder;
    int rank, size;
    uint64_t calls = 0;
    std::atomic<bool> failed{false}, aborted{false};

    bool over() const { return failed || aborted; }
    void fail(const std::string& why) {
        if (failed.exchange(true)) return;
        static std::mutex lock;
        std::lock_guard<std::mutex> guard(lock);
        snprintf(last_error, sizeof last_error, "rank %d %s", rank, why.c_str());
        softgpu_tell();
    }
    bool there(const std::string& name) const {
        return access((folder / name).c_str(), F_OK) == 0;
    }
    bool there_from_all(const std::string& round) const {
        for (int r = 0; r < size; r++)
            if (!there(round + "/" + std::to_string(r))) return false;
        return true;
    }
    // Writes a file by a rename, so that it is complete when it appears: name of the call, then the
    // bytes.
    void put(const std::string& name, const std::string& what, const void* from, size_t bytes) {
        fs::path at = folder / name, early = at;
        early += "." + std::to_string(rank) + "~";
        std::ofstream file(early, std::ios::binary);
        file << what << '\n';
        file.write(static_cast<const char*>(from), bytes);
        file.close();
        std::error_code error;
        fs::rename(early, at, error);
        if (!file || error) fail("cannot write " + at.string());
    }
    std::pair<std::string, std::string> take(const std::string& name) const {
        std::ifstream file(folder / name, std::ios::binary);
        std::string what;
        std::getline(file, what);
        return {what, std::string(std::istreambuf_iterator<char>(file), {})};
    }
    // Removes a round once all ranks have taken it.
    void taken(const std::string& round) {
        put(round + "/taken" + std::to_string(rank), "", "", 0);
        for (int r = 0; r < size; r++)
            if (!there(round + "/taken" + std::to_string(r))) return;
        std::error_code gone;
        fs::remove_all(folder / round, gone);
    }
};
struct Comm {
    std::shared_ptr<Meeting> meeting;
    // Shared with every graph that has a collective of this communicator.
    std::shared_ptr<int> graphs;
    std::map<std::pair<int, int>, uint64_t> messages; // by sender and receiver
    std::set<std::string> algorithms;                 // algorithms with buffers, of a MiB each
    void* device = nullptr;

    // Counts an algorithm's buffers at its first operation, as NCCL does; the algorithm depends on the
    // kind of operation, its size and its type.
    void buffers(const char* op, size_t bytes, int type, void* stream) {
        device = softgpu_device(stream);
        const char* size = bytes < LARGE ? " small " : " large ";
        if (algorithms.insert(op + (size + std::to_string(type))).second) softgpu_hold(device, BUFFER);
    }
    ~Comm() {
        if (device) softgpu_hold(device, -BUFFER * (long)algorithms.size());
    }
    static constexpr size_t LARGE = 512 << 10;
    static constexpr long BUFFER = 1 << 20;
};
struct Id {
    char text[128];
};

float widen(float x) { return x; }
float widen(_Float16 x) { return x; }
float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
void narrow(float x, float& to) { to = x; }
void narrow(float x, _Float16& to) { to = (_Float16)x; }
void narrow(float x, __nv_bfloat16& to) { to = __float2bfloat16(x); }

typedef std::vector<std::string> Brought; // by rank
typedef std::vector<Step> Steps;

// Numbers of a device's collectives that the host has called and that have ended.
struct Turns {
    std::atomic<uint64_t> asked{0}, ended{0};
};
Turns& turns_of(void* stream) {
    static std::mutex lock;
    static std::map<void*, Turns> all;
    std::lock_guard<std::mutex> guard(lock);
    return all[softgpu_device(stream)];
}
// The steps; in order of the host's calls if collectives are serial.
Steps in_turn(void* stream, Steps steps) {
    static const bool serial = getenv("SOFTGPU_NCCL_SERIAL") && atoi(getenv("SOFTGPU_NCCL_SERIAL"));
    if (!serial) return steps;
    Turns& turns = turns_of(stream);
    uint64_t turn = turns.asked++;
    steps.insert(steps.begin(), {[&turns, turn] { return turns.ended == turn; }, [] {}});
    steps.push_back({nullptr, [&turns] { turns.ended++; }});
    return steps;
}

template <class T> void sum_of(const Brought& brought, size_t first, size_t count, void* to) {
    std::vector<float> totals(count);
    for (auto& bytes : brought)
        for (size_t i = 0; i < count; i++) totals[i] += widen(reinterpret_cast<const T*>(bytes.data())[first + i]);
    for (size_t i = 0; i < count; i++) narrow(totals[i], static_cast<T*>(to)[i]);
}
void sum(int type, const Brought& brought, size_t first, size_t count, void* to) {
    if (type == FLOAT32) sum_of<float>(brought, first, count, to);
    else if (type == FLOAT16) sum_of<_Float16>(brought, first, count, to);
    else sum_of<__nv_bfloat16>(brought, first, count, to);
}

Result collective(Comm* comm, const std::string& what, const void* from, size_t bytes, void* stream,
                  std::function<void(const Brought&)> finish) {
    auto meeting = comm->meeting;
    Ask ask = [=, held = comm->graphs](bool in_graph) {
        // Collectives in a graph differ in name: all ranks or none capture them.
        std::string named = in_graph ? what + " in a graph" : what;
        std::string round = "call" + std::to_string(meeting->calls++);
        std::function<void()> deposit = [=] {
            std::error_code there_already;
            fs::create_directory(meeting->folder / round, there_already);
            meeting->put(round + "/" + std::to_string(meeting->rank), named, from, bytes);
            if (meeting->there_from_all(round)) softgpu_tell();
        };
        std::function<bool()> all_here = [=] { return meeting->over() || meeting->there_from_all(round); };
        std::function<void()> take = [=] {
            if (meeting->over()) return;
            Brought brought;
            for (int r = 0; r < meeting->size; r++) {
                auto [theirs, part] = meeting->take(round + "/" + std::to_string(r));
                if (theirs != named) return meeting->fail("calls " + named + " where another calls " + theirs);
                brought.push_back(std::move(part));
            }
            finish(brought);
            meeting->taken(round);
        };
        return in_turn(stream, {{nullptr, deposit}, {all_here, take}});
    };
    softgpu_push_steps(stream, &ask);
    return OK;
}

std::string words(const char* op, size_t count, int type) {
    return std::string(op) + " of " + std::to_string(count) + " of type " + std::to_string(type);
}

struct Message {
    bool send;
    void* stream;
    Step post, end;
};
thread_local int depth = 0;
thread_local std::vector<Message> messages;

// Posts a group: stores what is sent, takes what is received, then waits until the peers have taken the
// sent messages. All in one stream, as gptrain does.
void post() {
    if (messages.empty()) return;
    Steps steps;
    for (bool send : {true, false})
        for (Message& m : messages)
            if (m.send == send) steps.push_back(m.post);
    for (Message& m : messages)
        if (m.send) steps.push_back(m.end);
    void* stream = messages[0].stream;
    Ask ask = [=](bool) { return in_turn(stream, steps); };
    softgpu_push_steps(stream, &ask);
    messages.clear();
}

std::string letter(Comm* comm, int from, int to) {
    uint64_t number = comm->messages[{from, to}]++;
    return "mail" + std::to_string(from) + "-" + std::to_string(to) + "-" + std::to_string(number);
}
} // namespace

API ncclGetVersion(int* version) {
    const char* set = getenv("SOFTGPU_NCCL"); // 22105 is 2.21.5
    *version = set ? atoi(set) : 22800;
    return OK;
}
extern "C" __attribute__((visibility("default"))) const char* ncclGetErrorString(Result) {
    return "an error of the software stand-in";
}
extern "C" __attribute__((visibility("default"))) const char* ncclGetLastError(Comm*) {
    return last_error;
}
API ncclGetUniqueId(Id* id) {
    memset(id, 0, sizeof *id);
    // Memory first: on a disk the file system takes longer to create a file than all the rest takes.
    const char* set = getenv("TMPDIR");
    for (const char* folder : {"/dev/shm", set ? set : "/tmp"}) {
        snprintf(id->text, sizeof id->text, "%s/softgpu-XXXXXX", folder);
        if (mkdtemp(id->text)) return OK;
    }
    return SYSTEM_ERROR;
}
API ncclCommInitRank(Comm** comm, int size, Id id, int rank) {
    if (rank < 0 || rank >= size || access(id.text, W_OK) != 0) return INVALID_ARGUMENT;
    auto meeting = std::make_shared<Meeting>();
    meeting->folder = id.text;
    meeting->rank = rank;
    meeting->size = size;
    std::error_code there_already;
    fs::create_directory(meeting->folder / "init", there_already);
    meeting->put("init/" + std::to_string(rank), "", "", 0);
    while (!meeting->there_from_all("init")) usleep(200);
    *comm = new Comm{meeting, std::make_shared<int>(), {}, {}};
    return OK;
}
static Result leave(Comm* comm) {
    Meeting& meeting = *comm->meeting;
    meeting.put("left" + std::to_string(meeting.rank), "", "", 0);
    bool last = true;
    for (int r = 0; r < meeting.size; r++) last &= meeting.there("left" + std::to_string(r));
    std::error_code gone;
    if (last) fs::remove_all(meeting.folder, gone);
    delete comm;
    return OK;
}
API ncclCommDestroy(Comm* comm) {
    if (comm->graphs.use_count() > 1) {
        fprintf(stderr, "softgpu: ncclCommDestroy deadlocks: graphs still hold the communicator\n");
        abort();
    }
    return leave(comm);
}
API ncclCommAbort(Comm* comm) {
    comm->meeting->aborted = true;
    softgpu_tell();
    return leave(comm);
}
API ncclCommGetAsyncError(Comm* comm, Result* error) {
    *error = comm->meeting->failed ? INVALID_USAGE : OK;
    return OK;
}
API ncclAllReduce(const void* from, void* to, size_t count, int type, int, Comm* comm, void* stream) {
    comm->buffers("all_reduce", count * size_of(type), type, stream);
    return collective(comm, words("all_reduce", count, type), from, count * size_of(type), stream,
                      [=](auto& brought) { sum(type, brought, 0, count, to); });
}
API ncclReduceScatter(const void* from, void* to, size_t count, int type, int, Comm* comm, void* stream) {
    size_t first = comm->meeting->rank * count, bytes = comm->meeting->size * count * size_of(type);
    comm->buffers("reduce_scatter", bytes, type, stream);
    return collective(comm, words("reduce_scatter", count, type), from, bytes, stream,
                      [=](auto& brought) { sum(type, brought, first, count, to); });
}
API ncclAllGather(const void* from, void* to, size_t count, int type, Comm* comm, void* stream) {
    size_t bytes = count * size_of(type);
    comm->buffers("all_gather", bytes * comm->meeting->size, type, stream);
    return collective(comm, words("all_gather", count, type), from, bytes, stream, [=](auto& brought) {
        char* at = static_cast<char*>(to);
        for (auto& part : brought) at = (char*)memcpy(at, part.data(), bytes) + bytes;
    });
}
API ncclSend(const void* from, size_t count, int type, int peer, Comm* comm, void* stream) {
    auto meeting = comm->meeting;
    comm->buffers("send", count * size_of(type), type, stream);
    std::string name = letter(comm, meeting->rank, peer);
    std::function<void()> put = [=] {
        meeting->put(name, "", from, count * size_of(type));
        softgpu_tell();
    };
    std::function<bool()> taken = [=] { return meeting->over() || !meeting->there(name); };
    messages.push_back({true, stream, {nullptr, put}, {taken, [] {}}});
    if (depth == 0) post();
    return OK;
}
API ncclRecv(void* to, size_t count, int type, int peer, Comm* comm, void* stream) {
    auto meeting = comm->meeting;
    comm->buffers("recv", count * size_of(type), type, stream);
    std::string name = letter(comm, peer, meeting->rank);
    size_t bytes = count * size_of(type);
    std::function<bool()> here = [=] { return meeting->over() || meeting->there(name); };
    std::function<void()> take = [=] {
        if (meeting->over()) return;
        std::string message = meeting->take(name).second;
        unlink((meeting->folder / name).c_str());
        softgpu_tell();
        if (message.size() != bytes)
            return meeting->fail("receives " + std::to_string(bytes) + " bytes where " +
                                 std::to_string(message.size()) + " were sent");
        memcpy(to, message.data(), bytes);
    };
    messages.push_back({false, stream, {here, take, true}, {}});
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
