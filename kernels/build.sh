#!/bin/sh
# Compiles kernels/*.cu into OUT/*.fatbin: machine code for sm_80, sm_90a and sm_100, and PTX for later
# GPUs. The PTX of which the machine code is made remains in OUT/*.80.ptx and OUT/*.90a.ptx, which the tests
# execute (tests/ptx). Prints nothing and does nothing if they are up to date.
#   kernels/build.sh OUT             exit code 3 without nvcc
#   kernels/build.sh OUT --install   without nvcc, installs the compiler from PyPI in .toolchain/cuda
#   kernels/build.sh OUT --compiler  only installs the compiler
# With SM70=1 also compiles OUT/sm_70/*.cubin for the V100: by nvcc of CUDA 12, or by NVRTC 12.9 in
# .toolchain/cuda12, which --install installs from PyPI. Exit code 4 without either.
# Errors are: any warning, a register that is spilled to memory, wgmma that ptxas serializes (C7510),
# and setmaxnreg that ptxas ignores (C7508).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$1
own="$here/../.toolchain/cuda"
own12="$here/../.toolchain/cuda12"

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
if [ -z "$nvcc" ] && [ -n "${2:-}" ]; then
    echo "no nvcc in CUDA_HOME or PATH: getting the compiler from PyPI into .toolchain/cuda" >&2
    "${PYTHON:-python3}" -m venv "$own.venv"
    "$own.venv/bin/pip" install --quiet --target "$own" nvidia-cuda-nvcc==13.0.88 \
        nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85 nvidia-cuda-runtime==13.0.96 \
        nvidia-nvvm==13.0.88 nvidia-cuda-nvdisasm==13.2.51 # the disassembler is for tests/ops
    nvcc=$(find_nvcc)
fi
[ -n "$nvcc" ] || exit 3
[ "${2:-}" != --compiler ] || exit 0

mkdir -p "$out"
"$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p' >"$out/release"

# Whether output $1 is missing or out of date. $1.made-of has a digest of source $2, the headers, these
# scripts and the compiler's version.
common=$(cat "$here"/*.cuh "$here"/build.sh "$here"/nvrtc.py "$out/release" | sha256sum)
stale() { # output, source
    [ ! -e "$1" ] ||
        [ "$(cat "$1.made-of" 2>/dev/null)" != "$({ cat "$2"; echo "$common"; } | sha256sum)" ]
}
# Compresses the images to a fifth if the compiler supports it (CUDA 12.8).
smaller=$("$nvcc" --help | grep -q -e --compress-mode && echo --compress-mode=size || true)
stale_sources() {
    for source in "$here"/*.cu; do
        stale "$out/$(basename "$source" .cu).fatbin" "$source" && echo "$source"
    done
}
# Runs one compiler per core, the longest source first.
# shellcheck disable=SC2016
stale_sources | xargs -r -d "\n" ls -S |
    nvcc="$nvcc" out="$out" smaller="$smaller" common="$common" xargs -r -d "\n" -n 1 -P "$(nproc)" sh -euc '
    name=$(basename "$1" .cu)
    fatbin="$out/$name.fatbin"
    mkdir -p "$fatbin.$$.parts"
    "$nvcc" -std=c++17 -O3 -fatbin -Werror all-warnings -Xptxas -warn-spills --threads 0 $smaller \
        --keep --keep-dir "$fatbin.$$.parts" \
        -gencode arch=compute_80,code=[sm_80,compute_80] \
        -gencode arch=compute_90a,code=sm_90a \
        -gencode arch=compute_100,code=sm_100 \
        -o "$fatbin.$$" "$1" 2>"$fatbin.$$.log" || { cat "$fatbin.$$.log" >&2; rm -r "$fatbin.$$.parts"; exit 1; }
    cat "$fatbin.$$.log" >&2
    if grep -q -e C7508 -e C7510 "$fatbin.$$.log"; then
        echo "$1: ptxas serializes wgmma or ignores setmaxnreg" >&2
        exit 1
    fi
    rm "$fatbin.$$.log"
    for arch in 80 90a; do mv "$fatbin.$$.parts/$name.compute_$arch.ptx" "$out/$name.$arch.ptx"; done
    rm -r "$fatbin.$$.parts"
    mv "$fatbin.$$" "$fatbin"
    { cat "$1"; echo "$common"; } | sha256sum >"$fatbin.made-of"' compile

[ "${SM70:-}" = 1 ] || exit 0
# CUDA 13 does not support sm_70, which lacks mma in bf16, cp.async and ldmatrix: attention.cu is enough.
python=${PYTHON:-python3}
case $(cat "$out/release") in
12.*) release=$(cat "$out/release") ;;
*) release=12.9 ;;
esac
if [ "$release" != "$(cat "$out/release")" ] && [ ! -e "$own12/nvidia/cuda_nvrtc" ]; then
    [ "${2:-}" = --install ] || exit 4
    echo "SM70=1: getting NVRTC 12.9 from PyPI into .toolchain/cuda12" >&2
    "$python" -m venv "$own.venv"
    "$own.venv/bin/pip" install --quiet --target "$own12" nvidia-cuda-nvrtc-cu12==12.9.86 \
        nvidia-cuda-runtime-cu12==12.9.79 nvidia-cuda-cccl-cu12==12.9.27
fi
mkdir -p "$out/sm_70"
echo "$release" >"$out/sm_70/release"
for source in "$here"/*.cu; do
    name=$(basename "$source" .cu)
    cubin="$out/sm_70/$name.cubin"
    case $name in attention_mma | attention_hopper*) continue ;; esac
    stale "$cubin" "$source" || continue
    if [ "$release" = "$(cat "$out/release")" ]; then
        "$nvcc" -std=c++17 -O3 -cubin -Werror all-warnings -Xptxas -warn-spills -arch=sm_70 \
            -Wno-deprecated-gpu-targets -o "$cubin.$$" "$source"
    else
        "$python" "$here/nvrtc.py" "$own12" "$source" "$cubin.$$"
    fi
    mv "$cubin.$$" "$cubin"
    { cat "$source"; echo "$common"; } | sha256sum >"$cubin.made-of"
done
