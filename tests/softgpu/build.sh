#!/bin/sh
# Compiles the software stand-in for a GPU and its kernels into OUT: libcuda.so.1, libcublasLt.so.13 (and
# .12), libnccl.so.2, libnvidia-ml.so.1, a fatbin for GPTRAIN_CUDA_KERNELS that is only a magic number, and
# `planted`, programs with faults that the stand-in must detect. Does nothing if they are up to date.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
kernels="$here/../../kernels"
out=$1
cxx=${CXX:-c++}
# Code for this processor with the bits of any other: -ffp-contract=off, because fused products and sums
# round differently. Without AVX-512, whose registers the fibers' switch does not save.
flags="-std=c++20 -O2 -march=native -mno-avx512f -ffp-contract=off -fPIC -fvisibility=hidden -DSOFTGPU -Wall -Wextra -Werror
    -Wno-unknown-pragmas -I$here -I$kernels"
# Undefined behaviour in a kernel ends it (`misuse` in fibers.cpp): unaligned addresses, an index beyond an
# array, a shift by a word's width, a float that does not fit its integer.
checked="-fsanitize=alignment,bounds,shift,float-cast-overflow -fsanitize-undefined-trap-on-error"
mkdir -p "$out"
# Tests that start it at once wait for the first.
exec 9>"$out/lock"
flock 9 2>/dev/null || true

compile() { # source
    object="$out/$(basename "$1").o"
    if [ ! -e "$object" ] ||
        [ -n "$(find "$1" "$here"/*.h "$kernels"/*.cuh "$here/build.sh" -newer "$object")" ]; then
        case $1 in */planted.cpp | *.cu) also=$checked ;; *) also= ;; esac
        # shellcheck disable=SC2086
        "$cxx" $flags $also -x c++ -c -o "$object.$$" "$1"
        mv "$object.$$" "$object"
    fi
}

link() { # library or program, objects and flags
    library="$out/$1"
    shift
    case $library in *.so.*) shared=-shared ;; *) shared=-pthread ;; esac
    if [ ! -e "$library" ] || [ -n "$(find "$out"/*.o -newer "$library")" ]; then
        "$cxx" $shared -o "$library.$$" "$@" "-Wl,-rpath,\$ORIGIN"
        mv "$library.$$" "$library"
    fi
}

for source in "$here"/*.cpp "$kernels"/*.cu; do compile "$source"; done
link libcuda.so.1 "$out"/fibers.cpp.o "$out"/hopper.cpp.o "$out"/driver.cpp.o \
    "$out"/graphs.cpp.o "$out"/*.cu.o -Wl,-soname,libcuda.so.1
link libcublasLt.so.13 "$out"/cublaslt.cpp.o "$out"/libcuda.so.1
[ -e "$out/libcublasLt.so.12" ] || ln -s libcublasLt.so.13 "$out/libcublasLt.so.12"
link libnccl.so.2 "$out"/nccl.cpp.o "$out"/libcuda.so.1
link libnvidia-ml.so.1 "$out"/nvml.cpp.o
link planted "$out"/planted.cpp.o "$out"/fibers.cpp.o "$out"/hopper.cpp.o "$out"/driver.cpp.o \
    "$out"/graphs.cpp.o "$out"/nccl.cpp.o
# Written once, because other tests may be reading them.
[ -e "$out/release" ] || echo 13.0 >"$out/release"
[ -e "$out/stand-in.fatbin" ] || printf '\120\355\125\272' >"$out/stand-in.fatbin"
