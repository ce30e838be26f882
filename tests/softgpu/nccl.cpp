// The part of NCCL that gptrain calls, among threads or processes of one machine, each with its own
// stand-in device. For tests only.
//
// Ranks meet in a folder, in memory where there is /dev/shm, whose name is the unique id. A collective is two pieces of work in its
// stream: a rank leaves a file with what it brings, and takes the result once the files of all are
// there. A message's sender waits until it is taken. So a rank that is killed or stopped leaves the others
// waiting, as real NCCL does over NVLink.
// SOFTGPU_NCCL_SERIAL=1: a device has one collective under way at a time, in the order in which its host
// asked, as NCCL before 2.26 wants its users to have it; ranks whose orders differ then wait for ever.
// Ranks that call different things fail the communicator, with a message; an abort frees whoever
// waits in it.
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
#include <string>
#include <unistd.h>
#include <vector>

typedef int Result;
enum : Result { OK = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
#define API extern "C" __attribute__((visibility("default"))) Result

// A step waits for others until its `when`; what is asked for may be asked again, by a graph.
struct Step {
    std::function<bool()> when;
    std::function<void()> run;
    bool receive = false; // of a message
};
typedef std::function<std::vector<Step>(bool in_graph)> Ask;
extern "C" void softgpu_push_steps(void* stream, Ask* ask);
extern "C" void* softgpu_device(void* stream);
// Wakes whoever waits in this process; others look every now and then.
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
    // A file that is whole as soon as it is there: what was called, and the bytes.
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
    // Forgets a round once all have taken it.
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
    // Held by every graph with a collective of this communicator.
    std::shared_ptr<int> graphs;
    std::map<std::pair<int, int>, uint64_t> messages; // by sender and receiver
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

// A device's collectives, counted as its host asks for them and as they end.
struct Turns {
    std::atomic<uint64_t> asked{0}, ended{0};
};
Turns& turns_of(void* stream) {
    static std::mutex lock;
    static std::map<void*, Turns> all;
    std::lock_guard<std::mutex> guard(lock);
    return all[softgpu_device(stream)];
}
// These steps, in turn where collectives are serial.
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
        // A launch is captured by all ranks or by none.
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

// All of a group at once: what is sent is laid out, what is received is taken, and then the senders
// wait until theirs is taken, too. In one stream, as gptrain has them.
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
    // A file system on a disk takes longer to find room for a file than all else takes.
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
    *comm = new Comm{meeting, std::make_shared<int>(), {}};
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
        fprintf(stderr, "softgpu: NCCL waits for ever for graphs with a communicator that is destroyed\n");
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
    return collective(comm, words("all_reduce", count, type), from, count * size_of(type), stream,
                      [=](auto& brought) { sum(type, brought, 0, count, to); });
}
API ncclReduceScatter(const void* from, void* to, size_t count, int type, int, Comm* comm, void* stream) {
    size_t first = comm->meeting->rank * count, bytes = comm->meeting->size * count * size_of(type);
    return collective(comm, words("reduce_scatter", count, type), from, bytes, stream,
                      [=](auto& brought) { sum(type, brought, first, count, to); });
}
API ncclAllGather(const void* from, void* to, size_t count, int type, Comm* comm, void* stream) {
    size_t bytes = count * size_of(type);
    return collective(comm, words("all_gather", count, type), from, bytes, stream, [=](auto& brought) {
        char* at = static_cast<char*>(to);
        for (auto& part : brought) at = (char*)memcpy(at, part.data(), bytes) + bytes;
    });
}
API ncclSend(const void* from, size_t count, int type, int peer, Comm* comm, void* stream) {
    auto meeting = comm->meeting;
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
