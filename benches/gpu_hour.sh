#!/usr/bin/env bash
# The first hour on a real GPU, in steps that end within eight minutes each.
#
#   benches/gpu_hour.sh pack            with Rust: target/gpu-hour and its .tar.xz, all that a GPU's machine needs
#   ./gpu_hour.sh STEP...               there, in the unpacked folder: $OUT/STEP.txt, by default in out/
#   benches/gpu_hour.sh results FOLDER  the tables of such a folder, to the end of benches/RESULTS.md
#
# Steps, in this order; `all` is each of them. One that fails leaves the others be:
#   machine     the GPU, its driver, the libraries that are found, copies and products
#   ops         every op against its definition and the CPU; grids of ranks that share the GPU
#   attention   wgmma against its definition; compute-sanitizer on attention, where there is one
#   train       steps of 124M, 1.5B and 7B: as they are, without graphs, without timing, with wgmma
#               (and in ping-pong), of 8 micro-batches, in fp8
#   products    the blocks' products at full size: held to f64, beside PyTorch's
#   profile     time by kernel of a step beside its data sheet, in bf16 and fp8; by ncu where that is
#   run         the quick start in bf16: replayed bit for bit, on two ranks, killed and resumed
#   nccl        ranks of a grid on one GPU, by NCCL 2.30.3 or newer
#   peers       PyTorch compiled and its flash attention; each op against the GPU's own copy
#
# The archive has no NCCL: a wheel's is 252 MB. PyTorch's is found, and that of 2.15 is 2.30.7, so that
# none is built; an older one makes `nccl` a line that says so.
# LIMIT: seconds of a step, 470. SHAPE: the only shape of train and peers (`trial` is a tiny one). QUICK:
# more settings of the quick start, as `--set model.hidden=64`: a stand-in for a GPU is slow.
set -euo pipefail
STEPS="machine ops attention products train profile run nccl peers"
here=$(cd "$(dirname "$0")" && pwd)

pack() {
    cd "$here/.."
    make --silent gpu-binaries
    folder=target/gpu-hour
    rm -rf "$folder"/{bin,benches,manifests,datasets} # and not the tables in out/
    mkdir -p "$folder/bin" "$folder/benches"
    cp target/gpu/{gptrain,ops,model,bench_train,bench_ops} "$folder/bin/"
    cp target/gpu/torch_*.py "$folder/benches/"
    cp -r manifests datasets "$folder/"
    cp benches/gpu_hour.sh "$folder/"
    tar -C target --exclude=gpu-hour/out -cf - gpu-hour | xz -T0 -9 >"$folder.tar.xz"
    du -h --apparent-size "$folder.tar.xz"
    [ "$(stat -c %s "$folder.tar.xz")" -lt $((64 << 20)) ] || echo "over 64 MiB: too large to be carried" >&2
}

results() { # folder
    {
        printf '\n## First hour on a GPU (%s)\n' "$(date -u +%F)"
        for step in $STEPS; do
            [ -e "$1/$step.txt" ] || continue
            printf '\n`gpu_hour.sh %s`:\n```\n' "$step"
            cat "$1/$step.txt"
            printf '```\n'
        done
    } >>"$here/RESULTS.md"
}

# A line of a step's table; what its commands print goes to its log.
say() { echo "$*" >&3; }
# Runs tests and gives their summary.
tests() { # name, command
    local code=0 said
    said=$("${@:2}" 2>&1) || code=$?
    echo "$said"
    say "$1: $(grep '^test result' <<<"$said" || echo "exit code $code")"
    return $code
}
found() { command -v "$1" || ls "/usr/local/cuda/bin/$1" 2>/dev/null; }

machine() {
    local of=name,driver_version,memory.total,clocks.max.sm,power.limit
    say "$(nvidia-smi --query-gpu=$of --format=csv,noheader || echo 'no nvidia-smi')"
    bin/gptrain bench manifests/quickstart.yaml --quick --set train.device=cuda >&3
}

