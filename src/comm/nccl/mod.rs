//! Groups of GPUs, one a rank, by NCCL. The ranks meet through a `World`, which then stays beside
//! them.
//!
//! Collectives go to the stream of the ops and are in order with them; those that are begun go to a
//! stream beside it, between two events. Sums are in NCCL's order: the same every run on the same
//! GPUs, not the bits of another carrier. What goes wrong surfaces as the device's failure, at its
//! next `sync`; a rank that hangs is not named yet.

mod api;

use super::{Collective, Group, Message, Pending, Solo, World};
use crate::base::{DType, Problems, div_exact};
use crate::device::Tensor;
use crate::device::cuda::driver::{Device, Handle};
use crate::device::cuda::library::Library;
use crate::device::cuda::{Cuda, FOLDER, Options};
use api::{Api, Code, INVALID_USAGE, Id, SUM, data_type};
use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

/// Collectives that may have been begun before the wait for one of them is also one for later ones.
const BEGUN: usize = 64;

/// The library, for one GPU.
pub struct Nccl {
    api: Arc<Api>,
    device: Arc<Device>,
}

impl Nccl {
    /// NCCL as the options' folder or the machine has it.
    pub fn open(cuda: &Cuda, options: &Options) -> Result<Nccl, Problems> {
        let refuse = |what: String, remedy: &str| Problems::one("NCCL", what, remedy);
        let names = ["libnccl.so.2", "libnccl.so"];
        let library = Library::open(options.folder.as_deref(), &names).map_err(|why| {
            let remedy = format!(
                "pip install nvidia-nccl-cu13, and set {FOLDER} to its folder of libraries"
            );
            refuse(format!("NCCL is missing: {why}"), &remedy)
        })?;
        let api = Api::load(&library).map_err(|missing| {
            let what = format!("{} lacks {}", library.name, missing.join(", "));
            refuse(what, "update NCCL: 2.18 or newer")
        })?;
        Ok(Nccl { api: Arc::new(api), device: cuda.device().clone() })
    }

    /// A group of these ranks of the world, in this order. Called by each of them, by no other.
    pub fn group(&self, world: &World, name: &str, ranks: &[usize]) -> Box<dyn Group> {
        if ranks.len() == 1 {
            return Box::new(Solo);
        }
        let host = world.group(name, ranks);
        let (rank, size) = (host.rank(), host.size());
        let mut id = Id([0; 128]);
        if rank == 0 {
            self.call("making an id", || unsafe { (self.api.ncclGetUniqueId)(&mut id) });
        }
        share(&*host, &mut id);
        let mut comm = null_mut();
        self.call(&format!("group {name} {ranks:?}"), || unsafe {
            (self.api.ncclCommInitRank)(&mut comm, size as c_int, id, rank as c_int)
        });
        let nccl = Nccl { api: self.api.clone(), device: self.device.clone() };
        let events = (0..2 * BEGUN).map(|_| self.device.event()).collect();
        Box::new(Gpus { nccl, comm, rank, size, events, begun: Cell::new(0) })
    }

    /// Calls NCCL with the device bound; an error is the device's failure.
    fn call(&self, doing: &str, with: impl FnOnce() -> Code) {
        let mut code = 0;
        self.device.call(doing, |_| {
            code = with();
            0
        });
        if code != 0 {
            // SAFETY: the library gives a static string for every code.
            let text = unsafe { CStr::from_ptr((self.api.ncclGetErrorString)(code)) };
            let hint = if code == INVALID_USAGE { " (two ranks on one GPU?)" } else { "" };
            self.device.fail(format!("{doing}: NCCL: {}{hint}", text.to_string_lossy()));
        }
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
    nccl: Nccl,
    comm: Handle,
    rank: usize,
    size: usize,
    /// Two for each collective that may be under way: before it, and after.
    events: Vec<Handle>,
    begun: Cell<u64>,
}

impl Gpus {
    fn collective(&self, what: Collective, stream: Handle) {
        let (api, comm) = (&self.nccl.api, self.comm);
        let to = |x: Tensor| x.addr() as *mut c_void;
        let from = |x: Tensor| x.addr() as *const c_void;
        let share = |part: Tensor, whole: Tensor| {
            assert_eq!(part.numel(), div_exact(whole.numel(), self.size), "a rank's part");
            assert_eq!(part.dtype, whole.dtype, "part and whole");
            (part.numel(), data_type(part.dtype))
        };
        match what {
            Collective::AllReduce(x) => self.nccl.call("all_reduce", || unsafe {
                let kind = data_type(x.dtype);
                (api.ncclAllReduce)(from(x), to(x), x.numel(), kind, SUM, comm, stream)
            }),
            Collective::AllGather { part, whole } => {
                let (count, kind) = share(part, whole);
                self.nccl.call("all_gather", || unsafe {
                    (api.ncclAllGather)(from(part), to(whole), count, kind, comm, stream)
                });
            }
            Collective::ReduceScatter { whole, part } => {
                let (count, kind) = share(part, whole);
                self.nccl.call("reduce_scatter", || unsafe {
                    (api.ncclReduceScatter)(from(whole), to(part), count, kind, SUM, comm, stream)
                });
            }
        }
    }

