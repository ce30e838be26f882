#!/usr/bin/env python3
"""Largest relative error of gptrain's results and of PyTorch's in bf16, both against PyTorch in f64
on the same numbers: a line for each result.

    torch_errors.py [FOLDER]     written by `cargo bench --bench ops -- cuda MODEL bf16 errors`

TORCH_DEVICE: cuda (default) or cpu. Without FOLDER: exit code 3, and a line, if PyTorch lacks the
device. With it: exit code 1 if an error of gptrain's exceeds its bound.

The error of an element is relative to the largest element of its row (in attention: of its head's
row) or to the root mean square of the tensor, whichever is larger. The bound of attention's backward
is at least twice PyTorch's own error.
"""
import json
import os
import sys
from pathlib import Path

device = os.environ.get("TORCH_DEVICE", "cuda")
try:
    import torch
    from torch.nn import functional as F
except ImportError:
    print("no PyTorch to compare errors with")
    sys.exit(3)
if device == "cuda" and not torch.cuda.is_available():
    print(f"PyTorch {torch.__version__} has no CUDA here: no errors to compare")
    sys.exit(3)
if len(sys.argv) < 2:
    sys.exit(0)

# Four roundings to bf16 at their largest; in f32, sums of operands that are rounded once.
BOUND = {"bf16": 2**-6, "f32": 2**-8}
DTYPE = {"bf16": torch.bfloat16, "f32": torch.float32}
folder = Path(sys.argv[1])
described = json.loads((folder / "cases.json").read_text())
sizes = described["sizes"]


def grad(y, inputs, dy):
    return torch.autograd.grad(y, inputs, dy)


def attention(qkv, dy):
    query, kv, dim, seq = (sizes[name] for name in ("query", "kv", "dim", "seq"))
    ys, dqkvs = [], []
    # One sample at a time: f64 has all scores in memory.
    for qkv, dy in zip(qkv.split(seq), dy.split(seq)):
        qkv = qkv.reshape(seq, kv, query // kv + 2, dim).requires_grad_()
        q = qkv[:, :, :-2].reshape(seq, query, dim)
        q, k, v = (x.transpose(0, 1)[None] for x in (q, qkv[:, :, -2], qkv[:, :, -1]))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=kv < query)
        (dqkv,) = grad(y, qkv, dy.reshape(seq, query, dim).transpose(0, 1)[None])
        ys.append(y.detach()[0].transpose(0, 1).reshape(seq, -1))
        dqkvs.append(dqkv.reshape(seq, -1))
    return {"y": torch.cat(ys), "dqkv": torch.cat(dqkvs)}


def bias(x, w, bias):
    return {"y": F.linear(x, w, bias[0])}


def bias_gelu(x, w, bias):
    pre = F.linear(x, w, bias[0])
    return {"pre": pre, "y": F.gelu(pre, approximate="tanh")}


def gelu_backward(dy, w, pre):
    pre.requires_grad_()
    return {"dx": grad(F.gelu(pre, approximate="tanh"), pre, dy @ w)[0]}


def weights(dy, x):
    return {"dw": dy.T @ x, "db": dy.sum(0, keepdim=True)}


def swiglu(x, dy):
    x.requires_grad_()
    y = F.silu(x[:, ::2]) * x[:, 1::2]
    return {"y": y.detach(), "dx": grad(y, x, dy)[0]}


def norm(x, scale, shift):
    if shift is None:
        return F.rms_norm(x, x.shape[1:], scale[0], sizes["eps"])
    return F.layer_norm(x, x.shape[1:], scale[0], shift[0], sizes["eps"])


def residual_norm(x, branch, scale, bias=None, shift=None):
    y = x + (branch if bias is None else branch + bias)
    return {"y": y, "h": norm(y, scale, shift)}


def norm_backward(x, dy, dresidual, scale, shift=None):
    leaves = [leaf.requires_grad_() for leaf in (x, scale, shift) if leaf is not None]
    dx, dscale, *dshift = grad(norm(x, scale, shift), leaves, dy)
    dx = dx + dresidual
    results = {"dx": dx, "dscale": dscale}
    return results if shift is None else results | {"dshift": dshift[0], "dbias": dx.sum(0, keepdim=True)}


def read(file, dtype):
    return torch.frombuffer(bytearray(file.read_bytes()), dtype=dtype)


def largest(got, right, width):
    got, right = (x.double().reshape(-1, width) for x in (got, right))
    size = right.abs().amax(1, keepdim=True).clamp(min=right.square().mean().sqrt())
    return ((got - right).abs() / size).max().item()


red = False
print(f"PyTorch {torch.__version__} on {torch.cuda.get_device_name() if device == 'cuda' else device}")
print(f"{'result':<22} {'shape':>14} {'gptrain':>9} {'PyTorch':>9} {'bound':>9}")
for case in described["cases"]:
    name = case["name"]
    inputs = {}
    for what, (rows, cols) in case["inputs"].items():
        period = read(folder / f"{name}-{what}", torch.bfloat16).to(device)
        times = -(-rows * cols // period.numel())
        inputs[what] = period.repeat(times)[: rows * cols].view(rows, cols)
    run = lambda dtype: globals()[name](**{what: x.detach().to(dtype) for what, x in inputs.items()})
    right, theirs = run(torch.float64), run(torch.bfloat16)
    for what, rows, cols, dtype in case["outputs"]:
        ours = read(folder / f"{name}-{what}", DTYPE[dtype]).to(device).view(rows, cols)
        width = sizes["dim"] if name == "attention" else cols
        off = [largest(x.detach(), right[what].detach(), width) for x in (ours, theirs[what])]
        # Attention's backward subtracts nearly equal numbers, the more the longer the samples.
        bound = max(BOUND[dtype], 2 * off[1] if what == "dqkv" else 0)
        bad = not off[0] <= bound  # NaN is bad
        red |= bad
        row = f"{name + ' ' + what:<22} {f'{rows}x{cols}':>14} {off[0]:9.1e} {off[1]:9.1e} {bound:9.1e}"
        print(row + ("  RED" if bad else ""), flush=True)
    del right, theirs
sys.exit(red)
