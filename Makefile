# make run     build, train about a minute on the bundled corpus, show what was learned
# make test    all tests
# make help    the rest

GPTRAIN = target/release/gptrain
TOOLCHAIN = .toolchain
PYTHON ?= python3
export PYTHON

.PHONY: run build test lint bench-cpu bench release help

run: build
	$(GPTRAIN) run manifests/quickstart.yaml
	@echo
	$(GPTRAIN) sample runs/quickstart --prompt "It is a truth universally acknowledged, that" --tokens 100
	@echo
	$(GPTRAIN) report runs/quickstart

build:
	cargo build --release --locked

test:
	@if cargo nextest --version >/dev/null 2>&1; then \
		cargo nextest run --locked --no-fail-fast; else cargo test --locked --no-fail-fast; fi

lint:
	cargo fmt --check
	cargo clippy --all-targets --locked -- -D warnings

# Against PyTorch in the same run: PYTHON=/path/to/python/with/torch make bench-cpu
bench-cpu:
	cargo bench --locked --bench cpu_ops
	cargo bench --locked --bench cpu_train
	cargo bench --locked --bench cpu_train -- --precision bf16

# One file for any Linux with glibc 2.28 or newer (zig is the linker).
release:
	$(PYTHON) -m venv $(TOOLCHAIN)
	$(TOOLCHAIN)/bin/pip install --quiet ziglang==0.13.0.post1 cargo-zigbuild
	PATH="$(CURDIR)/$(TOOLCHAIN)/bin:$$PATH" cargo zigbuild --release --locked \
		--target x86_64-unknown-linux-gnu.2.28
	./benches/check_binary.sh target/x86_64-unknown-linux-gnu/release/gptrain

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile
	@echo "make lint      format and clippy, warnings denied"
	@echo "make bench-cpu speed against PyTorch (PYTHON with torch)"
	@echo "make release   the binary for any Linux with glibc 2.28 or newer"
