//! Groups of GPUs, one a rank, by NCCL. The ranks meet through a `World`, which then stays beside
//! them: it hears how far each GPU has come, finds who holds up the others, and ends them all.
//!
//! Collectives go to the stream of the ops and are in order with them; those that are begun go to a
//! stream beside it, between two events. Sums are in NCCL's order: the same every run on the same
//! GPUs, not the bits of another carrier. An operation counts as entered when the GPU comes to it.

mod api;
mod beside;

use super::world::{self, Lanes, next};
use super::{Collective, Event, Failed, Group, Message, Op, Pending, Solo, World};
use crate::base::{DType, Problems, div_exact};
use crate::device::Tensor;
use crate::device::cuda::driver::{Device, Handle};
use crate::device::cuda::library::Library;
use crate::device::cuda::{Cuda, FOLDER, Options};
use api::{Api, Code, Id, SUM, data_type};
use beside::{Beside, Comm, Lane};
use std::cell::{Cell, OnceCell};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

/// Collectives that may have been begun before the wait for one of them is also one for later ones.
const BEGUN: usize = 64;

/// The library, for one GPU.
pub struct Nccl {
    api: Arc<Api>,
    device: Arc<Device>,
    patience: Duration,
    beside: OnceCell<Arc<Beside>>,
}

impl Nccl {
    /// NCCL as the options' folder or the machine has it.
    pub fn open(cuda: &Cuda, options: &Options) -> Result<Nccl, Problems> {
        let refuse = |what: String, remedy: &str| Problems::one("NCCL", what, remedy);
        let names = ["libnccl.so.2", "libnccl.so"];
        let library = Library::open(options.folder.as_deref(), &names).map_err(|why| {
            let remedy = format!(
                "pip install nvidia-nccl-cu13, and set {FOLDER} to its folder of libraries; or \
                 --set comm.gpu_transport=host, which is slow"
            );
            refuse(format!("NCCL is missing: {why}"), &remedy)
        })?;
        let api = Api::load(&library).map_err(|missing| {
            let what = format!("{} lacks {}", library.name, missing.join(", "));
            refuse(what, "update NCCL: 2.18 or newer")
        })?;
        let patience = Duration::from_secs(120);
        let (device, beside) = (cuda.device().clone(), OnceCell::new());
        Ok(Nccl { api: Arc::new(api), device, patience, beside })
    }

    /// The same, where a group may take this long to be made.
    pub fn patience(self, patience: Duration) -> Nccl {
        Nccl { patience, ..self }
    }

    /// A group of these ranks of the world, in this order. Called by each of them, by no other. What
    /// goes wrong fails the world.
    pub fn group(&self, world: &World, name: &str, ranks: &[usize]) -> Box<dyn Group> {
        if ranks.len() == 1 {
            return Box::new(Solo);
        }
        let host = world.group(name, ranks);
        let (rank, size) = (host.rank(), host.size());
        let links = &world.member().links;
        let start = || {
            let (api, device) = (self.api.clone(), self.device.clone());
            Arc::new(Beside::start(api, device, links.clone(), self.patience))
        };
        let beside = self.beside.get_or_init(start).clone();
        let mut id = Id([0; 128]);
        let code = match rank {
            // SAFETY: the pointer is to a live variable.
            0 => unsafe { (self.api.ncclGetUniqueId)(&mut id) },
            _ => 0,
        };
        if code != 0 {
            world.fail(&format!("making a group: NCCL: {}", self.api.error(code))).raise();
        }
        share(&*host, &mut id);
        let made = beside.seen.set_up(format!("group {name} of ranks {ranks:?}"), |comm| {
            // SAFETY: as above; the device is bound.
            unsafe { (self.api.ncclCommInitRank)(comm, size as c_int, id, rank as c_int) }
        });
        let comm = match made {
            Ok(comm) => comm,
            Err(what) => world.fail(&what).raise(),
        };
        Box::new(Gpus {
            comm,
            name: name.into(),
            ranks: ranks.into(),
            rank,
            lanes: world.member().lanes(world::key(name, ranks), size),
            order: (0..2 * BEGUN).map(|_| self.device.event()).collect(),
            begun: Cell::new(0),
            beside,
        })
    }
}

