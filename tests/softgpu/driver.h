// Parts of the stand-in's driver: devices, streams, events and graphs.
#pragma once
#include "softgpu.h"
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

typedef int Result;
typedef uint64_t Address;
enum : Result {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NOT_FOUND = 500,
    NOT_READY = 600,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_MERGE = 902,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_UNJOINED = 904,
    CAPTURE_ISOLATION = 905,
    CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
    CAPTURE_WRONG_THREAD = 908,
};
#define API extern "C" __attribute__((visibility("default"))) Result

// State of one event.
struct Marker {
    uint64_t recorded = 0, done = 0;
    uint64_t at = 0; // time of its last record
};
// Step that runs once `when` returns true; until then it waits for other ranks.
struct Step {
    std::function<bool()> when;
    std::function<void()> run;
    bool receive = false; // receives a message
};
// Enqueued operation, as consecutive steps. Each launch of a graph calls it again, with `in_graph`.
typedef std::function<std::vector<Step>(bool in_graph)> Ask;

// Operation captured in a graph, and the nodes that it depends on.
struct Node {
    Ask ask;
    std::vector<int> after;
};
struct Stream;
struct Capture {
    Stream* origin;
    std::thread::id thread;
    std::set<Stream*> streams;
    std::vector<Node> nodes;
    bool invalid = false, over = false;
};
struct Graph {
    std::vector<Node> nodes;
};
// Running graph: nodes run in any order that their edges allow, or in the order of their capture.
struct Launched {
    struct One {
        std::deque<Step> left;
        std::vector<int> after;
    };
    std::vector<One> nodes;
    bool in_order;

    bool reached(const One& one) const {
        if (one.left.empty()) return false;
        for (int before : one.after)
            if (!nodes[before].left.empty()) return false;
        return true;
    }
    std::vector<int> ready() const {
        std::vector<int> can;
        for (int i = 0; i < (int)nodes.size(); i++) {
            if (reached(nodes[i]) && (!nodes[i].left[0].when || nodes[i].left[0].when())) can.push_back(i);
            if (in_order && !nodes[i].left.empty()) break;
        }
        return can;
    }
    bool awaits_others() const {
        for (auto& one : nodes)
            if (reached(one) && one.left[0].when) return true;
        return false;
    }
    bool done() const {
        for (auto& one : nodes)
            if (!one.left.empty()) return false;
        return true;
    }
};
struct Work {
    Step step;
    // Ready once this marker has completed this record.
    std::shared_ptr<Marker> needs;
    uint64_t record = 0;
    std::shared_ptr<Launched> graph;
    uint64_t number = 0; // position in the host's order of submission to the device
};
struct Device;
struct Stream {
    Device* device;
    uint64_t hardware; // index of its hardware queue
    bool urgent;       // higher priority than the stream of the ops
    std::deque<Work> queue;
    // During a capture: its state, and the nodes that the next one depends on.
    std::shared_ptr<Capture> capture;
    std::vector<int> tail;
};
struct Event {
    std::shared_ptr<Marker> marker = std::make_shared<Marker>();
    // Capture that contains its last record, if any.
    std::shared_ptr<Capture> capture;
    std::vector<int> tail;
};

inline uint64_t setting(const char* name, uint64_t otherwise) {
    const char* value = getenv(name);
    return value ? strtoull(value, nullptr, 10) : otherwise;
}

// Notification of the threads of this process that wait for another rank.
class News {
    std::mutex lock;
    std::condition_variable told;
    uint64_t count = 0;

public:
    static News& all() {
        static auto* all = new News;
        return *all;
    }
    void tell() {
        std::lock_guard<std::mutex> guard(lock);
        count++;
        told.notify_all();
    }
    uint64_t now() {
        std::lock_guard<std::mutex> guard(lock);
        return count;
    }
    // Waits for a notification after number `known`, or 300 µs: other processes send none.
    void wait(uint64_t known) {
        std::unique_lock<std::mutex> guard(lock);
        told.wait_for(guard, std::chrono::microseconds(300), [&] { return count != known; });
    }
};

// Number of hardware queues of a device, SOFTGPU_QUEUES; 0: one per stream. Work starts once all earlier
// work of the host in the same queue has ended: stricter than a GPU, which waits only for work of the
// same stream.
inline uint64_t hardware_queues() {
    static const uint64_t queues = setting("SOFTGPU_QUEUES", 0);
    return queues;
}

struct Device {
    explicit Device(unsigned i) : ordinal(i) {}

    const unsigned ordinal;
    std::recursive_mutex lock;
    std::set<Stream*> streams;
    std::mt19937_64 random{setting("SOFTGPU_SEED", 0)};
    std::map<Address, size_t> memory;
    std::set<std::pair<char*, size_t>> pinned;
    size_t used = 0;
    uint64_t clock = 0; // see softgpu_take
    bool cold = false;  // whether its L2 cache was overwritten, see softgpu_is_cold
    uint64_t launches = 0;
    uint64_t works = 0, streams_made = 0;
    std::set<std::string> loaded; // names of kernels
    unsigned flags = 0;           // flags of its context
    // First failure, which every later call returns.
    Result error = OK;
    const size_t total = setting("SOFTGPU_MEMORY", 8ull << 30);

