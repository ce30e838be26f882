#!/bin/sh
# Compiles the kernels without instructions of NVIDIA's for AMD's gfx90a (MI200): OUT/gfx90a/*.co, and
# OUT/gfx90a/resources.txt with the resources of every kernel. This keeps the sources portable. Nothing
# loads the result: gptrain has no backend for AMD.
#   kernels/amd.sh OUT             exit code 3 without the compiler
#   kernels/amd.sh OUT --install   without clang 15, unpacks Debian 12's packages in .toolchain/amd
# Errors are: any warning but that of a loop that is not unrolled; a vector register that is spilled to
# memory (scalar ones go to lanes of vector registers), but for two of a kernel of 896 threads; more than
# 64 KiB of static shared memory; more than 96 bytes of scratch per thread: clang 15 leaves the arrays of
# `load` and `store` (common.cuh) in memory in some kernels.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1/gfx90a"
out=$(cd "$1/gfx90a" && pwd)
own="$here/../.toolchain/amd"
packages="clang-15 lld-15 libclang-common-15-dev libclang-cpp15 libllvm15 libamdhip64-dev rocm-device-libs"

[ -x "$own/usr/lib/llvm-15/bin/clang" ] && root=$own/usr || root=/usr
if [ ! -x "$root/lib/llvm-15/bin/clang" ] || [ ! -e "$root/include/hip/hip_runtime.h" ]; then
    [ "${2:-}" = --install ] && command -v apt-get dpkg >/dev/null || exit 3
    echo "AMD=1: getting $packages from Debian into .toolchain/amd" >&2
    mkdir -p "$own.debs"
    # shellcheck disable=SC2086
    (cd "$own.debs" && apt-get download -q $packages >&2)
    for package in "$own.debs"/*.deb; do dpkg -x "$package" "$own"; done
    rm -r "$own.debs"
    root=$own/usr
fi

llvm="$root/lib/llvm-15"
export LD_LIBRARY_PATH="$llvm/lib:$root/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export root llvm out here
common=$(cat "$here"/*.cuh "$here/amd.sh" | sha256sum)
export common
# shellcheck disable=SC2016
find "$here" -name "*.cu" ! -name "attention_mma.cu" ! -name "attention_hopper*" -print0 |
    xargs -0 ls -S | xargs -d "\n" -n 1 -P "$(nproc)" sh -euc '
    name=$(basename "$1" .cu)
    made_of=$({ cat "$1"; echo "$common"; } | sha256sum)
    [ "$(cat "$out/$name.made-of" 2>/dev/null)" != "$made_of" ] || exit 0
    rm -f "$out/$name.made-of"
    "$llvm/bin/clang++" -x hip --offload-arch=gfx90a --offload-device-only --no-gpu-bundle-output \
        -S -O3 -std=c++17 -ffp-contract=off -Werror -Wno-pass-failed -nogpuinc \
        -resource-dir "$llvm/lib/clang/15.0.6" \
        -include "$llvm/lib/clang/15.0.6/include/__clang_hip_runtime_wrapper.h" -isystem "$root/include" \
        -D__HIP_PLATFORM_AMD__=1 -D__HIP_PLATFORM_HCC__=1 \
        --rocm-device-lib-path="$root/lib/x86_64-linux-gnu/amdgcn/bitcode" -o "$out/$name.s" "$1"
    "$llvm/bin/clang" -target amdgcn-amd-amdhsa -mcpu=gfx90a -o "$out/$name.co" "$out/$name.s"
    echo "$made_of" >"$out/$name.made-of"' compile

# The metadata that the assembler puts into the code objects.
awk '
    BEGIN { known["norm_residual_backward_wide16_f32"] = 2 }
    $1 == ".group_segment_fixed_size:" { shared = $2 }
    $1 == ".private_segment_fixed_size:" { scratch = $2 }
    $1 == ".symbol:" { name = $2 }
    $1 == ".vgpr_count:" { registers = $2 }
    $1 == ".vgpr_spill_count:" {
        sub(/\.kd$/, "", name)
        line = name ": " registers " registers, " $2 " spilled, " scratch " bytes of scratch, " shared \
            " of shared memory"
        print line
        kernels++
        if ($2 > known[name] + 0 || scratch > 96 || shared > 65536) { print line >"/dev/stderr"; bad = 1 }
    }
    END {
        if (kernels < 200) { print kernels + 0 " kernels in all" >"/dev/stderr"; bad = 1 }
        exit bad
    }' "$out"/*.s >"$out/resources.txt"