/// The first rank's id, to all.
fn share(host: &dyn Group, id: &mut Id) {
    let mut words = [0u64; 16];
    bytemuck::bytes_of_mut(&mut words).copy_from_slice(&id.0);
    let x = Tensor::at(words.as_mut_ptr() as usize, 1, 16, DType::I64);
    match host.rank() {
        0 => (1..host.size()).for_each(|to| host.send(to, x)),
        _ => host.recv(0, x),
    }
    // The group wrote through the address.
    let words = std::hint::black_box(&words);
    id.0.copy_from_slice(bytemuck::bytes_of(words));
}

/// One communicator.
struct Gpus {
    comm: Arc<Comm>,
    name: Arc<str>,
    /// Ranks of the world.
    ranks: Arc<[usize]>,
    /// Place of this rank among them.
    rank: usize,
    lanes: Arc<Lanes>,
    /// Two for each collective that may be under way: before it, and after.
    order: Vec<Handle>,
    begun: Cell<u64>,
    /// Ends after the communicators.
    beside: Arc<Beside>,
}

impl Gpus {
    fn collective(&self, what: Collective, lane: Lane) -> u64 {
        let share = |part: Tensor, whole: Tensor| {
            assert_eq!(part.numel(), div_exact(whole.numel(), self.size()), "a rank's part");
            assert_eq!(part.dtype, whole.dtype, "part and whole");
        };
        let (op, whole) = match what {
            Collective::AllReduce(x) => (Op::AllReduce, x),
            Collective::AllGather { part, whole } => {
                share(part, whole);
                (Op::AllGather, whole)
            }
            Collective::ReduceScatter { whole, part } => {
                share(part, whole);
                (Op::ReduceScatter, whole)
            }
        };
        let (name, lanes) = (self.name.clone(), self.lanes.clone());
        let events = move || {
            let event = Event::new(&name, op, next(&lanes.collectives), whole, None);
            vec![Event { queued: lane == Lane::Beside, ..event }]
        };
        self.ask(lane, events, &op.to_string(), |comm, stream| self.post(what, comm, stream))
    }

    fn post(&self, what: Collective, comm: Handle, stream: Handle) -> Code {
        let api = &self.beside.seen.api;
        let to = |x: Tensor| x.addr() as *mut c_void;
        let from = |x: Tensor| x.addr() as *const c_void;
        let of = |x: Tensor| (x.numel(), data_type(x.dtype));
        // SAFETY: the tensors' memory lives as long as the backend.
        unsafe {
            match what {
                Collective::AllReduce(x) => {
                    let (count, kind) = of(x);
                    (api.ncclAllReduce)(from(x), to(x), count, kind, SUM, comm, stream)
                }
                Collective::AllGather { part, whole } => {
                    let (count, kind) = of(part);
                    (api.ncclAllGather)(from(part), to(whole), count, kind, comm, stream)
                }
                Collective::ReduceScatter { whole, part } => {
                    let (count, kind) = of(part);
                    (api.ncclReduceScatter)(from(whole), to(part), count, kind, SUM, comm, stream)
                }
            }
        }
    }

    fn message(&self, message: &Message, comm: Handle, stream: Handle) -> Code {
        let api = &self.beside.seen.api;
        // SAFETY: as in `post`.
        unsafe {
            match *message {
                Message::Send { to, x } => {
                    let (at, kind) = (x.addr() as *const c_void, data_type(x.dtype));
                    (api.ncclSend)(at, x.numel(), kind, to as c_int, comm, stream)
                }
                Message::Recv { from, x } => {
                    let (at, kind) = (x.addr() as *mut c_void, data_type(x.dtype));
                    (api.ncclRecv)(at, x.numel(), kind, from as c_int, comm, stream)
                }
            }
        }
    }

