#!/usr/bin/env python3
"""PyTorch's fused AdamW on the CPU, f32: one line, as `cargo bench --bench ops -- cpu adamw` prints its
own.

    torch_adamw.py WEIGHTS THREADS
"""
import sys
import time

import torch

weights, threads = map(int, sys.argv[1:])
torch.set_num_threads(threads)
w = torch.nn.Parameter(torch.randn(weights) * 0.02)
w.grad = torch.randn(weights) * 0.02
optimizer = torch.optim.AdamW([w], lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
times = []
for _ in range(12):
    start = time.perf_counter()
    optimizer.step()
    times.append(time.perf_counter() - start)
best = min(times[2:])
what = f"PyTorch {torch.__version__} AdamW, fused, f32, {threads} threads"
print(f"{what:<48}  {1e3 * best:>9.3f} ms {28 * weights / best / 1e9:>8.1f} GB/s")
