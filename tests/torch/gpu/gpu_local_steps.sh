#!/usr/bin/env bash
# Jobs with local steps, of several processes on one GPU, which they share: one hash for every number of workers. Usage:
# gpu_local_steps.sh LOCKSTEP GPU_ACTOR
set -euo pipefail
lockstep=$1
actor=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source-path=SCRIPTDIR source=gpu_functions.sh
. "$(dirname "$0")/gpu_functions.sh"
printf '%s ' the quick brown fox jumps over a lazy dog {1..4000} >"$work/text"

# Rounds of local steps, in which each shard trains by itself. Programs' loops first, a job of each kind: they also go on in
# the middle, on another number of workers.
local_hash() { actor_hash 9 "$1" "$actor" local "${@:2}"; }
job="own loop, local steps"
rm -rf "$work/rounds"
mkdir "$work/rounds"
first=$(local_hash 1)
local_hash 2 "$work/rounds" 6 >/dev/null
same "$first" "$(local_hash 2)" "$(local_hash 4)" "$(local_hash 4 "$work/rounds")"

for job in "--model mlp --data synthetic:1024 --local-steps 4" \
  "--model cnn --data synthetic:1024 --optimizer adamw --clip-norm 0.5 --local-steps 1,4:4 --outer nesterov" \
  "--model cnn --data synthetic:1024 --optimizer adamw --local-steps 4 --local-state averaged" \
  "--model gpt --data $work/text --context 64 --optimizer adamw --precision bf16 --local-steps 6 --fragments 3 --outer nesterov"; do
  # shellcheck disable=SC2086
  same "$(hash $job -n 1)" "$(hash $job -n 2 --bucket-bytes 65536)" "$(hash $job -n 4)"
done
# They go on from a checkpoint, and after deaths: with state that is kept only from a checkpoint.
job="--model cnn --data synthetic:1024 --optimizer adamw --local-steps 4 --outer nesterov"
rm -rf "$work/run"
# shellcheck disable=SC2086
steps=8 hash $job -n 2 --checkpoint "$work/run" >/dev/null
# shellcheck disable=SC2086
same "$(hash $job -n 1)" "$(hash $job -n 4 --checkpoint "$work/run" --resume)"
grep -q '"first_step": 8' "$work/report" || fail "$job: did not go on from its checkpoint"
job="--model cnn --data synthetic:1024 --local-steps 4 --local-state averaged"
# shellcheck disable=SC2086
same "$(hash $job -n 1)" "$(hash $job -n 3 --max-restarts 50 --faults kill@4:1:backward)" \
  "$(hash $job -n 3 --max-restarts 50 --faults kill@4:0:small)" "$(hash $job -n 3 --max-restarts 50 --faults kill@8:2:commit)"
