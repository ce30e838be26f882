"""Compiles a kernel file for sm_70 without nvcc 12, by NVRTC of the CUDA 12 wheels.

    nvrtc.py FOLDER_OF_WHEELS SOURCE OUT      warnings and spilled registers are errors
"""

import ctypes
import sys
from pathlib import Path

# Warning that NVRTC always prints for sm_70.
OLD = "nvrtc: warning: Architectures prior to '<compute/sm>_75' are deprecated"


def main(wheels: Path, source: Path, out: Path) -> None:
    library = ctypes.CDLL(str(wheels / "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"))
    library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def call(name: str, *arguments) -> None:
        status = getattr(library, name)(*arguments)
        if status != 0:
            sys.exit(f"{source.name}: {library.nvrtcGetErrorString(status).decode()}")

    def read(kind: str) -> bytes:
        size = ctypes.c_size_t()
        call(f"nvrtcGet{kind}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        call(f"nvrtcGet{kind}", program, text)
        return text.raw

    program = ctypes.c_void_p()
    text, name = source.read_bytes(), str(source).encode()
    call("nvrtcCreateProgram", ctypes.byref(program), text, name, 0, None, None)
    folders = [source.parent, *(wheels / "nvidia").glob("*/include")]
    options = ["--gpu-architecture=sm_70", "--std=c++17", "--ptxas-options=-warn-spills"]
    options += ["-default-device"]
    options += [f"--include-path={folder}" for folder in folders]
    listed = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    status = library.nvrtcCompileProgram(program, len(options), listed)
    lines = read("ProgramLog").rstrip(b"\0").decode().splitlines()
    said = [line for line in lines if line.strip() and not line.startswith(OLD)]
    if status != 0 or said:
        sys.exit("\n".join(said) or f"{source.name}: NVRTC status {status}")
    out.write_bytes(read("CUBIN"))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