    fn message(&self, message: &Message) -> Code {
        let (api, comm, stream) = (&self.nccl.api, self.comm, self.nccl.device.stream);
        // SAFETY: the tensors' memory lives as long as the backend.
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

    fn events(&self, job: u64) -> [Handle; 2] {
        let at = 2 * (job as usize % BEGUN);
        [self.events[at], self.events[at + 1]]
    }
}

impl Group for Gpus {
    fn size(&self) -> usize {
        self.size
    }

    fn rank(&self) -> usize {
        self.rank
    }

    /// NCCL's calls are captured like kernels.
    fn repeats(&self) -> bool {
        true
    }

    fn all_reduce(&self, x: Tensor) {
        self.collective(Collective::AllReduce(x), self.nccl.device.stream);
    }

    fn all_gather(&self, part: Tensor, whole: Tensor) {
        self.collective(Collective::AllGather { part, whole }, self.nccl.device.stream);
    }

    fn reduce_scatter(&self, whole: Tensor, part: Tensor) {
        self.collective(Collective::ReduceScatter { whole, part }, self.nccl.device.stream);
    }

    fn exchange(&self, messages: &[Message]) {
        let api = &self.nccl.api;
        self.nccl.call("messages", || {
            // SAFETY: takes nothing.
            let start = unsafe { (api.ncclGroupStart)() };
            let failed = messages.iter().map(|m| self.message(m)).find(|code| *code != 0);
            // SAFETY: as above; a group that was started is ended.
            let end = unsafe { (api.ncclGroupEnd)() };
            [start, failed.unwrap_or(0), end].into_iter().find(|code| *code != 0).unwrap_or(0)
        });
    }

    fn begin(&self, what: Collective) -> Pending {
        let job = self.begun.get() + 1;
        self.begun.set(job);
        let device = &self.nccl.device;
        let [before, after] = self.events(job);
        device.after(before, device.stream, device.beside);
        self.collective(what, device.beside);
        device.record(after, device.beside);
        Pending { job, event: 0 }
    }

    fn finish(&self, pending: Pending) {
        let device = &self.nccl.device;
        // An event that was used again since is of later work on the same stream.
        let [_, after] = self.events(pending.job);
        device.wait(device.stream, after);
    }
}

impl Drop for Gpus {
    fn drop(&mut self) {
        let (api, device) = (&self.nccl.api, &self.nccl.device);
        let mut error = 0;
        // SAFETY: the communicator and the events are used no more.
        device.try_call(|driver| unsafe {
            (api.ncclCommGetAsyncError)(self.comm, &mut error);
            // After an error, or in a panic, the others may never come.
            if error != 0 || device.failed() || std::thread::panicking() {
                (api.ncclCommAbort)(self.comm);
            } else {
                (driver.cuStreamSynchronize)(device.stream);
                (driver.cuStreamSynchronize)(device.beside);
                (api.ncclCommDestroy)(self.comm);
            }
            0
        });
        for event in &self.events {
            device.try_call(|driver| unsafe { (driver.cuEventDestroy_v2)(*event) });
        }
    }
}
