#!/usr/bin/env bash
# First hour on a real GPU, or on a processor with many cores, in steps of at most eight minutes.
#
#   benches/gpu_hour.sh pack            needs Rust: writes target/gpu-hour and its .tar.xz for the GPU's machine
#   gpu-hour/gpu_hour.sh STEP...        on that machine, in the unpacked folder: after each step it writes
#                                       $OUT/hour.tar.gz (default beside the script) with all tables so far
#   benches/gpu_hour.sh results FOLDER  appends the tables of an unpacked hour.tar.gz to benches/RESULTS.md
#
# Steps in their order; `all` runs each. After a step or a command that fails, the next ones still run:
#   machine     GPU, driver, libraries that are found, copies and products
#   ops         each op of recorded training steps, from their tensors; every op against its definition and
#               the CPU; NCCL with a communicator of one rank; grids of ranks that share the GPU
#   attention   wgmma against its definition; attention under compute-sanitizer, if there is one
#   products    the blocks' products at full size against f64, and PyTorch's times; rates of wide norms
#   errors      attention, epilogues, activations and norms at full size: largest errors relative to f64, of
#               gptrain and of PyTorch
#   train       steps of 124M, 1.5B and 7B: by default, without graphs, without timing, with attention by
#               mma and by wgmma; the GPU's memory beside the plan
#   llama       steps of a 3B with grouped heads: attention by default, by mma and by wgmma; time by kernel
#   profile     time by kernel of a step beside its data sheet, in bf16 and fp8; by ncu if there is one
#   run         the quick start in bf16: replayed bit for bit, on two ranks (and on two GPUs, if present),
#               killed and resumed; losses of GPT-2 and Llama beside the CPU's, in f32 and bf16
#   peers       PyTorch compiled and its flash attention; each op against the GPU's own copy
#   offload     states in the host's memory: grids, and the quick start's losses with and without
#   more        steps of 8 micro-batches, in fp8 (also with fast sums), with wgmma in ping-pong
#   nccl        ranks of a grid on one GPU, by NCCL 2.30.3 or newer: two, then four, then graphs
#
# Steps for a machine with many cores, which `all` does not run:
#   cpu         processors and memory, copies and products; training steps on all cores in f32 and bf16,
#               PyTorch beside
#   cores       the same steps on 1, 2, 4, … cores, then on all cores of each NUMA node at once; each op's
#               share of what registers and memory reach
#
# The archive does not contain NCCL, whose wheel has 252 MB. PyTorch's NCCL is used; PyTorch 2.15 has 2.30.7.
# With an older NCCL the table of `nccl` is one line.
# Tables, logs, runs and the cache of algorithms are in work/ beside the script.
#
# LIMIT: seconds of a step, default 470. BUDGET: seconds of the whole call, which shorten its last steps.
# SHAPE: only shape of train and peers; `trial` selects tiny shapes in all steps. QUICK: more settings of the
# quick start, such as `--set model.hidden=64`. LONG: steps of the run that is killed. Both shorten a trial on
# the software stand-in, which is slow.
set -euo pipefail
STEPS="machine ops attention products errors train llama profile run peers offload more nccl"
CPU_STEPS="cpu cores"
here=$(dirname "$(readlink -f "$0")")

pack() {
    cd "$here/.."
    make --silent gpu-binaries
    folder=target/gpu-hour
    rm -rf "$folder"/{bin,benches,manifests,datasets} # keeps the tables in work/
    mkdir -p "$folder/bin" "$folder/benches"
    cp target/gpu/{gptrain,ops,model,bench_train,bench_ops} "$folder/bin/"
    cp target/gpu/torch_*.py "$folder/benches/"
    cp -r manifests datasets "$folder/"
    cp benches/gpu_hour.sh "$folder/"
    tar -C target --exclude=gpu-hour/work --exclude=gpu-hour/hour.tar.gz -cf - gpu-hour | xz -T0 -9 >"$folder.tar.xz"
    du -h --apparent-size "$folder.tar.xz"
    [ "$(stat -c %s "$folder.tar.xz")" -lt $((64 << 20)) ] || echo "over 64 MiB: too large for the transfer" >&2
}

