//! Groups of GPUs, one per rank, by NCCL. The ranks meet through a `World`, which also finds the
//! root cause when a collective hangs and aborts all ranks when one fails (`watchdog`).
//!
//! Blocking collectives run on the compute stream, in order with the ops; asynchronous ones on one of
//! two others, ordered with the ops by two events: those that a layer awaits itself are not behind the
//! long ones that a step awaits. Messages that are begun have streams and communicators of their own
//! (`ring`). Sums are in NCCL's order: the same every run on the same GPUs, not the bits of another
//! transport. An operation counts as started when the GPU starts it.

mod api;
mod group;
mod order;
mod ring;
#[cfg(feature = "testing")]
pub mod testing;
mod watchdog;

use super::{BACKWARD_MESSAGES, FORWARD_MESSAGES, Group, Message, PIPELINE, Solo, World, endpoint};
use api::Api;
use base::{DType, Problems};
use cudarc::nccl::sys::{self, ncclUniqueId};
pub use device::cuda::SERIAL;
use device::cuda::device::Device;
use device::cuda::library::{Library, call};
use device::cuda::{Cuda, FOLDER, LAUNCH_ORDER, Options, driver, parse_flag};
use device::{Gpu, Tensor};
use group::NcclGroup;
use ring::NcclRing;
use std::cell::OnceCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;
use watchdog::NcclWatchdog;

/// Bytes of the small operations with which a communicator gets its buffers.
const SMALL: usize = 256 << 10;

/// The library, for one GPU.
pub struct Nccl {
    api: Arc<Api>,
    device: Arc<Device>,
    /// f32 [1, n] in the scratch of the ops, which is unused while a group is created. As many bytes as
    /// the large operations with which a communicator gets its buffers.
    scratch: Tensor,
    /// Dtype of activations.
    dtype: DType,
    setup_timeout: Duration,
    /// Whether all collectives run on the stream of the ops.
    serial: bool,
    watchdog: OnceCell<Arc<NcclWatchdog>>,
}

impl Nccl {
    /// Opens NCCL for an opened GPU.
    pub fn for_gpu(gpu: &Gpu) -> Result<Nccl, Problems> {
        let (cuda, options) = gpu.cuda();
        Nccl::open(cuda, options)
    }

    /// Opens NCCL, in the options' folders or from the machine.
    pub fn open(cuda: &Cuda, options: &Options) -> Result<Nccl, Problems> {
        let refuse = |what: String, remedy: &str| Problems::one("NCCL", what, remedy);
        let names = ["libnccl.so.2", "libnccl.so"];
        let library = Library::open(&options.folders, &names).map_err(|why| {
            refuse(
                format!("NCCL is missing: {why}"),
                &format!(
                    "pip install nvidia-nccl-cu13, or add its folder of libraries to {FOLDER}; or \
                     --set comm.gpu_transport=host, which is slow"
                ),
            )
        })?;
        let api = Api::load(&library).map_err(|what| refuse(what, "update NCCL: 2.18 or newer"))?;
        let setup_timeout = Duration::from_secs(120);
        let device = cuda.device().clone();
        let watchdog = OnceCell::new();
        let scratch = cuda.scratch_tensor(options.connect.max(SMALL) / DType::F32.size());
        let dtype = options.dtype;
        let serial = parse_flag("NCCL", SERIAL, options.serial.as_deref())?;
        Ok(Nccl { api: Arc::new(api), device, scratch, dtype, setup_timeout, serial, watchdog })
    }

    /// Whether all collectives run on the stream of the ops, one after the other.
    pub fn is_serial(&self) -> bool {
        self.serial
    }

    /// Warning for a run that uses several communicators at once, if NCCL does not order their
    /// launches.
    pub fn order_warning(&self) -> Option<String> {
        let implicit = std::env::var(LAUNCH_ORDER).ok();
        let driver = driver::version(&self.device.api).unwrap_or(i32::MAX);
        let warning = || order::warning(self.api.version(), driver, implicit.as_deref());
        if self.serial { None } else { warning() }
    }

    /// Sets the time limit for creating a group.
    pub fn with_setup_timeout(self, setup_timeout: Duration) -> Nccl {
        Nccl { setup_timeout, ..self }
    }

