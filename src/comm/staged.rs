//! A group of GPUs through the memory of their hosts: several ranks may then share one GPU, which
//! NCCL refuses, so that every grid can be tried on a single one. Slow: the host waits for each
//! collective.

use super::{Group, Message};
use crate::device::Tensor;
use crate::device::cuda::Cuda;
use crate::device::cuda::driver::Device;
use std::cell::RefCell;
use std::sync::Arc;

/// `host` carries what the device has.
pub struct Staged {
    device: Arc<Device>,
    host: Box<dyn Group>,
    /// Host memory of one call, a tensor after the other.
    memory: RefCell<Vec<u64>>,
}

impl Staged {
    pub fn new(cuda: &Cuda, host: Box<dyn Group>) -> Staged {
        Staged { device: cuda.device().clone(), host, memory: RefCell::default() }
    }

    /// Host places for tensors, whatever is in them.
    fn places(&self, tensors: &[Tensor]) -> Vec<Tensor> {
        let words = |x: &Tensor| x.bytes().div_ceil(8);
        let mut memory = self.memory.borrow_mut();
        let needed = tensors.iter().map(words).sum();
        if memory.len() < needed {
            memory.resize(needed, 0);
        }
        let mut at = memory.as_mut_ptr() as usize;
        let place = |x: &Tensor| {
            let here = Tensor::at(at, x.rows, x.cols, x.dtype);
            at += 8 * words(x);
            here
        };
        tensors.iter().map(place).collect()
    }

    fn down(&self, from: Tensor, to: Tensor) {
        let (address, stream) = (from.addr() as u64, self.device.stream);
        self.device.call("staging", |api| unsafe {
            match (api.cuMemcpyDtoHAsync_v2)(to.addr() as *mut u8, address, to.bytes(), stream) {
                0 => (api.cuStreamSynchronize)(stream),
                code => code,
            }
        });
    }

    fn up(&self, from: Tensor, to: Tensor) {
        let (address, stream) = (to.addr() as u64, self.device.stream);
        self.device.call("staging", |api| unsafe {
            match (api.cuMemcpyHtoDAsync_v2)(address, from.addr() as *const u8, to.bytes(), stream)
            {
                0 => (api.cuStreamSynchronize)(stream),
                code => code,
            }
        });
    }
}

impl Group for Staged {
    fn size(&self) -> usize {
        self.host.size()
    }

    fn rank(&self) -> usize {
        self.host.rank()
    }

    fn all_reduce(&self, x: Tensor) {
        let here = self.places(&[x])[0];
        self.down(x, here);
        self.host.all_reduce(here);
        self.up(here, x);
    }

    fn all_gather(&self, part: Tensor, whole: Tensor) {
        let here = self.places(&[whole])[0];
        let own = here.span(self.rank() * part.numel(), part.numel());
        self.down(part, own);
        self.host.all_gather(own, here);
        self.up(here, whole);
    }

    fn reduce_scatter(&self, whole: Tensor, part: Tensor) {
        let here = self.places(&[whole])[0];
        let own = here.span(self.rank() * part.numel(), part.numel());
        self.down(whole, here);
        self.host.reduce_scatter(here, own);
        self.up(own, part);
    }

    fn exchange(&self, messages: &[Message]) {
        let tensor = |message: &Message| match *message {
            Message::Send { x, .. } | Message::Recv { x, .. } => x,
        };
        let there: Vec<Tensor> = messages.iter().map(tensor).collect();
        let here = self.places(&there);
        let staged = |(message, x): (&Message, &Tensor)| match *message {
            Message::Send { to, .. } => Message::Send { to, x: *x },
            Message::Recv { from, .. } => Message::Recv { from, x: *x },
        };
        let staged: Vec<Message> = messages.iter().zip(&here).map(staged).collect();
        for (message, here) in messages.iter().zip(&here) {
            if let Message::Send { x, .. } = message {
                self.down(*x, *here);
            }
        }
        self.host.exchange(&staged);
        for (message, here) in messages.iter().zip(&here) {
            if let Message::Recv { x, .. } = message {
                self.up(*here, *x);
            }
        }
    }
}
