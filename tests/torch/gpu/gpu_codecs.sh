#!/usr/bin/env bash
# Jobs with codecs, of several processes on one GPU, which they share: one hash for every number of workers. DEVICE=cpu tries the
# script itself. Usage: gpu_codecs.sh LOCKSTEP
set -euo pipefail
lockstep=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source-path=SCRIPTDIR source=gpu_functions.sh
. "$(dirname "$0")/gpu_functions.sh"
printf '%s ' the quick brown fox jumps over a lazy dog {1..4000} >"$work/text"

# Codecs: what a shard sends does not depend on where it is. They go on from a checkpoint with their error feedback.
for job in "--model mlp --data synthetic:1024 --codec int8" "--model cnn --data synthetic:1024 --optimizer adamw --codec bf16" \
  "--model mlp --data synthetic:1024 --codec top-k:0.1" "--model cnn --data synthetic:1024 --codec one-bit" \
  "--model gpt --data $work/text --context 64 --codec fp16" \
  "--model mlp --data synthetic:1024 --codec power-sgd:2:1" "--model gpt --data $work/text --context 64 --codec power-sgd:4:0"; do
  # shellcheck disable=SC2086
  same "$(hash $job -n 1)" "$(hash $job -n 1 --graphs off)" "$(hash $job -n 2 --bucket-bytes 65536)" "$(hash $job -n 3)" \
    "$(hash $job -n 4 --bucket-bytes 1048576)"
  rm -rf "$work/run"
  # shellcheck disable=SC2086
  steps=5 hash $job -n 2 --checkpoint "$work/run" >/dev/null
  # shellcheck disable=SC2086
  same "$(hash $job -n 1)" "$(hash $job -n 3 --checkpoint "$work/run" --resume)"
done

# Without error feedback they also go on when a worker dies; and what local steps exchange is encoded, too.
job="--model cnn --data synthetic:1024 --codec bf16"
# shellcheck disable=SC2086
same "$(hash $job -n 1)" "$(hash $job -n 3 --max-restarts 50 --faults kill@5:1:backward)" \
  "$(hash $job -n 3 --max-restarts 50 --faults kill@7:0:small)"
for job in "--model cnn --data synthetic:1024 --codec int8 --local-steps 4" \
  "--model cnn --data synthetic:1024 --optimizer adamw --codec bf16 --local-steps 4 --fragments 2 --outer nesterov"; do
  # shellcheck disable=SC2086
  same "$(hash $job -n 1)" "$(hash $job -n 2)" "$(hash $job -n 4)"
done
