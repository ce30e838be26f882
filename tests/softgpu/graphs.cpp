// Stream capture and graphs of the stand-in's driver. For tests only.
//
// Operations of captured streams become nodes, with an edge for every order that streams and events
// make. A launch enqueues all of them again, as one piece of work of its stream whose nodes run in any
// order that the edges allow. Calls that CUDA forbids during a capture return its error codes.
#include "driver.h"

// This thread's capture: in the modes that gptrain uses, unsafe calls of the thread invalidate it.
static thread_local std::shared_ptr<Capture> capturing;

Result spoil(const std::shared_ptr<Capture>& capture, Result code) {
    if (capture) capture->invalid = true;
    return code;
}
Result not_while_capturing() {
    return capturing && !capturing->over ? spoil(capturing, CAPTURE_UNSUPPORTED) : OK;
}

Result push(Stream* s, Ask ask) {
    // The default stream waits for other streams: its use is an error.
    if (!s) return capturing && !capturing->over ? spoil(capturing, CAPTURE_IMPLICIT) : INVALID_VALUE;
    if (!s->capture) {
        for (Step& step : ask(false)) s->device->enqueue(s, {std::move(step), nullptr, 0, nullptr});
        return OK;
    }
    if (s->capture->invalid) return CAPTURE_INVALIDATED;
    s->capture->nodes.push_back({std::move(ask), s->tail});
    s->tail = {(int)s->capture->nodes.size() - 1};
    return OK;
}

// Waits for an event. A stream that waits for an event of a capture becomes part of the capture.
API cuStreamWaitEvent(Stream* s, Event* e, unsigned) {
    IN_CONTEXT;
    if (s->capture && s->capture->invalid) return CAPTURE_INVALIDATED;
    if (!e->capture) {
        if (s->capture) return spoil(s->capture, CAPTURE_ISOLATION);
        s->device->enqueue(s, {{}, e->marker, e->marker->recorded, nullptr});
        return OK;
    }
    if (e->capture->over) return spoil(s->capture, CAPTURED_EVENT);
    if (s->capture && s->capture != e->capture) {
        spoil(e->capture, CAPTURE_MERGE);
        return spoil(s->capture, CAPTURE_MERGE);
    }
    if (!s->capture) {
        s->capture = e->capture;
        s->capture->streams.insert(s);
        s->tail.clear();
    }
    s->tail.insert(s->tail.end(), e->tail.begin(), e->tail.end());
    return OK;
}
API cuEventCreate(Event** e, unsigned flags) {
    IN_CONTEXT;
    if (current->flags == 4 && !(flags & 1)) return INVALID_VALUE; // a wait for it would not block the thread
    *e = new Event;
    return OK;
}
API cuEventDestroy_v2(Event* e) {
    delete e;
    return OK;
}
API cuEventRecord(Event* e, Stream* s) {
    IN_CONTEXT;
    if (s->capture && s->capture->invalid) return CAPTURE_INVALIDATED;
    e->capture = s->capture;
    e->tail = s->tail;
    if (s->capture) return OK;
    auto marker = e->marker;
    uint64_t record = ++marker->recorded;
    return push_run(s, [=] {
        marker->done = record;
        marker->at = s->device->clock;
    });
}
API cuEventElapsedTime(float* time, Event* from, Event* to) {
    IN_CONTEXT;
    for (Event* e : {from, to}) {
        if (e->capture) return spoil(e->capture, CAPTURED_EVENT);
        if (!e->marker->recorded || e->marker->done < e->marker->recorded) return NOT_READY;
    }
    *time = to->marker->at - from->marker->at;
    return OK;
}
API cuEventQuery(Event* e) {
    IN_CONTEXT;
    if (e->capture) return spoil(e->capture, CAPTURED_EVENT);
    current->go_on();
    return e->marker->done >= e->marker->recorded ? OK : NOT_READY;
}
API cuEventSynchronize(Event* e) {
    IN_CONTEXT;
    if (e->capture) return spoil(e->capture, CAPTURED_EVENT);
    auto marker = e->marker;
    uint64_t record = marker->recorded;
    current->drain([=] { return marker->done >= record; });
    return current->error;
}

API cuStreamBeginCapture_v2(Stream* s, unsigned mode) {
    IN_CONTEXT;
    // SOFTGPU_GRAPHS=0: the device has no graphs.
    if (!setting("SOFTGPU_GRAPHS", 1)) return NOT_SUPPORTED;
    // In the global mode unsafe calls of any thread would invalidate the capture, in the relaxed one
    // none.
    if (mode != 1 || !s || s->capture || (capturing && !capturing->over)) return INVALID_VALUE;
    s->capture = capturing = std::make_shared<Capture>();
    s->capture->origin = s;
    s->capture->thread = std::this_thread::get_id();
    s->capture->streams = {s};
    s->tail.clear();
    return OK;
}
API cuStreamEndCapture(Stream* s, Graph** graph) {
    IN_CONTEXT;
    *graph = nullptr;
    auto capture = s->capture;
    if (!capture) return INVALID_VALUE;
    if (capture->origin != s) return spoil(capture, CAPTURE_UNMATCHED);
    if (capture->thread != std::this_thread::get_id()) return CAPTURE_WRONG_THREAD;
    // Nodes that the next node of the origin would depend on.
    std::set<int> joined;
    std::vector<int> open = s->tail;
    while (!open.empty()) {
        int i = open.back();
        open.pop_back();
        if (joined.insert(i).second)
            open.insert(open.end(), capture->nodes[i].after.begin(), capture->nodes[i].after.end());
    }
    for (Stream* one : capture->streams) {
        one->capture = nullptr;
        one->tail.clear();
    }
    capture->over = true;
    capturing = nullptr;
    bool all = joined.size() == capture->nodes.size();
    if (!capture->invalid && all) *graph = new Graph{capture->nodes};
    // Events hold the capture, which must not hold the nodes' resources.
    capture->nodes.clear();
    return capture->invalid ? CAPTURE_INVALIDATED : all ? OK : CAPTURE_UNJOINED;
}
API cuGraphDestroy(Graph* graph) {
    delete graph;
    return OK;
}
API cuGraphInstantiateWithFlags(Graph** executable, Graph* graph, unsigned long long flags) {
    if (!graph || flags) return INVALID_VALUE;
    *executable = new Graph(*graph);
    return OK;
}
API cuGraphExecDestroy(Graph* executable) {
    delete executable;
    return OK;
}
API cuGraphLaunch(Graph* executable, Stream* s) {
    IN_CONTEXT;
    // CUDA would nest the graph; gptrain never does.
    if (s->capture) return spoil(s->capture, CAPTURE_UNSUPPORTED);
    auto graph = std::make_shared<Launched>();
    graph->in_order = hardware_queues() == 1;
    for (const Node& node : executable->nodes) {
        std::vector<Step> steps = node.ask(true);
        graph->nodes.push_back({{steps.begin(), steps.end()}, node.after});
    }
    if (!graph->nodes.empty()) s->device->enqueue(s, {{}, nullptr, 0, graph});
    return OK;
}