ops() {
    export GPTRAIN_TEST_GPU=1
    GPTRAIN_AUTOTUNE=0 tests "ops, algorithms as proposed" bin/ops cuda --test-threads 1
    tests "ops, algorithms timed" bin/ops cuda --test-threads 1
    tests "grids on one GPU" bin/model grids_cuda::staged grids_cuda::a_gpu --test-threads 1
}

attention() {
    export GPTRAIN_TEST_GPU=1
    tests "attention by wgmma" bin/ops attention_by_wgmma --test-threads 1
    local sanitizer
    sanitizer=$(found compute-sanitizer) || { say "no compute-sanitizer"; return 0; }
    for tool in memcheck racecheck; do
        tests "attention under $tool" "$sanitizer" --tool "$tool" --error-exitcode 1 \
            --report-api-errors no bin/ops cuda::attention --test-threads 1
    done
}

train() {
    for variant in AS_IS=1 GPTRAIN_CUDA_GRAPHS=0 GPTRAIN_AUTOTUNE=0 GPTRAIN_ATTENTION=wgmma \
        GPTRAIN_ATTENTION=wgmma-pingpong; do
        say "$variant"
        env "$variant" PYTHON=/bin/false bin/bench_train --device cuda --only "${SHAPE:-}" >&3
    done
    say "8 micro-batches a step"
    PYTHON=/bin/false bin/bench_train --device cuda --accumulate 8 --steps 5 --only "${SHAPE:-}" >&3
    say "PRECISION=fp8"
    PYTHON=/bin/false bin/bench_train --device cuda --precision fp8 --only "${SHAPE:-}" >&3
}

products() {
    local models="gpt2 1.5b 7b"
    [ "${SHAPE:-}" != trial ] || models=trial
    for model in $models; do
        say "$model"
        TORCH_PRODUCTS=benches/torch_products.py bin/bench_ops cuda "$model" bf16 products >&3
    done
}

# What `gptrain estimate --list-hardware` calls the GPU.
hardware() {
    case $(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null) in
    *H200*) echo h200-141g ;;
    *A100*) echo a100-80g ;;
    *) echo h100-80g ;;
    esac
}

profile() {
    local ncu csv="$OUT/ncu.csv"
    for precision in bf16 fp8; do
        bin/bench_train --device cuda --only "${SHAPE:-}" --precision $precision \
            --profile "$(hardware)" >&3
    done
    ncu=$(found ncu) || { say "no ncu"; return 0; }
    GPTRAIN_CUDA_GRAPHS=0 PYTHON=/bin/false "$ncu" --clock-control none --cache-control none \
        --metrics gpu__time_duration.sum --csv --log-file "$csv" \
        bin/bench_train --device cuda --only "${SHAPE:-124M}" --steps 1
    python3 - "$csv" >&3 <<'PYTHON'
import collections, csv, sys
lines = [line for line in open(sys.argv[1]) if line.startswith('"')]
times, calls = collections.Counter(), collections.Counter()
for row in csv.DictReader(lines):
    name = row["Kernel Name"].split("(")[0]
    times[name] += float(row["Metric Value"].replace(",", ""))
    calls[name] += 1
whole = sum(times.values())
for name, time in times.most_common(40):
    print(f"{name:60.60} {calls[name]:6} {time / 1e6:10.3f} ms {100 * time / whole:5.1f} %")
PYTHON
}

# The losses of a run's steps, a line each.
losses() { sed -n 's/.*"step":\([0-9]*\).*"lm_loss":\([-+.e0-9]*\).*/\1 \2/p' "$1/metrics.jsonl"; }

quick() { # folder, more settings
    local folder=$1
    shift
    ${EXEC:-} bin/gptrain run manifests/quickstart.yaml --set train.device=cuda --set precision=bf16 \
        --set train.steps=40 --set checkpoint.interval=20 --set "log.folder=$folder" ${QUICK:-} "$@"
}