    // Error code of the next kernel, if it is to fail.
    const Result* failure() {
        static thread_local unsigned gpu, number;
        static thread_local Result code;
        const char* plan = getenv("SOFTGPU_FAIL");
        launches++;
        bool planned = plan && sscanf(plan, "%u:%u:%d", &gpu, &number, &code) == 3;
        return planned && gpu == ordinal && number == launches ? &code : nullptr;
    }

    void enqueue(Stream* s, Work work) {
        work.number = works++;
        s->queue.push_back(std::move(work));
    }
    // Whether work of another stream blocks this stream in their hardware queue.
    bool is_held_up(Stream* s) {
        if (!hardware_queues()) return false;
        for (Stream* other : streams)
            if (other->hardware == s->hardware && !other->queue.empty() &&
                other->queue.front().number < s->queue.front().number)
                return true;
        return false;
    }
    bool ready(Stream* s) {
        if (s->queue.empty() || is_held_up(s)) return false;
        Work& work = s->queue.front();
        if (work.graph) return !work.graph->ready().empty();
        return (!work.needs || work.needs->done >= work.record) && (!work.step.when || work.step.when());
    }
    // Whether a receive is in flight on another stream than that of the ops.
    bool receives_beside() {
        for (Stream* s : streams)
            for (Work& work : s->queue)
                if (s->urgent && work.step.receive) return true;
        return false;
    }
    bool others_awaited() {
        for (Stream* s : streams) {
            if (s->queue.empty()) continue;
            Work& work = s->queue.front();
            if (work.graph ? work.graph->awaits_others() : (bool)work.step.when) return true;
        }
        return false;
    }
    // Runs the first work of a stream, or one step of it if it is a graph.
    void run_first(Stream* s) {
        if (auto graph = s->queue.front().graph) {
            std::vector<int> can = graph->ready();
            auto& left = graph->nodes[can[random() % can.size()]].left;
            Step step = std::move(left.front());
            step.run();
            left.pop_front();
            if (graph->done()) s->queue.pop_front();
            return;
        }
        Work work = std::move(s->queue.front());
        s->queue.pop_front();
        if (work.step.run) work.step.run();
    }

    std::vector<Stream*> runnable() {
        std::vector<Stream*> can;
        for (Stream* s : streams)
            if (ready(s)) can.push_back(s);
        return can;
    }
    // Runs all work that does not wait for other ranks. A rank that waits for nothing calls only this,
    // while others may wait for its device.
    void go_on() {
        for (auto can = runnable(); !error && !can.empty(); can = runnable())
            run_first(can[random() % can.size()]);
    }

    // Runs work of any stream until `done`, or until the device fails. Waits at most SOFTGPU_PATIENCE
    // seconds for other ranks.
    template <class Done> void drain(Done done) {
        auto patience = std::chrono::seconds(setting("SOFTGPU_PATIENCE", 120));
        auto end = std::chrono::steady_clock::now() + patience;
        while (!error && !done()) {
            uint64_t known = News::all().now();
            std::vector<Stream*> can = runnable();
            if (!can.empty()) end = std::chrono::steady_clock::now() + patience;
            if (can.empty() && others_awaited() && std::chrono::steady_clock::now() < end) {
                lock.unlock(); // another thread may wait for work of this device
                News::all().wait(known);
                lock.lock();
                continue;
            }
            if (can.empty()) {
                fprintf(stderr, "softgpu: every stream waits for an operation that no stream runs\n");
                abort();
            }
            run_first(can[random() % can.size()]);
        }
    }
    void drain_all() {
        drain([&] {
            for (Stream* s : streams)
                if (!s->queue.empty()) return false;
            return true;
        });
    }
};

extern thread_local Device* current;

#define IN_CONTEXT                                                                                 \
    if (!current) return INVALID_CONTEXT;                                                          \
    std::lock_guard<std::recursive_mutex> guard(current->lock);                                    \
    if (current->error) return current->error

// Enqueues an operation in a stream, or captures it.
Result push(Stream* s, Ask ask);
inline Result push_run(Stream* s, std::function<void()> run) {
    return push(s, [run](bool) { return std::vector<Step>{{nullptr, run}}; });
}

// Reports a call that is illegal during a capture and invalidates the capture.
Result spoil(const std::shared_ptr<Capture>& capture, Result code);
// Invalidates this thread's capture, if there is one.
Result not_while_capturing();
#define NOT_WHILE_CAPTURING                                                                        \
    if (Result refused = not_while_capturing()) return refused