    /// Calls NCCL, unless the world has failed: that unwinds this rank, as does an error of NCCL's.
    fn ask(
        &self,
        lane: Lane,
        events: impl Fn() -> Vec<Event> + Send + Sync + 'static,
        doing: &str,
        call: impl FnOnce(Handle, Handle) -> Code,
    ) -> u64 {
        let seen = &self.beside.seen;
        seen.go_on();
        let mut code = 0;
        let ticket = seen.ask(lane, events, |stream| {
            seen.device.call(doing, |_| {
                code = self.comm.with(|comm| call(comm, stream)).unwrap_or(0);
                0
            });
        });
        if code != 0 {
            let (name, group) = (seen.links.name(), &self.name);
            let line =
                format!("{name} failed: {doing} of group {group}: NCCL: {}", seen.api.error(code));
            seen.links.fail(Failed::new(line)).raise();
        }
        ticket
    }

    fn order(&self, job: u64) -> [Handle; 2] {
        let at = 2 * (job as usize % BEGUN);
        [self.order[at], self.order[at + 1]]
    }
}

impl Group for Gpus {
    fn size(&self) -> usize {
        self.ranks.len()
    }

    fn rank(&self) -> usize {
        self.rank
    }

    /// NCCL's calls are captured like kernels.
    fn repeats(&self) -> bool {
        true
    }

    fn all_reduce(&self, x: Tensor) {
        self.collective(Collective::AllReduce(x), Lane::Ops);
    }

    fn all_gather(&self, part: Tensor, whole: Tensor) {
        self.collective(Collective::AllGather { part, whole }, Lane::Ops);
    }

    fn reduce_scatter(&self, whole: Tensor, part: Tensor) {
        self.collective(Collective::ReduceScatter { whole, part }, Lane::Ops);
    }

    fn exchange(&self, messages: &[Message]) {
        let (name, lanes, ranks) = (self.name.clone(), self.lanes.clone(), self.ranks.clone());
        let event = move |message: &Message| {
            let (op, x, with, counts) = match *message {
                Message::Send { to, x } => (Op::Send, x, to, &lanes.sent),
                Message::Recv { from, x } => (Op::Recv, x, from, &lanes.received),
            };
            Event::new(&name, op, next(&counts[with]), x, Some(ranks[with]))
        };
        let all = messages.to_vec();
        let events = move || all.iter().map(&event).collect();
        let api = &self.beside.seen.api;
        self.ask(Lane::Ops, events, "messages", |comm, stream| {
            // SAFETY: takes nothing.
            let start = unsafe { (api.ncclGroupStart)() };
            let post = |message| self.message(message, comm, stream);
            let failed = messages.iter().map(post).find(|code| *code != 0);
            // SAFETY: as above; a group that was started is ended.
            let end = unsafe { (api.ncclGroupEnd)() };
            [start, failed.unwrap_or(0), end].into_iter().find(|code| *code != 0).unwrap_or(0)
        });
    }

    fn begin(&self, what: Collective) -> Pending {
        let job = self.begun.get() + 1;
        self.begun.set(job);
        let device = &self.beside.seen.device;
        let [before, after] = self.order(job);
        device.after(before, device.stream, device.beside);
        let event = self.collective(what, Lane::Beside);
        device.record(after, device.beside);
        Pending { job, event }
    }

    fn finish(&self, pending: Pending) {
        self.beside.seen.wanted(pending.event);
        let device = &self.beside.seen.device;
        // An event that was used again since is of later work on the same stream.
        let [_, after] = self.order(pending.job);
        device.wait(device.stream, after);
    }
}

impl Drop for Gpus {
    fn drop(&mut self) {
        let (api, device) = (&self.beside.seen.api, &self.beside.seen.device);
        // After a failure, or in a panic, the others may never come.
        let failed = self.beside.seen.links.inbox.failed().is_some() || device.failed();
        if !failed && !std::thread::panicking() {
            for stream in [device.stream, device.beside] {
                device.call("waiting", |driver| unsafe { (driver.cuStreamSynchronize)(stream) });
            }
        }
        if let Some(comm) = self.comm.take() {
            // SAFETY: nobody else has the communicator any more.
            device.try_call(|_| unsafe {
                match failed || device.failed() || std::thread::panicking() {
                    true => (api.ncclCommAbort)(comm),
                    false => (api.ncclCommDestroy)(comm),
                }
            });
        }
        for event in &self.order {
            device.try_call(|driver| unsafe { (driver.cuEventDestroy_v2)(*event) });
        }
    }
}
