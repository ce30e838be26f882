#!/usr/bin/env python3
"""PyTorch's flash attention (FlashAttention-2), causal, bf16, on a GPU: one line for forward, one for
backward, as `cargo bench --bench ops -- cuda attention` prints its own.

    torch_attention.py SAMPLES HEADS SEQ HEAD_WIDTH
"""
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

samples, heads, seq, width = map(int, sys.argv[1:])
qkv = torch.randn(3, samples, heads, seq, width, device="cuda", dtype=torch.bfloat16)
q, k, v = (x.requires_grad_() for x in qkv.unbind())
dy = torch.randn_like(q)


def best(run):
    """Seconds of the best of ten times twenty calls."""
    times = []
    for _ in range(11):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(20):
            run()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / 20)
    return min(times[1:])


with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
    y = scaled_dot_product_attention(q, k, v, is_causal=True)
    with torch.no_grad():
        forward = best(lambda: scaled_dot_product_attention(q, k, v, is_causal=True))
    backward = best(lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True))

# Causal: half of the keys. Two products forward, five backward.
product = samples * heads * seq * seq * width
for name, seconds, products in [("forward", forward, 2), ("backward", backward, 5)]:
    what = f"PyTorch {torch.__version__} flash attention {name}"
    print(f"{what:<46}  {1e3 * seconds:>9.3f} ms {products * product / seconds / 1e9:>8.0f} GFLOP/s")
