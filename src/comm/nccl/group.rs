//! One NCCL communicator as a group: collectives and messages are enqueued on a stream of the
//! device.

use super::api::{Code, data_type};
use super::watchdog::{Comm, NcclWatchdog, Stream};
use crate::endpoint::OpCounters;
use crate::{Collective, Event, Failed, Group, Message, Op, Pending};
use cudarc::nccl::sys::{self, ncclComm_t};
use device::Tensor;
use device::cuda::driver::{CUevent, CUstream};
use device::cuda::library::call;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// Events before and after an operation.
type Order = [CUevent; 2];

/// One communicator, as a group.
pub struct NcclGroup {
    comm: Arc<Comm>,
    name: Arc<str>,
    /// World ranks.
    ranks: Arc<[usize]>,
    /// Index of this rank in `ranks`.
    rank: usize,
    counters: Arc<OpCounters>,
    begun: Cell<u64>,
    /// Events of each operation in flight, by its number, and unused events.
    in_flight: RefCell<HashMap<u64, Order>>,
    free: RefCell<Vec<Order>>,
    /// Dropped after the communicator.
    watchdog: Arc<NcclWatchdog>,
}

impl NcclGroup {
    pub fn new(
        comm: Arc<Comm>,
        name: &str,
        ranks: &[usize],
        rank: usize,
        counters: Arc<OpCounters>,
        watchdog: Arc<NcclWatchdog>,
    ) -> NcclGroup {
        let name = name.into();
        let ranks = ranks.into();
        let begun = Cell::new(0);
        let (in_flight, free) = Default::default();
        NcclGroup { comm, name, ranks, rank, counters, begun, in_flight, free, watchdog }
    }

    /// Enqueues collectives, at least one, in one launch.
    fn enqueue_collectives(&self, all: &[Collective], stream: Stream) -> u64 {
        let wholes: Vec<_> = all
            .iter()
            .map(|what| what.op_and_whole_tensor(self.size()))
            .collect();
        let doing = wholes[0].0.to_string();
        let name = self.name.clone();
        let counters = self.counters.clone();
        let event = move |(op, whole): &(Op, Tensor)| {
            let event = Event::new(&name, *op, counters.number_collective(), *whole, None);
            Event { queued: stream != Stream::Compute, ..event }
        };
        self.enqueue(
            stream,
            move || wholes.iter().map(&event).collect(),
            &doing,
            |comm, stream| match all {
                [one] => self.launch(*one, comm, stream),
                all => self.call_in_group(all.iter().map(|what| self.launch(*what, comm, stream))),
            },
        )
    }

    /// Makes these calls in one NCCL group: one kernel for all.
    fn call_in_group(&self, mut calls: impl Iterator<Item = Code>) -> Code {
        let api = &self.watchdog.shared.api;
        // SAFETY: takes nothing; the group is ended below, on this thread.
        let start = unsafe { call!(api, ncclGroupStart()) };
        let failed = calls.find(|code| *code != 0);
        // SAFETY: takes nothing; ends the group that was started above.
        let end = unsafe { call!(api, ncclGroupEnd()) };
        [start, failed.unwrap_or(0), end]
            .into_iter()
            .find(|code| *code != 0)
            .unwrap_or(0)
    }

    fn begin_collectives(&self, stream: Stream, all: &[Collective]) -> Pending {
        let stream = self.watchdog.shared.collective_stream(stream);
        let is_gpu_sum = all.iter().any(Collective::is_sum);
        let begun = self.begin_on(stream, || self.enqueue_collectives(all, stream));
        if is_gpu_sum {
            self.watchdog.shared.device.sm_margin.begin_sum();
        }
        Pending { is_gpu_sum, ..begun }
    }

    /// Like `begin_message`, on a stream only for this communicator's messages.
    pub fn begin_message_on(&self, stream: Stream, message: Message) -> Pending {
        let begun = self.begin_on(stream, || self.enqueue_messages(&[message], stream));
        Pending { message: Some(message), ..begun }
    }

    /// Starts an operation on a communication stream, after everything enqueued so far.
    fn begin_on(&self, stream: Stream, launch: impl FnOnce() -> u64) -> Pending {
        let job = self.begun.get() + 1;
        self.begun.set(job);
        let device = &self.watchdog.shared.device;
        let free = self.free.borrow_mut().pop();
        let order = free.unwrap_or_else(|| [device.event(), device.event()]);
        let [before, after] = order;
        let handle = self.watchdog.shared.handle(stream);
        device.after(before, device.stream, handle);
        let event = launch();
        device.record(after, handle);
        self.in_flight.borrow_mut().insert(job, order);
        Pending { job, event, ..Pending::DONE }
    }

    /// Enqueues messages in one launch.
    fn enqueue_messages(&self, messages: &[Message], stream: Stream) -> u64 {
        let name = self.name.clone();
        let counters = self.counters.clone();
        let ranks = self.ranks.clone();
        let event = move |message: &Message| {
            let number = counters.number_message(message);
            let peer = ranks[message.peer()];
            let event = Event::new(&name, message.op(), number, message.tensor(), Some(peer));
            Event { queued: stream != Stream::Compute, ..event }
        };
        let all = messages.to_vec();
        self.enqueue(
            stream,
            move || all.iter().map(&event).collect(),
            "messages",
            |comm, stream| {
                self.call_in_group(
                    messages
                        .iter()
                        .map(|message| self.launch_message(message, comm, stream)),
                )
            },
        )
    }