results() { # folder
    {
        printf '\n## First hour on a GPU (%s)\n' "$(date -u +%F)"
        for step in $STEPS $CPU_STEPS; do
            [ -e "$1/$step.txt" ] || continue
            printf '\n`gpu_hour.sh %s`:\n```\n' "$step"
            cat "$1/$step.txt"
            printf '```\n'
        done
    } >>"$here/RESULTS.md"
}

# Writes a line of the step's table. The output of its commands goes to the log.
say() { echo "$*" >&3; }
# 1 after a command of this step has failed.
red=0
# Runs tests; writes their summary and the names of those that failed.
tests() { # name, command
    local code=0 said
    said=$("${@:2}" 2>&1) || code=$?
    echo "$said"
    say "$1: $(grep '^test result' <<<"$said" || echo "exit code $code")"
    # A filter that matches no test proves nothing.
    if [ $code = 0 ]; then
        ! grep -q '^test result: ok. 0 passed' <<<"$said" || { red=1; say "  no test has such a name"; }
        return
    fi
    red=1
    say "  failed: $(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' <<<"$said" | tr '\n' ' ')"
    # A process that ends inside a test prints no summary.
    grep -q '^test result' <<<"$said" || say "  ended in: $(grep '^test ' <<<"$said" | tail -1)"
}
# Runs a command whose output belongs to the table; writes a line if it fails.
table() {
    local code=0
    "$@" >&3 || code=$?
    [ $code = 0 ] && return
    red=1
    say "failed, exit code $code: $*"
}
found() { command -v "$1" || ls "/usr/local/cuda/bin/$1" 2>/dev/null; }

machine() {
    local of=name,driver_version,memory.total,clocks.max.sm,power.limit
    say "$(nvidia-smi --query-gpu=$of --format=csv,noheader || echo 'no nvidia-smi')"
    say "libraries: ${GPTRAIN_CUDA_LIBRARIES:-where the loader looks}"
    table bin/gptrain bench manifests/quickstart.yaml --quick --set train.device=cuda
}

ops() {
    export GPTRAIN_TEST_GPU=1
    tests "ops of recorded steps" bin/model replayed:: --test-threads 1
    GPTRAIN_AUTOTUNE=0 tests "ops, algorithms as proposed" bin/ops cuda --test-threads 1
    tests "ops, algorithms timed" bin/ops cuda --test-threads 1
    tests "NCCL with one rank" bin/model grids_cuda::nccl_with_one_rank --test-threads 1
    tests "grids on one GPU" bin/model grids_cuda::staged grids_cuda::a_gpu --test-threads 1
}

attention() {
    export GPTRAIN_TEST_GPU=1
    tests "attention by wgmma" bin/ops attention_by_wgmma --test-threads 1
    local sanitizer
    sanitizer=$(found compute-sanitizer) || { say "no compute-sanitizer"; return 0; }
    local before
    for tool in memcheck racecheck; do
        before=$red
        tests "attention under $tool" "$sanitizer" --tool "$tool" --error-exitcode 1 \
            --report-api-errors no bin/ops hopper::attention --test-threads 1
        # racecheck may report false races of TMA's copies.
        [ $tool = memcheck ] || red=$before
    done
}

train() {
    for variant in AS_IS=1 GPTRAIN_CUDA_GRAPHS=0 GPTRAIN_AUTOTUNE=0 GPTRAIN_ATTENTION=mma \
        GPTRAIN_ATTENTION=wgmma; do
        say "$variant"
        table env "$variant" PYTHON= bin/bench_train --device cuda --only "${SHAPE:-}"
    done
}

llama() {
    local shape="Llama 3.2 3B"
    [ "${SHAPE:-}" != trial ] || shape="trial Llama"
    export PYTHON=
    for variant in AS_IS=1 GPTRAIN_ATTENTION=mma GPTRAIN_ATTENTION=wgmma; do
        say "$variant"
        table env "$variant" bin/bench_train --device cuda --only "$shape"
    done
    table bin/bench_train --device cuda --only "$shape" --profile "$(hardware)"
}

