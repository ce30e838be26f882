//! Host-staged groups: GPU tensors are copied to host memory and sent by a host group. Several
//! ranks can then share one GPU, which NCCL refuses, so every grid can be tried on a single GPU.
//! Slow, because the host waits for each collective.

use super::{Collective, Group, Message};
use device::cuda::Cuda;
use device::cuda::device::Device;
use device::{Gpu, Tensor};
use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::Arc;

/// Group of the device's waits, which the host group already counts.
const HOST: &str = "";

/// GPU, and the host group that transports its tensors.
pub struct HostStaged {
    device: Arc<Device>,
    host: Box<dyn Group>,
    /// Host memory of one collective, reused by the next.
    memory: RefCell<Vec<u64>>,
}

impl HostStaged {
    pub fn for_gpu(gpu: &Gpu, host: Box<dyn Group>) -> HostStaged {
        HostStaged::new(gpu.cuda().0, host)
    }

    pub fn new(cuda: &Cuda, host: Box<dyn Group>) -> HostStaged {
        HostStaged { device: cuda.device().clone(), host, memory: RefCell::default() }
    }

    /// Host buffers of unspecified content, one for each tensor. They are valid until the next call.
    fn buffers(&self, tensors: &[Tensor]) -> Vec<Tensor> {
        let words = |x: &Tensor| x.bytes().div_ceil(8);
        let mut memory = self.memory.borrow_mut();
        let needed = tensors.iter().map(words).sum();
        if memory.len() < needed {
            memory.resize(needed, 0);
        }
        let mut at = memory.as_mut_ptr() as usize;
        tensors
            .iter()
            .map(|x| {
                let buffer = Tensor::at(at, x.rows, x.cols, x.dtype);
                at += 8 * words(x);
                buffer
            })
            .collect()
    }

    fn to_host(&self, from: Tensor, to: Tensor) {
        assert_eq!(from.bytes(), to.bytes(), "bytes staged");
        // SAFETY: `to` is one of `buffers`, or a span of one: it has as many bytes (above) in `memory`,
        // which does not move before the next call of `buffers`. The copy has ended on return.
        unsafe {
            self.device
                .copy_to_host(from.addr(), to.addr() as *mut c_void, to.bytes())
        };
    }

    fn to_device(&self, from: Tensor, to: Tensor) {
        assert_eq!(from.bytes(), to.bytes(), "bytes staged");
        // SAFETY: as in `to_host`, with `from` as the buffer.
        unsafe {
            self.device
                .copy_to_device(from.addr() as *const c_void, to.addr(), to.bytes())
        };
    }
}

impl Group for HostStaged {
    fn size(&self) -> usize {
        self.host.size()
    }

    fn rank(&self) -> usize {
        self.host.rank()
    }

    fn run(&self, collective: Collective) {
        let (_, whole) = collective.op_and_whole_tensor(self.size());
        let staged = self.buffers(&[whole])[0];
        let own = |part: Tensor| staged.span(self.rank() * part.numel(), part.numel());
        match collective {
            Collective::AllReduce(x) => {
                self.to_host(x, staged);
                self.host.all_reduce(staged);
                self.to_device(staged, x);
            }
            Collective::AllGather { part, whole } => {
                self.to_host(part, own(part));
                self.host.all_gather(own(part), staged);
                self.to_device(staged, whole);
            }
            Collective::ReduceScatter { whole, part } => {
                self.to_host(whole, staged);
                self.host.reduce_scatter(staged, own(part));
                self.to_device(own(part), part);
            }
        }
        self.device.note_wait(HOST);
    }

    fn exchange(&self, messages: &[Message]) {
        let tensors: Vec<Tensor> = messages.iter().map(Message::tensor).collect();
        let buffers = self.buffers(&tensors);
        let pairs = || messages.iter().zip(&buffers);
        for (message, buffer) in pairs() {
            if let Message::Send { x, .. } = message {
                self.to_host(*x, *buffer);
            }
        }
        let staged: Vec<Message> = pairs()
            .map(|(message, buffer)| message.with_tensor(*buffer))
            .collect();
        self.host.exchange(&staged);
        for (message, buffer) in pairs() {
            if let Message::Recv { x, .. } = message {
                self.to_device(*buffer, *x);
            }
        }
        self.device.note_wait(HOST);
    }
}