    fn launch(&self, what: Collective, comm: ncclComm_t, stream: CUstream) -> Code {
        let api = &self.watchdog.shared.api;
        let to = |x: Tensor| x.addr() as *mut c_void;
        let from = |x: Tensor| x.addr() as *const c_void;
        let size = |x: Tensor| (x.numel(), data_type(x.dtype));
        let sum = sys::ncclRedOp_t::ncclSum;
        let stream = stream.cast();
        // SAFETY: `enqueue` holds the communicator's lock, and `stream` is the device's. The tensors are
        // device memory that the backend keeps: `part` is one rank's share of `whole`
        // (`Collective::op_and_whole_tensor`), and ops do not access them before the collective has ended.
        unsafe {
            match what {
                Collective::AllReduce(x) => {
                    let (count, kind) = size(x);
                    call!(api, ncclAllReduce(from(x), to(x), count, kind, sum, comm, stream))
                }
                Collective::AllGather { part, whole } => {
                    let (count, kind) = size(part);
                    call!(api, ncclAllGather(from(part), to(whole), count, kind, comm, stream))
                }
                Collective::ReduceScatter { whole, part } => {
                    let (count, kind) = size(part);
                    let from = from(whole);
                    let to = to(part);
                    call!(api, ncclReduceScatter(from, to, count, kind, sum, comm, stream))
                }
            }
        }
    }

    fn launch_message(&self, message: &Message, comm: ncclComm_t, stream: CUstream) -> Code {
        let api = &self.watchdog.shared.api;
        let stream = stream.cast();
        let x = message.tensor();
        let peer = message.peer() as c_int;
        let address = x.addr() as *mut c_void;
        let kind = data_type(x.dtype);
        // SAFETY: as in `launch`: `x` is device memory of `numel` elements of this type.
        unsafe {
            match message {
                Message::Send { .. } => {
                    call!(api, ncclSend(address.cast_const(), x.numel(), kind, peer, comm, stream))
                }
                Message::Recv { .. } => {
                    call!(api, ncclRecv(address, x.numel(), kind, peer, comm, stream))
                }
            }
        }
    }

    /// Launches an operation on a stream. Unwinds this rank if the process group has failed, or if
    /// NCCL returns an error, which then fails the process group.
    fn enqueue(
        &self,
        stream: Stream,
        events: impl Fn() -> Vec<Event> + Send + Sync + 'static,
        doing: &str,
        call: impl FnOnce(ncclComm_t, CUstream) -> Code,
    ) -> u64 {
        let shared = &self.watchdog.shared;
        shared.check_failed();
        let mut code = 0;
        let ticket = shared.track(stream, events, |stream| {
            shared.device.call(doing, |_| {
                code = self.comm.call(|comm| call(comm, stream)).unwrap_or(0);
                0
            });
        });
        if code != 0 {
            let name = shared.endpoint.name();
            let group = &self.name;
            let line = format!(
                "{name} failed: {doing} of group {group}: NCCL: {}",
                shared.api.error(code)
            );
            shared.endpoint.fail(Failed::new(line)).raise();
        }
        ticket
    }
}

impl Group for NcclGroup {
    fn size(&self) -> usize {
        self.ranks.len()
    }

    fn rank(&self) -> usize {
        self.rank
    }

    /// NCCL's calls are captured like kernels.
    fn capturable(&self) -> bool {
        true
    }

    fn run(&self, collective: Collective) {
        self.enqueue_collectives(&[collective], Stream::Compute);
    }

    fn exchange(&self, messages: &[Message]) {
        self.enqueue_messages(messages, Stream::Compute);
    }

    fn begin(&self, what: Collective) -> Pending {
        self.begin_collectives(Stream::Comm, &[what])
    }

    fn begin_ahead(&self, what: Collective) -> Pending {
        self.begin_collectives(Stream::Layer, &[what])
    }

    fn begin_all(&self, all: &[Collective]) -> Vec<Pending> {
        (!all.is_empty())
            .then(|| self.begin_collectives(Stream::Comm, all))
            .into_iter()
            .collect()
    }

    fn finish(&self, pending: Pending) {
        self.watchdog.shared.mark_waited(pending.event);
        let device = &self.watchdog.shared.device;
        let order = self
            .in_flight
            .borrow_mut()
            .remove(&pending.job)
            .expect("an operation that this group began, finished once");
        self.watchdog
            .shared
            .wait_for(&self.name, |stream| device.wait(stream, order[1]));
        self.free.borrow_mut().push(order); // a wait is for the record at its call
        if pending.is_gpu_sum {
            device.sm_margin.end_sum();
        }
    }
}

impl Drop for NcclGroup {
    fn drop(&mut self) {
        let api = &self.watchdog.shared.api;
        let device = &self.watchdog.shared.device;
        // After a failure, or in a panic, the other ranks may have ended.
        let failed = self.watchdog.shared.endpoint.inbox.failed().is_some() || device.failed();
        if !failed && !std::thread::panicking() {
            Stream::each()
                .for_each(|stream| device.wait_stream(self.watchdog.shared.handle(stream)));
        }
        if let Some(comm) = self.comm.take() {
            // SAFETY: `take` leaves None, so no other thread uses the communicator any more.
            device.try_call(|_| unsafe {
                if failed || device.failed() || std::thread::panicking() {
                    call!(api, ncclCommAbort(comm))
                } else {
                    call!(api, ncclCommDestroy(comm))
                }
            });
        }
        let in_flight = self.in_flight.get_mut().values();
        let orders = in_flight.chain(self.free.get_mut().iter());
        orders
            .flatten()
            .for_each(|event| device.destroy_event(*event));
    }
}
