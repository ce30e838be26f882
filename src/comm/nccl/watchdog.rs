//! NCCL watchdog: one thread per rank polls CUDA events, records start and end of each collective,
//! and aborts the communicators when any rank fails; otherwise a host blocked on the GPU would
//! never return. The collectives of a CUDA graph all start and end with the graph.

use super::api::{Api, Code, IN_PROGRESS};
use crate::endpoint::Endpoint;
use crate::{Event, Failed};
use base::Moment;
use cudarc::nccl::sys::{self, ncclComm_t};
use device::cuda::device::{Device, MESSAGE_STREAMS};
use device::cuda::driver::{CUevent, CUstream};
use device::cuda::library::call;
use device::cuda::observer::{GraphLaunch, GraphObserver};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Poll interval of the events; a poll of one costs about a microsecond.
const PERIOD: Duration = Duration::from_millis(10);

/// One communicator; None once it was aborted or destroyed. Every call of NCCL holds the lock.
pub struct Comm(Mutex<Option<ncclComm_t>>);

// SAFETY: NCCL's handles may be used from any thread, by one at a time: the lock sees to that.
unsafe impl Send for Comm {}
// SAFETY: as above.
unsafe impl Sync for Comm {}

/// The device's stream that an operation runs on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Compute,
    Comm,
    Layer,
    /// Stream for messages, by its number.
    Message(usize),
}

impl Stream {
    const COUNT: usize = 3 + MESSAGE_STREAMS;

    pub fn each() -> impl Iterator<Item = Stream> {
        let messages = (0..MESSAGE_STREAMS).map(Stream::Message);
        [Stream::Compute, Stream::Comm, Stream::Layer]
            .into_iter()
            .chain(messages)
    }

    fn index(self) -> usize {
        match self {
            Stream::Compute => 0,
            Stream::Comm => 1,
            Stream::Layer => 2,
            Stream::Message(number) => 3 + number,
        }
    }
}

/// Polling thread. Ends with the last communicator of the rank.
pub struct NcclWatchdog {
    pub shared: Arc<Shared>,
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

/// State shared by the rank's own thread and the watchdog's.
pub struct Shared {
    pub api: Arc<Api>,
    pub device: Arc<Device>,
    pub endpoint: Arc<Endpoint>,
    setup_timeout: Duration,
    /// Whether all collectives run on the stream of the ops.
    serial: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    comms: Vec<Arc<Comm>>,
    /// Outstanding operations per stream, oldest first.
    outstanding: [VecDeque<Tracked>; Stream::COUNT],
    tickets: u64,
    /// Pairs of CUDA events for reuse.
    free: Vec<Pair>,
    /// Operations of the graph that is being captured, recorded at each of its launches.
    captured: Vec<Events>,
    /// Start time and label of the communicator that is being created.
    setting_up: Option<(Moment, String)>,
}

/// Function that makes the recorder's events of an operation, for each launch.
type Events = Box<dyn Fn() -> Vec<Event> + Send + Sync>;

/// CUDA events recorded before and after an operation.
#[derive(Clone, Copy)]
struct Pair([CUevent; 2]);

// SAFETY: events are handles of the driver, which any thread may use that binds the context first, as
// `Device::call` does. Nothing reads through them.
unsafe impl Send for Pair {}

/// Operation whose end has not been seen yet.
struct Tracked {
    ticket: u64,
    events: Vec<Event>,
    span: Pair,
    /// Whether the compute stream waits for the rank's group meanwhile. A graph also computes.
    waits: bool,
    /// Numbers of its events in the recorder, once the GPU has started it.
    entered: Option<Vec<u64>>,
}

impl NcclWatchdog {
    /// Starts the thread. `setup_timeout` is the time limit for creating a communicator. If `serial`, all
    /// collectives run on the stream of the ops.
    pub fn start(
        api: Arc<Api>,
        device: Arc<Device>,
        endpoint: Arc<Endpoint>,
        setup_timeout: Duration,
        serial: bool,
    ) -> anyhow::Result<NcclWatchdog> {
        let state = Mutex::default();
        let shared = Arc::new(Shared { api, device, endpoint, setup_timeout, serial, state });
        let observer: Arc<dyn GraphObserver> = shared.clone();
        shared.device.observed.set(Arc::downgrade(&observer));
        let (end, ended) = channel();
        let polled = shared.clone();
        let name = format!("nccl of rank {}", shared.endpoint.rank);
        let thread = base::threads::spawn(&name, move || {
            while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                polled.poll();
            }
        })?;
        Ok(NcclWatchdog { shared, thread: Some((end, thread)) })
    }
}

