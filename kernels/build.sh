#!/bin/sh
# Compiles kernels/*.cu into OUT/*.fatbin: machine code for sm_80, sm_90a and sm_100, and PTX for
# what comes after. Prints nothing and does nothing where they are up to date.
#   kernels/build.sh OUT             exit code 3: there is no nvcc
#   kernels/build.sh OUT --install   without one, gets the compiler from PyPI into .toolchain/cuda
# A warning is an error, and so is a register that is spilled to memory.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$1
own="$here/../.toolchain/cuda"

find_nvcc() {
    for nvcc in "${NVCC:-}" "${CUDA_HOME:-}/bin/nvcc" "$(command -v nvcc || true)" \
        "$own/nvidia/cu13/bin/nvcc"; do
        if [ -x "$nvcc" ]; then
            echo "$nvcc"
            return
        fi
    done
}

nvcc=$(find_nvcc)
if [ -z "$nvcc" ] && [ "${2:-}" = --install ]; then
    echo "no nvcc in CUDA_HOME or PATH: getting the compiler from PyPI into .toolchain/cuda" >&2
    "${PYTHON:-python3}" -m venv "$own.venv"
    "$own.venv/bin/pip" install --quiet --target "$own" nvidia-cuda-nvcc==13.0.88 \
        nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85 nvidia-cuda-runtime==13.0.96 \
        nvidia-nvvm==13.0.88
    nvcc=$(find_nvcc)
fi
[ -n "$nvcc" ] || exit 3

mkdir -p "$out"
"$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p' >"$out/release"
for source in "$here"/*.cu; do
    name=$(basename "$source" .cu)
    fatbin="$out/$name.fatbin"
    if [ -e "$fatbin" ] &&
        [ -z "$(find "$source" "$here"/*.cuh "$here/build.sh" -newer "$fatbin")" ]; then
        continue
    fi
    "$nvcc" -std=c++17 -O3 -fatbin -Werror all-warnings -Xptxas -warn-spills --threads 0 \
        -gencode arch=compute_80,code=[sm_80,compute_80] \
        -gencode arch=compute_90a,code=sm_90a \
        -gencode arch=compute_100,code=sm_100 \
        -o "$fatbin.$$" "$source"
    mv "$fatbin.$$" "$fatbin"
done
