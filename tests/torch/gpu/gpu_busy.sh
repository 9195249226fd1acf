#!/usr/bin/env bash
# Loops on a GPU and on cores that are busy with other work: one worker, two, and two that take each other for hosts have
# the bits of one worker on a quiet GPU. If not, it says after which step they first differ, and in which tensors.
# FREE=1 leaves the choice of kernels to LibTorch, which promises no bits then; MODELS=cnn runs only this model. DEVICE=cpu,
# with any program as GPU_TEST, tries the script itself. Usage: gpu_busy.sh LOCKSTEP GPU_ACTOR GPU_TEST
set -euo pipefail
lockstep=$1
actor=$2
gpu_test=$3
work=$(mktemp -d)
load=()
end_load() {
  local pid
  for pid in "${load[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait
}
trap 'end_load; rm -rf "$work"' EXIT
fail() { echo "gpu_busy.sh: $*" >&2; exit 1; }

read -ra models <<<"${MODELS:-cnn mlp}"
# No job begins later, and none takes longer: it all ends in 150 s.
last_start=75
longest=60

# run KIND MODEL TIMES FOLDER: each worker logs what it has after every step, in FOLDER/RANK.TIME. cuDNN says there which of
# its kernels it could not run.
run() {
  local workers=2
  [ "$1" = one ] && workers=1
  mkdir "$4" "$4.cudnn"
  # shellcheck disable=SC2016
  LOCKSTEP_SHARE_GPUS=1 CUDNN_LOGLEVEL_DBG=1 CUDNN_LOGDEST_DBG="$4.cudnn/%i" timeout -k 2 $longest \
    "$lockstep" run -n $workers --device "${DEVICE:-cuda}" -- \
    sh -c 'if [ "$0" = hosts ]; then export LOCKSTEP_HOST="host$RANK"; fi; exec "$@"' \
    "$1" "$actor" steps "$2" "$4" "$3" ${FREE:+free} >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; fail "a loop with $2 failed ($1)"; }
}

# differ QUIET LOG: the first step after which they differ, and the tensors in which they do then; nothing if they are
# equal.
differ() {
  awk 'NR == FNR { quiet[FNR] = $0; lines = FNR; next }
    quiet[FNR] != $0 { if (step == "") step = $2; if ($2 == step) names = names " " $3 }
    END { if (step != "") print "after step " step ", in" names; else if (FNR != lines) print "in their length" }' "$1" "$2"
}

for model in "${models[@]}"; do
  run one "$model" 1 "$work/quiet.$model"
  [ -s "$work/quiet.$model/0.0" ] || fail "$model: no log"
done

# Other processes on the GPU, which also wait there for workers that were killed or stopped; and loops on half of the cores.
for tests in 'GpuFaults.*' 'GpuFaults.*' 'GpuBits.*:Workers/Gpu.*' 'Workers/Gpu.*'; do
  timeout -k 2 150 "$gpu_test" --gtest_filter="$tests" --gtest_repeat=-1 >/dev/null 2>&1 &
  load+=($!)
done
for ((i = 0; i < ($(nproc) + 1) / 2; ++i)); do
  timeout -k 2 150 sh -c 'while :; do :; done' &
  load+=($!)
done

jobs=0
loops=0
wrong=0
while ((SECONDS < last_start)); do
  for kind in hosts one two; do
    for model in "${models[@]}"; do
      ((SECONDS < last_start)) || break 2
      jobs=$((jobs + 1))
      run $kind "$model" 3 "$work/$jobs"
      for log in "$work/$jobs"/*; do
        loops=$((loops + 1))
        where=$(differ "$work/quiet.$model/0.0" "$log")
        [ -n "$where" ] || continue
        wrong=$((wrong + 1))
        echo "job $jobs, $model, $kind, rank and loop $(basename "$log"): other bits $where"
        head -n 5 "$work/$jobs.cudnn"/* 2>/dev/null || true
      done
    done
  done
done
echo "$jobs jobs beside other work, $loops logs, $wrong with other bits"
((jobs > 0)) || fail "no job began in $last_start s"
((wrong == 0)) || fail "other bits on a busy GPU"