impl Drop for NcclWatchdog {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.thread.take() {
            drop(end);
            let _ = thread.join(); // it returns nothing
        }
        let state = self.shared.state.lock();
        let spans = state
            .outstanding
            .iter()
            .flatten()
            .map(|tracked| tracked.span);
        for event in state
            .free
            .iter()
            .copied()
            .chain(spans)
            .flat_map(|pair| pair.0)
        {
            self.shared.device.destroy_event(event);
        }
    }
}

impl Comm {
    /// Calls NCCL with the communicator; None if it was aborted.
    pub fn call<T>(&self, call: impl FnOnce(ncclComm_t) -> T) -> Option<T> {
        let comm = self.0.lock();
        comm.map(call)
    }

    /// Takes the communicator, to destroy or abort it.
    pub fn take(&self) -> Option<ncclComm_t> {
        self.0.lock().take()
    }

    /// Like `take`. None while another thread is inside NCCL with it, which only the end of the process
    /// stops.
    fn try_take(&self) -> Option<ncclComm_t> {
        self.0.try_lock()?.take()
    }
}

impl Shared {
    /// Creates the communicator of the group called `label`.
    pub fn create_comm(
        &self,
        label: String,
        make: impl FnOnce(&mut ncclComm_t) -> Code,
    ) -> Result<Arc<Comm>, String> {
        self.state.lock().setting_up = Some((Moment::now(), label.clone()));
        let mut comm = null_mut();
        let mut code = 0;
        self.device.call(&label, |_| {
            code = make(&mut comm);
            0
        });
        let mut state = self.state.lock();
        state.setting_up = None;
        if code != 0 || comm.is_null() {
            return Err(format!("{label}: NCCL: {}", self.api.error(code)));
        }
        let comm = Arc::new(Comm(Mutex::new(Some(comm))));
        state.comms.push(comm.clone());
        Ok(comm)
    }

    /// Unwinds this rank if the process group has failed.
    pub fn check_failed(&self) {
        if let Some(failed) = self.endpoint.inbox.failed() {
            failed.raise();
        }
    }

    /// Runs `call`, which launches the operation of these events on a stream, and tracks it. During a
    /// capture, each launch of the graph is tracked instead. Returns the ticket for `mark_waited`.
    pub fn track(
        &self,
        stream: Stream,
        events: impl Fn() -> Vec<Event> + Send + Sync + 'static,
        call: impl FnOnce(CUstream),
    ) -> u64 {
        if self.device.is_capturing() {
            call(self.handle(stream));
            self.state.lock().captured.push(Box::new(events));
            return 0;
        }
        let events = events();
        let group = events
            .first()
            .map_or(String::new(), |event| event.group.clone());
        let ticket = self.launch(stream, events, stream == Stream::Compute, call);
        if stream == Stream::Compute {
            self.device.note_wait(&group);
        }
        ticket
    }

    /// Makes the compute stream wait for a group's operation. Counts as waiting, except in a graph.
    pub fn wait_for(&self, group: &str, wait: impl FnOnce(CUstream)) {
        if self.device.is_capturing() {
            return wait(self.device.stream);
        }
        self.launch(Stream::Compute, Vec::new(), true, wait);
        self.device.note_wait(group);
    }

    fn launch(
        &self,
        stream: Stream,
        events: Vec<Event>,
        waits: bool,
        call: impl FnOnce(CUstream),
    ) -> u64 {
        let handle = self.handle(stream);
        let free = self.state.lock().free.pop();
        let span =
            free.unwrap_or_else(|| Pair([self.device.timing_event(), self.device.timing_event()]));
        self.device.record(span.0[0], handle);
        call(handle);
        self.device.record(span.0[1], handle);
        let mut state = self.state.lock();
        state.tickets += 1;
        let ticket = state.tickets;
        let tracked = Tracked { ticket, events, span, waits, entered: None };
        state.outstanding[stream.index()].push_back(tracked);
        ticket
    }

    /// Marks an operation for which the rank waits from now on. A captured one is always waited for.
    pub fn mark_waited(&self, ticket: u64) {
        let mut state = self.state.lock();
        let mut outstanding = state.outstanding.iter_mut().flatten();
        let Some(tracked) = outstanding.find(|one| one.ticket == ticket) else { return };
        tracked
            .events
            .iter_mut()
            .for_each(|event| event.queued = false);
        let entered = tracked.entered.iter().flatten();
        entered.for_each(|number| self.endpoint.recorder.mark_waited(*number));
    }