run() {
    local runs="$OUT/runs"
    rm -rf "$runs"
    quick "$runs/whole"
    say "quick start: $(losses "$runs/whole" | tail -1)"
    local replay
    replay=$(bin/gptrain inspect-ckpt "$runs/whole/checkpoints/step-00000020" --replay 1 2>&1)
    say "$(grep ' again: ' <<<"$replay")"
    quick "$runs/ranks" --set topology.tensor=2 --set comm.gpu_transport=host
    say "two ranks through the host: $(losses "$runs/ranks" | tail -1)"
    # In place of the shell in the background, or that one alone would be killed.
    EXEC=exec quick "$runs/killed" &
    until [ -e "$runs/killed/checkpoints/step-00000020" ] || ! kill -0 $!; do sleep 0.05; done
    kill -9 $! || true
    wait $! || true
    quick "$runs/killed"
    diff <(losses "$runs/whole") <(losses "$runs/killed") && say "killed and resumed: the same losses"
}

nccl() {
    export NCCL_MULTI_RANK_GPU_ENABLE=1 GPTRAIN_CUDA_GRAPHS=all NCCL_DEBUG=VERSION
    export CUDA_MODULE_LOADING=EAGER # no kernel is loaded while a collective waits
    local runs="$OUT/runs" log="$OUT/nccl.log" grid="--set topology.tensor=2 --set topology.data=2"
    rm -rf "$runs"/nccl*
    if ! quick "$runs/nccl" $grid; then
        say "$(grep -m1 -e 'NCCL is missing' -e 'two ranks on one GPU' "$log")" && return 0
        return 1
    fi
    say "$(grep -m1 'NCCL version' "$log" || echo 'NCCL, which does not say its version')"
    say "TP2 x DP2 by NCCL: $(losses "$runs/nccl" | tail -1)"
    NCCL_MAX_CTAS=4 GPTRAIN_SM_MARGIN=${SM_MARGIN:-4} quick "$runs/nccl-margin" $grid
    say "with SMs left to NCCL: $(losses "$runs/nccl-margin" | tail -1)"
    GPTRAIN_TEST_GPU=1 tests "grids by NCCL" bin/model grids_cuda::nccl grids_cuda::ranks \
        grids_cuda::a_pipeline grids_cuda::products --test-threads 1
}

peers() {
    "${PYTHON:-python3}" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null ||
        say "no PyTorch with a GPU in ${PYTHON:-python3}: gptrain alone"
    TORCH_BENCH=benches/torch_gpt2_bench.py bin/bench_train --device cuda --only "${SHAPE:-}" >&3
    [ "${SHAPE:-}" != trial ] || return 0
    for model in gpt2 1.5b 7b; do
        say "$model"
        TORCH_ATTENTION=benches/torch_attention.py bin/bench_ops cuda $model bf16 >&3
    done
}

case ${1:-} in
pack) pack ;;
results) results "$2" ;;
--step)
    cd "$here"
    "$2"
    ;;
"") sed -n '2,/^set/s/^# \{0,1\}//p' "$0" ;;
*)
    cd "$here"
    export OUT=${OUT:-out}
    mkdir -p "$OUT"
    failed=0
    for step in ${*/#all/$STEPS}; do
        [[ " $STEPS " == *" $step "* ]] || { echo "no step $step: $STEPS" >&2; exit 2; }
        code=0
        timeout "${LIMIT:-470}" "$0" --step "$step" 3>"$OUT/$step.txt" >"$OUT/$step.log" 2>&1 || code=$?
        [ $code = 0 ] || { failed=1; echo "failed, exit code $code: $(tail -1 "$OUT/$step.log")" >>"$OUT/$step.txt"; }
        echo "== $step"
        cat "$OUT/$step.txt"
    done
    exit $failed
    ;;
esac
