#!/bin/sh
# The first day on GPUs: all that had no GPU to run on, each stage before those that build on it. In the root of a fresh clone:
#
#   SMALL_MODEL=models/Qwen2.5-0.5B scripts/gpu_day.sh ../day configs/paper/dapo-nodyn-bs64.toml configs/machines/8x80gb.toml
#
# Stops at the first stage that fails. In the directory: a log for each stage, the runs, gpu_day.json, and at last the table that
# replaces the estimates of docs/explanation/performance.md. `--only check,small` makes these stages alone, `--keep-going` the
# others too after one that failed. Without a GPU the runs, the check and the benchmarks are made on CPUs.
set -eu

script=scripts/gpu_day.sh
# Seconds that a stage may take. What it measures is in check.json, speed.jsonl, memory-*.json, or a run's metrics.jsonl and rollouts.
stages='install=3600 check=3600 kernels=1800 quickstart=1800 small=1800 whole=3600 resume=3600 faults=3600 speed=1800 memory=1800
nccl=1800 tensor=1800 replicas=1800 lora=1800'

fail() {
    printf 'gpu_day: %s\n' "$*" >&2
    exit 2
}

gpus=$({ nvidia-smi -L 2>/dev/null || true; } | grep -c '^GPU ' || true)
if [ "$gpus" -gt 0 ]; then
    on=1 many=$gpus lock=cuda transfer=nccl few=rollout.prompts=64 speed='--shape 1.5B'
else
    on=0 many=2 lock=cpu transfer=gloo few=run.seed=0 speed='--shape tiny'
fi
half=$((many / 2 > 0 ? many / 2 : 1))

# A run of the configuration with more overrides, or its continuation.
train() {
    directory=$1
    shift
    for override in "$@"; do
        set -- "$@" --set "$override"
        shift
    done
    # shellcheck disable=SC2086 # the configurations are words
    rlep train $configs --set "run.directory=\"$home/$directory\"" --set "run.name=$directory" --set evaluation.every=0 "$@"
}

# Tests of which none ran are no success.
tests() {
    python -m pytest -q -rs "$@" >"$home/tests.txt" && grep -q '[0-9] passed' "$home/tests.txt" && status=0 || status=1
    cat "$home/tests.txt"
    return "$status"
}

two_gpus() {
    [ "$many" -ge 2 ] || { printf 'skipped: there is one GPU\n' && exit 0; }
}

# shellcheck disable=SC2086 # overrides and options are words
stage() {
    turns="cluster.placement=colocated generator.gpus=$on learner.gpus=$on"
    small=${SMALL_MODEL:+model.path=\"$SMALL_MODEL\"} # for stages whose few ranks have no room for 7B
    case $1 in
    install) make setup-dev "LOCK=$lock" ;;
    check)
        status=0
        rlep check $configs --try --json >"$home/check.part" || status=$?
        mv "$home/check.part" "$home/check.json" # whole: at the deadline this is not reached
        return "$status"
        ;;
    kernels)
        tests tests/engines/learner/test_learner_cuda.py
        tests tests/engines/sampler/test_sampler_parallel.py -k cuda
        tests tests/cluster/test_colocated.py -k one_gpu
        [ "$many" -lt 2 ] || tests tests/engines/sampler/test_sampler_group.py -k nccl
        ;;
    quickstart) rlep quickstart --directory "$home/quickstart" ;;
    small) train small $turns generator.count=1 learner.ranks=1 run.steps=5 $few $small ;;
    whole) train whole $turns "generator.count=$many" "learner.ranks=$many" run.steps=3 ;;
    resume)
        train resume $turns "generator.count=$many" "learner.ranks=$many" checkpoint.every=1 run.steps=1 $few
        train resume $turns "generator.count=$half" "learner.ranks=$half" checkpoint.every=1 run.steps=2 $few
        ;;
    faults)
        python benchmarks/chaos.py --minutes 20 --json "$home/faults.json" \
            --set cluster.placement=colocated --set "generator.gpus=$on" --set "learner.gpus=$on"
        ;;
    speed) python benchmarks/gpu_learner.py --json $speed >"$home/speed.jsonl" ;;
    memory)
        one='--set learner.ranks=1 --set learner.replicas=1 --set generator.count=1'
        python benchmarks/memory.py --shape 1.5B $configs $one --out "$home/memory-1.5B.json"
        python benchmarks/memory.py --shape 7B $configs $one --set learner.lora_rank=32 --out "$home/memory-7B-lora.json"
        ;;
    nccl)
        two_gpus
        train nccl cluster.placement=split "generator.gpus=$on" "learner.gpus=$on" "generator.transfer=$transfer" \
            "generator.count=$half" "learner.ranks=$half" run.steps=2 $few
        ;;
    tensor)
        two_gpus
        train tensor $turns "generator.gpus=$((2 * on))" generator.tensor_parallel=2 generator.count=1 learner.ranks=2 \
            run.steps=2 $few $small
        ;;
    replicas)
        two_gpus
        train replicas $turns "generator.count=$many" "learner.ranks=$many" learner.replicas=2 run.steps=2 $few
        ;;
    lora) train lora $turns generator.count=1 learner.ranks=1 learner.lora_rank=32 run.steps=2 $few ;;
    *) fail "there is no stage $1; there are: $stages" ;;
    esac
}

if [ "${1:-}" = --stage ]; then # a stage is a process of its own, with a deadline
    name=$2 home=$3
    shift 3
    configs=$*
    stage "$name"
    exit
fi

only='' going=0
while [ $# -gt 0 ]; do
    case $1 in
    --only)
        only=$(printf '%s' "${2:-}" | tr ',' ' ')
        shift 2
        ;;
    --keep-going)
        going=1
        shift
        ;;
    -*) fail "there is no option $1" ;;
    *) break ;;
    esac
done
[ $# -ge 2 ] || fail 'name a directory for the results and a configuration'
[ "$gpus" -eq 0 ] || [ -n "${SMALL_MODEL:-}" ] || fail 'set SMALL_MODEL to the directory of a model of at most 1.5B weights, without spaces'
[ -f "$script" ] || fail "start it in the root of a clone: there is no $script here"
for name in $only; do
    case " $stages" in *[[:space:]]"$name="*) ;; *) fail "there is no stage $name; there are: $stages" ;; esac
done
mkdir -p "$1"
home=$(cd "$1" && pwd)
shift
export PATH="$PWD/.venv/bin:$PATH" PYTHONPATH="$PWD"
red=0 child=''
trap '[ -z "$child" ] || kill "$child"; exit 130' INT TERM HUP
for entry in $stages; do
    name=${entry%=*} seconds=${entry#*=} status=0
    case " ${only:-$name} " in *" $name "*) ;; *) continue ;; esac
    printf 'gpu_day: %s …\n' "$name" >&2
    begun=$(date +%s)
    timeout -k 30 "$seconds" sh "$script" --stage "$name" "$home" "$@" >"$home/$name.log" 2>&1 &
    child=$! # has a process group of its own, which Ctrl-C does not reach
    wait "$child" || status=$?
    printf '{"stage": "%s", "status": %s, "seconds": %s}\n' "$name" "$status" "$(($(date +%s) - begun))" >>"$home/stages.jsonl"
    [ "$status" -ne 0 ] || continue
    red=1
    tail -n 20 "$home/$name.log" >&2
    printf 'gpu_day: %s failed (status %s; 124: not done after %s s): %s\n' "$name" "$status" "$seconds" "$home/$name.log" >&2
    [ "$going" = 1 ] || break
done
python scripts/gpu_day_table.py "$home"
exit "$red"