    /// Creates a group of these world ranks, in this order. Called by each of them and by no other rank.
    /// An error fails the whole process group.
    pub fn group(&self, world: &World, name: &str, ranks: &[usize]) -> Box<dyn Group> {
        if ranks.len() == 1 {
            return Box::new(Solo);
        }
        let host = world.group(name, ranks);
        if [FORWARD_MESSAGES, BACKWARD_MESSAGES].contains(&name) {
            return Box::new(NcclRing::new(self, world, &*host, name, ranks));
        }
        let mut id = match host.rank() {
            0 => self.new_id(world),
            _ => ncclUniqueId { internal: [0; 128] },
        };
        share_id(&*host, &mut id);
        let group = self.create_group(world, name, ranks, id);
        self.reserve_buffers(&group, name == PIPELINE);
        Box::new(group)
    }

    /// Creates the id of a new communicator.
    fn new_id(&self, world: &World) -> ncclUniqueId {
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: 128 bytes are written to the live variable.
        let code = unsafe { call!(self.api, ncclGetUniqueId(&mut id)) };
        if code != 0 {
            world
                .fail(&format!("making a group: NCCL: {}", self.api.error(code)))
                .raise();
        }
        id
    }

    /// Creates a communicator of these world ranks, as a group.
    fn create_group(
        &self,
        world: &World,
        name: &str,
        ranks: &[usize],
        id: ncclUniqueId,
    ) -> NcclGroup {
        let endpoint = &world.resources().endpoint;
        let watchdog = self
            .watchdog
            .get_or_init(|| {
                let api = self.api.clone();
                let device = self.device.clone();
                let started = NcclWatchdog::start(
                    api,
                    device,
                    endpoint.clone(),
                    self.setup_timeout,
                    self.serial,
                );
                Arc::new(started.unwrap_or_else(|error| world.fail(&format!("{error:#}")).raise()))
            })
            .clone();
        let rank = ranks
            .iter()
            .position(|rank| *rank == world.rank())
            .expect("a member");
        let size = ranks.len();
        let made =
            watchdog
                .shared
                .create_comm(format!("group {name} of ranks {ranks:?}"), |comm| {
                    // SAFETY: `create_comm` binds the device; the handle is written to the live variable.
                    unsafe {
                        call!(self.api, ncclCommInitRank(comm, size as c_int, id, rank as c_int))
                    }
                });
        let comm = match made {
            Ok(comm) => comm,
            Err(what) => world.fail(&what).raise(),
        };
        let counters = world
            .resources()
            .counters(endpoint::group_hash(name, ranks), size);
        NcclGroup::new(comm, name, ranks, rank, counters, watchdog)
    }

    /// Tensors of the operations with which a communicator gets its buffers. NCCL reserves them at the
    /// first operation of an algorithm, which it selects by size and dtype.
    fn sample_tensors(&self) -> Vec<Tensor> {
        let address = self.scratch.addr();
        let mut dtypes = vec![DType::F32, self.dtype];
        dtypes.dedup();
        let mut sizes = vec![SMALL, self.scratch.bytes()];
        sizes.dedup();
        let mut samples = Vec::new();
        for dtype in dtypes {
            for bytes in &sizes {
                samples.push(Tensor::at(address, 1, bytes / dtype.size(), dtype));
            }
        }
        samples
    }

    /// Runs each kind of operation on each sample: NCCL then reserves its buffers here, before free
    /// memory is measured, and not in the first step, when the arenas have taken it.
    fn reserve_buffers(&self, group: &NcclGroup, messages: bool) {
        let size = group.size();
        let rank = group.rank();
        let [next, before] = [rank + 1, rank + size - 1].map(|other| other % size);
        for sample in self.sample_tensors() {
            let each = sample.numel() / size;
            let whole = sample.span(0, each * size);
            let part = whole.span(rank * each, each);
            group.all_reduce(whole);
            group.reduce_scatter(whole, part);
            group.all_gather(part, whole);
            let half = sample.numel() / 2;
            let sent = sample.span(0, half);
            let received = sample.span(half, half);
            for (to, from) in [(next, before), (before, next)]
                .into_iter()
                .filter(|_| messages)
            {
                group.exchange(&[
                    Message::Send { to, x: sent },
                    Message::Recv { from, x: received },
                ]);
            }
        }
    }
}

/// Broadcasts the communicator's id from the group's first rank.
fn share_id(host: &dyn Group, id: &mut ncclUniqueId) {
    let mut words = [0u64; 16];
    bytemuck::bytes_of_mut(&mut words).copy_from_slice(bytemuck::bytes_of(&id.internal));
    let x = Tensor::at(words.as_mut_ptr() as usize, 1, 16, DType::I64);
    match host.rank() {
        0 => (1..host.size()).for_each(|to| host.send(to, x)),
        _ => host.recv(0, x),
    }
    // The group wrote through the address.
    let words = std::hint::black_box(&words);
    bytemuck::bytes_of_mut(&mut id.internal).copy_from_slice(bytemuck::bytes_of(words));
}