more() {
    export PYTHON=
    say "8 micro-batches a step"
    table bin/bench_train --device cuda --accumulate 8 --steps 5 --only "${SHAPE:-}"
    say "PRECISION=fp8"
    table bin/bench_train --device cuda --precision fp8 --only "${SHAPE:-}"
    say "PRECISION=fp8 GPTRAIN_FP8_FAST=1"
    GPTRAIN_FP8_FAST=1 table bin/bench_train --device cuda --precision fp8 --only "${SHAPE:-}"
    say "GPTRAIN_ATTENTION=wgmma-pingpong"
    GPTRAIN_ATTENTION=wgmma-pingpong table bin/bench_train --device cuda --only "${SHAPE:-}"
}

offload() {
    export GPTRAIN_TEST_GPU=1
    tests "grids with states on the host" bin/model offload:: --test-threads 1
    local runs="$WORK/runs"
    rm -rf "$runs/device" "$runs/host"
    quick "$runs/device"
    quick "$runs/host" --set topology.offload=full
    if diff <(losses "$runs/device") <(losses "$runs/host"); then
        say "all of a step's states on the host: the same losses"
    else
        red=1
        say "all of a step's states on the host: other losses"
    fi
}

products() {
    local models="gpt2 1.5b 7b"
    [ "${SHAPE:-}" != trial ] || models=trial
    for model in $models; do
        say "$model"
        TORCH_PRODUCTS=benches/torch_products.py table bin/bench_ops cuda "$model" bf16 products
    done
    say "norms of rows of 14,336 and 16,384"
    table bin/bench_ops cuda "${SHAPE:-llama}" bf16 norms
}

errors() {
    local models="gpt2 1.5b 7b llama"
    # Without CUDA, PyTorch repeats small shapes on the CPU.
    [ "${SHAPE:-}" != trial ] || { models="trial trial-llama"; export TORCH_DEVICE=cpu; }
    for model in $models; do
        say "$model"
        TORCH_ERRORS=benches/torch_errors.py table bin/bench_ops cuda "$model" bf16 errors
    done
}

# Name of the GPU in `gptrain estimate --list-hardware`.
hardware() {
    case $(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null) in
    *H200*) echo h200-141g ;;
    *A100*) echo a100-80g ;;
    *) echo h100-80g ;;
    esac
}

