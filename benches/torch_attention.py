#!/usr/bin/env python3
"""Times PyTorch's flash attention (FlashAttention-2), causal, in bf16, on a GPU: a line for forward and one
for backward, in the format of `cargo bench --bench ops -- cuda attention`.

    torch_attention.py SAMPLES HEADS KV_HEADS SEQ HEAD_WIDTH
"""
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

samples, heads, kv_heads, seq, width = map(int, sys.argv[1:])
q, k, v = (torch.randn(samples, number, seq, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
           for number in (heads, kv_heads, kv_heads))
attend = lambda: scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=kv_heads < heads)
dy = torch.randn_like(q)


def best(run):
    """Seconds of a call: the best of ten runs of twenty calls."""
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
    y = attend()
    with torch.no_grad():
        forward = best(attend)
    backward = best(lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True))

# The causal mask leaves half of the scores. Forward has two products, backward five.
product = samples * heads * seq * seq * width
for name, seconds, products in [("forward", forward, 2), ("backward", backward, 5)]:
    what = f"PyTorch {torch.__version__} flash attention {name}"
    print(f"{what:<46}  {1e3 * seconds:>9.3f} ms {products * product / seconds / 1e9:>8.0f} GFLOP/s")
