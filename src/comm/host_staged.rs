//! Host-staged groups: GPU tensors are copied to host memory and sent by a host group. Several
//! ranks can then share one GPU, which NCCL refuses, so every grid can be tried on a single GPU.
//! Slow, because the host waits for each collective.

use super::{Group, Message};
use device::Tensor;
use device::cuda::Cuda;
use device::cuda::device::Device;
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
        let buffer = |x: &Tensor| {
            let here = Tensor::at(at, x.rows, x.cols, x.dtype);
            at += 8 * words(x);
            here
        };
        tensors.iter().map(buffer).collect()
    }

    fn to_host(&self, from: Tensor, to: Tensor) {
        assert_eq!(from.bytes(), to.bytes(), "bytes staged");
        // SAFETY: `to` is one of `buffers`, or a span of one: it has as many bytes (above) in `memory`,
        // which does not move before the next call of `buffers`. The copy has ended on return.
        unsafe { self.device.copy_to_host(from.addr(), to.addr() as *mut c_void, to.bytes()) };
    }

    fn to_device(&self, from: Tensor, to: Tensor) {
        assert_eq!(from.bytes(), to.bytes(), "bytes staged");
        // SAFETY: as in `to_host`, with `from` as the buffer.
        unsafe { self.device.copy_to_device(from.addr() as *const c_void, to.addr(), to.bytes()) };
    }
}

impl Group for HostStaged {
    fn size(&self) -> usize {
        self.host.size()
    }

    fn rank(&self) -> usize {
        self.host.rank()
    }

    fn all_reduce(&self, x: Tensor) {
        let here = self.buffers(&[x])[0];
        self.to_host(x, here);
        self.host.all_reduce(here);
        self.to_device(here, x);
        self.device.note_wait(HOST);
    }

    fn all_gather(&self, part: Tensor, whole: Tensor) {
        let here = self.buffers(&[whole])[0];
        let own = here.span(self.rank() * part.numel(), part.numel());
        self.to_host(part, own);
        self.host.all_gather(own, here);
        self.to_device(here, whole);
        self.device.note_wait(HOST);
    }

    fn reduce_scatter(&self, whole: Tensor, part: Tensor) {
        let here = self.buffers(&[whole])[0];
        let own = here.span(self.rank() * part.numel(), part.numel());
        self.to_host(whole, here);
        self.host.reduce_scatter(here, own);
        self.to_device(own, part);
        self.device.note_wait(HOST);
    }

    fn exchange(&self, messages: &[Message]) {
        let there: Vec<Tensor> = messages.iter().map(Message::tensor).collect();
        let here = self.buffers(&there);
        let staged: Vec<Message> =
            messages.iter().zip(&here).map(|(message, x)| message.with(*x)).collect();
        for (message, here) in messages.iter().zip(&here) {
            if let Message::Send { x, .. } = message {
                self.to_host(*x, *here);
            }
        }
        self.host.exchange(&staged);
        for (message, here) in messages.iter().zip(&here) {
            if let Message::Recv { x, .. } = message {
                self.to_device(*here, *x);
            }
        }
        self.device.note_wait(HOST);
    }
}
