#!/usr/bin/env bash
# Asynchronous steps of several processes on one GPU, which they share: a replay has the bits of the run whose order it keeps, on any
# number of workers. DEVICE=cpu tries the script itself. Usage: gpu_asynchronous.sh LOCKSTEP GPU_ACTOR
set -euo pipefail
lockstep=$1
actor=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source-path=SCRIPTDIR source=gpu_functions.sh
. "$(dirname "$0")/gpu_functions.sh"
order=$work/order

# A staleness of 0 is the synchronous step.
job="--model mlp --data synthetic:1024"
# shellcheck disable=SC2086
same "$(hash $job -n 1)" "$(hash $job -n 2 --staleness 0)"

for job in "--model mlp --data synthetic:1024 --staleness 2 --round 5" \
  "--model cnn --data synthetic:1024 --optimizer adamw --clip-norm 0.5 --staleness any --round 5" \
  "--model cnn --data synthetic:1024 --backups 1 --round 5"; do
  rm -f "$order"
  # shellcheck disable=SC2086
  same "$(hash $job -n 2 --order "$order")" "$(hash $job -n 1 --replay "$order")" "$(hash $job -n 2 --replay "$order")" \
    "$(hash $job -n 4 --replay "$order")"
done

# A round that has lost a worker goes on.
job="--model cnn --data synthetic:1024 --optimizer adamw --staleness 2 --round 6"
rm -f "$order"
# shellcheck disable=SC2086
recorded=$(hash $job -n 3 --max-restarts 50 --faults kill@8:1:backward,kill@9:1:backward --order "$order")
# shellcheck disable=SC2086
same "$recorded" "$(hash $job -n 2 --replay "$order")"

# They go on from a checkpoint. In a replay the others begin the round of a worker that dies again.
job="--model cnn --data synthetic:1024 --optimizer adamw --staleness 2 --round 4"
rm -rf "$order" "$work/run"
# shellcheck disable=SC2086
recorded=$(hash $job -n 3 --order "$order")
# shellcheck disable=SC2086
steps=8 hash $job -n 2 --checkpoint "$work/run" --replay "$order" >/dev/null
# shellcheck disable=SC2086
same "$recorded" "$(hash $job -n 3 --max-restarts 50 --faults kill@5:1:update --replay "$order")" \
  "$(hash $job -n 3 --max-restarts 50 --faults kill@6:0:backward,kill@8:2:commit --replay "$order")" \
  "$(hash $job -n 4 --checkpoint "$work/run" --resume --replay "$order")"
grep -q '"first_step": 8' "$work/report" || fail "$job: did not go on from its checkpoint"

# Programs' own loops, a job of each kind; also on workers that take each other for hosts, and so share no memory.
# shellcheck disable=SC2016
apart=(sh -c 'LOCKSTEP_HOST=host$RANK exec "$@"' -)
mkdir "$work/shared" "$work/sent"
job="own loop, asynchronous steps, recorded in shared memory"
same "$(actor_hash 7 2 "$actor" asynchronous record "$work/shared")" "$(actor_hash 7 1 "$actor" asynchronous replay "$work/shared")" \
  "$(actor_hash 7 4 "$actor" asynchronous replay "$work/shared")" \
  "$(actor_hash 7 2 "${apart[@]}" "$actor" asynchronous replay "$work/shared")"
job="own loop, asynchronous steps, recorded without shared memory"
same "$(actor_hash 7 3 "${apart[@]}" "$actor" asynchronous record "$work/sent")" \
  "$(actor_hash 7 2 "$actor" asynchronous replay "$work/sent")"
