#!/usr/bin/env python3
"""Times PyTorch's products of bf16 matrices and compares them with f64: a line each, in the format of
`cargo bench --bench ops -- cuda products`.

    torch_products.py [--device cuda|cpu] KINDxMxNxK...      NT: x·wᵀ; NN: dy·w; TN: dyᵀ·x, all in bf16
"""
import sys
import time

import torch

SIDE = 16  # rows and columns of the compared corner of C


def best(run, wait):
    """Seconds of a call: the best of five runs of ten calls."""
    times = []
    for _ in range(6):
        wait()
        start = time.perf_counter()
        for _ in range(10):
            run()
        wait()
        times.append((time.perf_counter() - start) / 10)
    return min(times[1:])


def error(c, a, b):
    """Relative L2 error of a corner of C = A·B, computed in f64 from the bf16 operands."""
    right = a[:SIDE].double().cpu() @ b[:, :SIDE].double().cpu()
    return ((c[:SIDE, :SIDE].double().cpu() - right).norm() / right.norm()).item()


def main():
    words = sys.argv[1:]
    device = words.pop(1) if words and words[0] == "--device" else "cuda"
    words = [word for word in words if word != "--device"]
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    print(f"PyTorch {torch.__version__}")
    for word in words:
        kind, *size = word.split("x")
        m, n, k = map(int, size)
        a = torch.randn((k, m) if kind == "TN" else (m, k), device=device, dtype=torch.bfloat16)
        b = torch.randn((n, k) if kind == "NT" else (k, n), device=device, dtype=torch.bfloat16)
        a, b = a.T if kind == "TN" else a, b.T if kind == "NT" else b
        seconds, c = best(lambda: a @ b, wait), a @ b
        rate, what = 2 * m * n * k / seconds / 1e9, f"PyTorch {kind} {m}x{n}x{k}"
        print(f"{what:<46}  {1e3 * seconds:>9.3f} ms {rate:>8.0f} GFLOP/s  off {error(c, a, b):.1e}")


main()