profile() {
    local ncu csv="$WORK/ncu.csv"
    for precision in bf16 fp8; do
        table bin/bench_train --device cuda --only "${SHAPE:-}" --precision $precision \
            --profile "$(hardware)"
    done
    ncu=$(found ncu) || { say "no ncu"; return 0; }
    GPTRAIN_CUDA_GRAPHS=0 PYTHON= "$ncu" --clock-control none --cache-control none \
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

# Losses of a run: a line per step.
losses() { [ ! -e "$1/metrics.jsonl" ] || sed -n 's/.*"step":\([0-9]*\).*"lm_loss":\([-+.e0-9]*\).*/\1 \2/p' "$1/metrics.jsonl"; }

quick() { # folder, more settings
    local folder=$1
    shift
    ${EXEC:-} bin/gptrain run manifests/quickstart.yaml --set train.device=cuda --set precision=bf16 \
        --set train.steps=40 --set checkpoint.interval=20 --set "log.folder=$folder" ${QUICK:-} "$@"
}

run() {
    local runs="$WORK/runs"
    rm -rf "$runs"
    quick "$runs/whole"
    say "quick start: $(losses "$runs/whole" | tail -1)"
    local replay
    replay=$(bin/gptrain inspect-ckpt "$runs/whole/checkpoints/step-00000020" --replay 1 2>&1) || red=1
    say "$(grep ' again: ' <<<"$replay" || tail -1 <<<"$replay")"
    quick "$runs/ranks" --set topology.tensor=2 --set comm.gpu_transport=host
    say "two ranks through the host: $(losses "$runs/ranks" | tail -1)"
    if [ "${GPUS:-$(nvidia-smi -L 2>/dev/null | wc -l)}" -ge 2 ]; then
        quick "$runs/gpus" --set topology.data=2 || red=1
        say "two GPUs, a process each: $(losses "$runs/gpus" | tail -1)"
    fi
    killed "$runs"
    local family precision
    for family in quickstart llama-quickstart; do
        for precision in f32 bf16; do beside "$runs" $family $precision; done
    done
}

# Compares a run that is killed by SIGKILL and resumed with one that is not interrupted.
killed() { # folder
    local runs=$1 steps=${LONG:-2000} code=0
    local long="--set train.steps=$steps --set checkpoint.interval=$((steps / 20))"
    quick "$runs/long" $long
    # exec replaces the background shell, so that SIGKILL reaches gptrain itself.
    EXEC=exec quick "$runs/killed" $long &
    local first
    first="$runs/killed/checkpoints/step-$(printf %08d $((steps / 20)))"
    until [ -e "$first" ] || ! kill -0 $!; do sleep 0.05; done
    kill -9 $! || true
    wait $! || code=$?
    if [ $code != 137 ]; then
        red=1
        say "not killed: the run ended with exit code $code before"
        return
    fi
    quick "$runs/killed" $long
    if diff <(losses "$runs/long") <(losses "$runs/killed"); then
        say "killed after step $((steps / 20)) of $steps and resumed: the same losses"
    else
        red=1
        say "killed and resumed: other losses"
    fi
}

# Compares the losses of the first steps on the GPU with the CPU's.
beside() { # folder, manifest, precision
    local device folder
    for device in cuda cpu; do
        folder="$1/$2-$3-$device"
        bin/gptrain run "manifests/$2.yaml" --set train.device=$device --set precision=$3 --set train.steps=40 \
            --set "log.folder=$folder" ${QUICK:-} || red=1
    done
    say "$2 in $3: $(paste -d ' ' <(losses "$1/$2-$3-cuda") <(losses "$1/$2-$3-cpu") | awk '
        { off = ($2 - $4) / $4; if (off < 0) off = -off; if (off > most) { most = off; at = $1 } gpu = $2; cpu = $4 }
        END { printf "loss %s on the GPU, %s on the CPU, at most %.2e apart (step %d of %d)", gpu, cpu, most, at, NR }')"
}

# Runs ranks as processes, so that ranks on one GPU share no hardware queue. A time limit ends a run that
# hangs, because it would keep the GPU from the next one.
ranks() { # ranks, folder, more settings
    local count=$1 folder=$2 pids="" code=0 port=$((20000 + RANDOM % 20000))
    shift 2
    export MASTER_ADDR=127.0.0.1 MASTER_PORT=$port WORLD_SIZE=$count LOCAL_WORLD_SIZE=$count
    for ((rank = 0; rank < count; rank++)); do
        RANK=$rank LOCAL_RANK=$rank EXEC="timeout -s KILL ${RUN_LIMIT:-90}" quick "$folder" "$@" &
        pids="$pids $!"
    done
    for pid in $pids; do wait "$pid" || code=$?; done
    unset MASTER_ADDR MASTER_PORT WORLD_SIZE LOCAL_WORLD_SIZE
    return $code
}

nccl() {
    export NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_DEBUG=VERSION NCCL_LAUNCH_ORDER_IMPLICIT=1
    # NCCL's guide: the kernels of all ranks must fit on the GPU together, or they hang.
    export CUDA_DEVICE_MAX_CONNECTIONS=32 NCCL_MAX_CTAS=2
    local runs="$WORK/runs" log="$WORK/nccl.log" two="--set topology.tensor=2"
    local four="$two --set topology.data=2" pipe="--set topology.pipeline=2"
    rm -rf "$runs"/nccl*
    if ! GPTRAIN_CUDA_GRAPHS=0 ranks 2 "$runs/nccl-2" $two; then
        say "$(grep -m1 -e 'NCCL is missing' -e 'two ranks on one GPU' "$log")" && return 0
        return 1
    fi
    say "$(grep -m1 'NCCL version' "$log" || echo 'NCCL of unknown version')"
    say "two ranks, eager: $(losses "$runs/nccl-2" | tail -1)"
    local name graphs settings count
    while read -r name count graphs settings; do
        if GPTRAIN_CUDA_GRAPHS=$graphs ranks "$count" "$runs/nccl-$name" $settings; then
            say "$name: $(losses "$runs/nccl-$name" | tail -1)"
        else
            red=1
            say "$name: failed, or hung for ${RUN_LIMIT:-90} s: $(tail -1 "$log")"
        fi
    done <<RUNS
two-stages 2 0 $pipe
four-ranks 4 0 $four
four-ranks-graphs 4 all $four
two-stages-graphs 2 1 $pipe
RUNS
    export GPTRAIN_CUDA_GRAPHS=1
    if NCCL_MAX_CTAS=4 GPTRAIN_SM_MARGIN=${SM_MARGIN:-4} ranks 2 "$runs/nccl-margin" --set topology.data=2; then
        say "with SMs left to NCCL: $(losses "$runs/nccl-margin" | tail -1)"
    else
        red=1
        say "with SMs left to NCCL: failed, or hung"
    fi
    # Last, because these ranks are threads and may hang: loading a kernel may wait for the whole GPU, and so
    # for collectives in which other ranks wait for this one.
    CUDA_MODULE_LOADING=EAGER GPTRAIN_TEST_GPU=1 tests "grids by NCCL" bin/model grids_cuda::nccl grids_cuda::ranks \
        grids_cuda::a_pipeline grids_cuda::products --test-threads 1
}

peers() {
    "${PYTHON:-python3}" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null ||
        say "no PyTorch with a GPU in ${PYTHON:-python3}: gptrain alone"
    TORCH_BENCH=benches/torch_gpt2_bench.py table bin/bench_train --device cuda --only "${SHAPE:-}"
    [ "${SHAPE:-}" != trial ] || return 0
    for model in gpt2 1.5b 7b llama; do
        say "$model"
        TORCH_ATTENTION=benches/torch_attention.py table bin/bench_ops cuda $model bf16
    done
}

# Cores, counted once where each has two threads.
cores_here() { lscpu -p=CORE,SOCKET | grep -v '^#' | sort -u | wc -l; }

cpu() {
    say "$(lscpu | grep -E '^(Model name|Socket|Core|Thread|NUMA|L2|L3)' | tr -s ' ')"
    say "$(free -g | sed -n 2p)"
    ! command -v numactl >/dev/null || say "$(numactl -H)"
    table bin/gptrain bench manifests/quickstart.yaml --quick --set train.device=cpu
    for precision in f32 bf16; do
        TORCH_BENCH=benches/torch_gpt2_bench.py \
            table bin/bench_train --precision $precision --threads "$(cores_here)" --only "${SHAPE:-}"
    done
}

cores() {
    local all node n=1
    all=$(cores_here)
    while [ "$n" -le "$all" ]; do
        say "$n threads"
        PYTHON=false table bin/bench_train --threads "$n" --rounds 1 --only "${SHAPE:-GPT-2 124M}"
        n=$((2 * n))
    done
    local nodes=(/sys/devices/system/node/node[0-9]*)
    if command -v numactl >/dev/null && [ ${#nodes[@]} -gt 1 ]; then
        say "all ${#nodes[@]} NUMA nodes at once, a process each"
        for node in "${nodes[@]##*node}"; do
            PYTHON=false table numactl --cpunodebind="$node" --membind="$node" bin/bench_train --rounds 1 \
                --threads $((all / ${#nodes[@]})) --only "${SHAPE:-GPT-2 124M}" &
        done
        wait
    fi
    for precision in f32 bf16; do
        table bin/bench_ops cpu gpt2 $precision
    done
}

# Records clock, power, temperature and memory of the GPU each second.
watch_gpu() { # file
    command -v nvidia-smi >/dev/null || return 0
    exec nvidia-smi --query-gpu=clocks.sm,power.draw,temperature.gpu,memory.used --format=csv,noheader,nounits \
        -l 1 >"$1" 2>/dev/null
}

# Least, mean and largest values of a step, and processes that remain on the GPU.
gpu_summary() { # file
    command -v nvidia-smi >/dev/null || return 0
    awk -F ', *' '
        { for (i = 1; i <= 4; i++) { sum[i] += $i; if (NR == 1 || $i < least[i]) least[i] = $i; if ($i > most[i]) most[i] = $i } }
        END { if (NR) { split("MHz W °C MiB", unit, " ")
            for (i = 1; i <= 4; i++) printf "%s%d .. %d .. %d %s", i > 1 ? ", " : "GPU: ", least[i], sum[i] / NR, most[i], unit[i]
            printf " (least, mean, largest of %d s)\n", NR } }' "$1" 2>/dev/null || true
    local left
    left=$(nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv,noheader 2>/dev/null | tr '\n' ';')
    [ -z "$left" ] || echo "still on the GPU: $left"
}

# Seconds of the next step: LIMIT, or the rest of BUDGET without the five seconds that the archive may take.
step_limit() {
    local limit=${LIMIT:-470} left
    left=$((${BUDGET:-86400} - SECONDS - 5))
    echo $((left < limit ? left : limit))
}

# Writes all tables so far as one file: a borrowed machine may return only a few small files of a folder.
archive() {
    local code=0
    tar -C "$WORK" --exclude=./runs -czf "$OUT/.hour.tar.gz" . || code=$?
    [ $code -le 1 ] || return $code # 1: a file grew while it was read
    mv "$OUT/.hour.tar.gz" "$OUT/hour.tar.gz"
}

case ${1:-} in
pack) pack ;;
results) results "$2" ;;
--step)
    cd "$here"
    "$2"
    exit $red
    ;;
"") sed -n '2,/^set/s/^# \{0,1\}//p' "$0" ;;
*)
    mkdir -p "${OUT:-$here}" "$here/work"
    OUT=$(cd "${OUT:-$here}" && pwd)
    WORK="$here/work"
    cd "$here"
    export WORK GPTRAIN_CACHE=${GPTRAIN_CACHE:-$WORK/cache} # a container may have no HOME
    # NVIDIA's libraries in the site-packages of PYTHON.
    wheels=$("${PYTHON:-python3}" -c 'import glob, site
folders = site.getsitepackages() + [site.getusersitepackages()]
print(":".join(found for folder in folders for found in sorted(glob.glob(folder + "/nvidia/*/lib"))))' 2>/dev/null || true)
    export GPTRAIN_CUDA_LIBRARIES=${GPTRAIN_CUDA_LIBRARIES:-$wheels}
    failed=0
    for step in ${*/#all/$STEPS}; do
        [[ " $STEPS $CPU_STEPS " == *" $step "* ]] || { echo "no step $step: $STEPS $CPU_STEPS" >&2; exit 2; }
        limit=$(step_limit)
        [ "$limit" -gt 0 ] || { failed=1; echo "== $step: not started, the $BUDGET s of BUDGET are over"; continue; }
        code=0
        watch_gpu "$WORK/$step.gpu.csv" &
        watcher=$!
        # KILL: a run takes TERM as a request, and a run that hangs would keep the GPU.
        timeout -s KILL "$limit" "$here/gpu_hour.sh" --step "$step" 3>"$WORK/$step.txt" >"$WORK/$step.log" 2>&1 || code=$?
        kill $watcher 2>/dev/null || true
        gpu_summary "$WORK/$step.gpu.csv" >>"$WORK/$step.txt"
        [ $code = 0 ] || { failed=1; echo "failed, exit code $code: $(tail -1 "$WORK/$step.log")" >>"$WORK/$step.txt"; }
        echo "== $step"
        cat "$WORK/$step.txt"
        archive
    done
    exit $failed
    ;;
esac
