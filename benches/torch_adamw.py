#!/usr/bin/env python3
"""Times PyTorch's fused AdamW on the CPU in f32, and bitsandbytes' AdamW8bit if it is installed: a line
each, in the format of `cargo bench --bench ops -- cpu adam`.

    torch_adamw.py WEIGHTS THREADS
"""
import os
import sys
import time

os.environ["OMP_NUM_THREADS"] = sys.argv[2]

import torch

weights, threads = map(int, sys.argv[1:])
torch.set_num_threads(threads)


def measure(name, make, each):
    """Prints the best time of ten updates. `each`: bytes read and written per weight."""
    w = torch.nn.Parameter(torch.randn(weights) * 0.02)
    w.grad = torch.randn(weights) * 0.02
    optimizer = make([w], lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
    times = []
    for _ in range(12):
        start = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - start)
    best = min(times[2:])
    what = f"{name}, f32, {threads} threads"
    rate, each_ns = each * weights / best / 1e9, 1e9 * best / weights
    print(f"{what:<48}  {1e3 * best:>9.3f} ms {rate:>8.1f} GB/s {each_ns:.2f} ns")


fused = lambda *args, **settings: torch.optim.AdamW(*args, **settings, fused=True)
measure(f"PyTorch {torch.__version__} AdamW, fused", fused, 28)
try:
    import bitsandbytes
except ImportError:
    print("no bitsandbytes to compare adam8bit with")
else:
    # Codes in blocks of 256 weights, with two scales per block.
    measure(f"bitsandbytes {bitsandbytes.__version__} AdamW8bit", bitsandbytes.optim.AdamW8bit, 16 + 16 / 256)