    /// Stream of a collective that may overlap with the ops.
    pub fn collective_stream(&self, stream: Stream) -> Stream {
        if self.serial { Stream::Compute } else { stream }
    }

    pub fn handle(&self, stream: Stream) -> CUstream {
        match stream {
            Stream::Compute => self.device.stream,
            Stream::Comm => self.device.comm_stream,
            Stream::Layer => self.device.layer_stream,
            Stream::Message(number) => self.device.message_streams[number],
        }
    }

    fn poll(&self) {
        self.update_recorder();
        let comms = self.state.lock().comms.clone();
        if let Some(failed) = self.endpoint.inbox.failed() {
            // Before the abort, so that the operations it cuts short do not count as done.
            self.device.fail(failed.line);
            self.abort(comms.iter().filter_map(|comm| comm.try_take()));
        } else if let Some(what) = self.find_fault(&comms) {
            self.endpoint
                .fail(Failed::new(format!("{} failed: {what}", self.endpoint.name())));
        }
    }

    /// Aborts communicators in one group of calls. Separate aborts may never return: the first waits for
    /// kernels of the second communicator, which only its own abort ends, or for graphs whose owner waits
    /// for such a kernel.
    fn abort(&self, comms: impl Iterator<Item = ncclComm_t>) {
        let comms: Vec<ncclComm_t> = comms.collect();
        if comms.is_empty() {
            return;
        }
        self.device.try_call(|_| {
            // SAFETY: the communicators were taken (`try_take`), so no other thread uses them; the group
            // that is started is ended.
            unsafe {
                call!(self.api, ncclGroupStart());
                for comm in comms {
                    call!(self.api, ncclCommAbort(comm));
                }
                call!(self.api, ncclGroupEnd())
            }
        });
    }

    /// Records the operations that the GPU has started and finished since the last poll.
    fn update_recorder(&self) {
        let recorder = &self.endpoint.recorder;
        let State { outstanding, free, .. } = &mut *self.state.lock();
        for stream in outstanding {
            while let Some(first) = stream.front_mut() {
                let Pair([before, after]) = first.span;
                if first.entered.is_none() && self.device.event_done(before) {
                    first.entered = Some(
                        first
                            .events
                            .iter()
                            .map(|event| {
                                let number = recorder.enqueue(event.clone());
                                recorder.start(number);
                                number
                            })
                            .collect(),
                    );
                }
                let Some(entered) = &first.entered else { break };
                if !self.device.event_done(after) {
                    break;
                }
                entered.iter().for_each(|number| recorder.finish(*number));
                if first.waits {
                    let seconds = f64::from(self.device.elapsed_ms(before, after)) / 1e3;
                    recorder.add_device_wait(if seconds.is_finite() { seconds } else { 0.0 });
                }
                free.push(first.span);
                stream.pop_front();
            }
        }
    }

    /// An asynchronous error of NCCL, or a communicator that takes too long to create.
    fn find_fault(&self, comms: &[Arc<Comm>]) -> Option<String> {
        if let Some((since, label)) = &self.state.lock().setting_up
            && since.waited() > self.setup_timeout
        {
            let seconds = self.setup_timeout.as_secs_f64();
            return Some(format!(
                "NCCL did not create {label} within {seconds:.0} s; set NCCL_DEBUG=INFO to see why"
            ));
        }
        let code = comms.iter().find_map(|comm| {
            let mut code: Code = 0;
            // A thread inside NCCL holds the lock; its call returns the error.
            let comm = comm.0.try_lock()?;
            // SAFETY: the lock keeps the communicator from being destroyed; an int is written to the live
            // variable, as a ncclResult_t is one.
            unsafe { call!(self.api, ncclCommGetAsyncError((*comm)?, (&raw mut code).cast())) };
            (code != 0 && code != IN_PROGRESS).then_some(code)
        })?;
        Some(format!("NCCL: {}", self.api.error(code)))
    }
}

impl GraphObserver for Shared {
    fn take_captured(self: Arc<Self>) -> GraphLaunch {
        let captured = std::mem::take(&mut self.state.lock().captured);
        Box::new(move |launch| {
            self.check_failed();
            let events: Vec<Event> = captured
                .iter()
                .flat_map(|events| events())
                .map(|e| Event { queued: false, ..e })
                .collect();
            if events.is_empty() {
                launch()
            } else {
                self.launch(Stream::Compute, events, false, |_| launch());
            }
        })
    }
}
