//! The memory of the host, and its processor beside the device: the bits are the device's.

use crate::bench::{Bench, Known};
use crate::{Case, case};
use gptrain::base::DType;
use gptrain::device::{AdamW, AdamWUpdate, Backend, Home, InPlace, Tensor, op};

pub fn table() -> Vec<Case> {
    vec![
        case("to the host and back", |b| there_and_back(b, 1)),
        case("to the host and back, 1,500,003 elements", |b| there_and_back(b, 1_500_003)),
        case("AdamW on the host, 1 element", |b| adamw(b, 1)),
        case("AdamW on the host, 70,001 elements", |b| adamw(b, 70_001)),
    ]
}

/// As large as a tensor of the device.
fn on_host(b: &Bench, like: Tensor) -> Tensor {
    let address = b.backend.reserve_host(like.bytes()).expect("host memory");
    Tensor::at(address, like.rows, like.cols, like.dtype).in_memory(Home::Host)
}

/// A copy is ordered after the ops before it, and before the ops after it; the host reads and writes its
/// tensors as the device does.
fn there_and_back(b: &Bench, len: usize) {
    let be = b.backend;
    let (x, y) = (b.normal(1, len), b.blank(1, len, b.dtype));
    let host = on_host(b, y);
    assert!(b.bytes(host).iter().all(|byte| *byte == 0), "a fresh region is zero");
    be.run(op::Copy { x: x.on, y: y.set() });
    let going = be.transfer(y, host);
    be.finish_transfer(going);
    be.run(op::Zero { x: y.set() });
    let digests = b.longs(&[-1, -2]);
    be.run(op::Digests { xs: &[host, x.on], y: digests.set() });
    let both = b.bytes(digests);
    assert_eq!(both[..8], both[8..], "digests of equal tensors");
    let z = b.blank(1, len, b.dtype);
    be.join_transfer(be.transfer(host, y));
    be.run(op::Copy { x: y, y: z.set() });
    b.expect("there and back", z, || x.x.clone());
    let bytes = b.bytes(x.on);
    be.run(op::Zero { x: host.set() });
    assert_ne!(b.bytes(host), bytes);
    be.upload(&bytes, host);
    assert_eq!(b.bytes(host), bytes);
}

/// Three updates by the device and by the host.
fn adamw(b: &Bench, len: usize) {
    let be = b.backend;
    let rule =
        AdamW { lr: 3e-2, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, lr_scale: 0.5 };
    let master = b.normal_f32(1, len);
    let zeros = || b.known(1, len, DType::F32, &vec![0.0; len]);
    let state = [master, zeros(), zeros(), b.known(1, len, b.dtype, &vec![0.0; len])];
    let copy = |x: &Known| {
        let to = on_host(b, x.on);
        be.finish_transfer(be.transfer(x.on, to));
        to
    };
    let moved = [0, 1, 2, 3].map(|i| copy(&state[i]));
    for step in [0.03, 0.031, 0.029] {
        let grad = b.normal_f32(1, len);
        let scalars = b.known(1, 3, DType::F32, &[0.7310586, step, 1.2345679]);
        let [w, m, v, rounded] = [0, 1, 2, 3].map(|i| state[i].on);
        update(be, rule, scalars.on, grad.on, [w, m, v, rounded]);
        update(be.host(), rule, copy(&scalars), copy(&grad), moved);
        for (device, host) in state.iter().zip(moved) {
            assert!(b.bytes(device.on) == b.bytes(host), "the host rounds as the device");
        }
    }
    let rounded = b.numbers(state[3].on);
    b.expect("weights", state[3].on, || rounded);
}

fn update(be: &dyn Backend, rule: AdamW, scalars: Tensor, grad: Tensor, state: [Tensor; 4]) {
    let [master, m, v, weight] = state;
    let updates = &[AdamWUpdate {
        rule,
        grad,
        master: InPlace(master),
        m: InPlace(m),
        v: InPlace(v),
        weight: weight.set_unless(master),
    }];
    be.run(op::AdamW { scalars, updates });
}
