#!/usr/bin/env bash
# Jobs of several processes on one GPU, which they share: one hash for every number of workers, with and without graphs,
# for any bucket; and a clear end when there is no memory or no GPU. Usage: gpu_jobs.sh LOCKSTEP GPU_ACTOR
set -euo pipefail
lockstep=$1
actor=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source-path=SCRIPTDIR source=gpu_functions.sh
. "$(dirname "$0")/gpu_functions.sh"

printf '%s ' the quick brown fox jumps over a lazy dog {1..4000} >"$work/text"
for job in "--model mlp --data synthetic:1024" "--model cnn --data synthetic:1024 --optimizer adamw --clip-norm 0.5" \
  "--model gpt --data $work/text --context 64 --optimizer adamw --precision bf16" \
  "--model gpt --data $work/text --context 64 --precision bf16-held"; do
  # shellcheck disable=SC2086
  same "$(hash $job -n 1)" "$(hash $job -n 1 --graphs off)" "$(hash $job -n 2)" \
    "$(hash $job -n 2 --graphs off --bucket-bytes 65536)" "$(hash $job -n 4 --bucket-bytes 1048576)"
done

# Layer-wise rules, with averages and limits; and float16, whose losses are scaled.
for job in "--model cnn --data synthetic:1024 --optimizer lars --clip-value 0.01 --ema 0.9" \
  "--model mlp --data synthetic:1024 --optimizer lamb --clip-norm 0.5 --ema 0.9" \
  "--model cnn --data synthetic:1024 --optimizer lamb --precision fp16"; do
  # shellcheck disable=SC2086
  same "$(hash $job -n 1)" "$(hash $job -n 2 --graphs off)" "$(hash $job -n 4)"
done

# Workers that die: the others repeat the step or have ended it, a replacement joins, and the bits are the same.
for job in "--model mlp --data synthetic:1024" "--model cnn --data synthetic:1024 --optimizer adamw --clip-norm 0.5"; do
  # shellcheck disable=SC2086
  same "$(hash $job -n 1)" "$(hash $job -n 3 --max-restarts 50 --faults kill@5:1:backward)" \
    "$(hash $job -n 3 --max-restarts 50 --faults kill@5:0:small)" "$(hash $job -n 3 --max-restarts 50 --faults kill@3:2:commit,kill@7:1:reduce)"
done

# Shards that share the statistics of their batch norms, and shards whose gradients are measured. Both leave the weights
# as they are on any number of workers.
for job in "--model cnn --data synthetic:1024 --sync-batchnorm on" \
  "--model resnet18 --data synthetic:256 --sync-batchnorm on --optimizer lars --precision bf16 --ema 0.9" \
  "--model cnn --data synthetic:1024 --sync-batchnorm on --precision fp16 --noise-scale 4 --clip-norm 0.5"; do
  # shellcheck disable=SC2086
  same "$(hash $job -n 1)" "$(hash $job -n 2)" "$(hash $job -n 4 --bucket-bytes 65536)"
done
noise() { sed -n '/"noise_scale"/,/}/s/.*"\(noise\|signal\)": \([-0-9.e]*\).*/\2/p' "$work/report" | tr '\n' ' '; }
job="--model mlp --data synthetic:1024"
# shellcheck disable=SC2086
plain=$(hash $job -n 1)
for workers in 1 2 4; do
  # shellcheck disable=SC2086
  same "$plain" "$(hash $job -n $workers --noise-scale 4)"
  noises+=("$(noise)")
done
[ -n "${noises[0]}" ] && [ "$(printf '%s\n' "${noises[@]}" | sort -u | wc -l)" = 1 ] || fail "noise scales: ${noises[*]}"
echo "noise and signal: ${noises[0]}"

# Loops of a program's own, with Job and Step, on 8 shards. Every worker says its hash.
loop_hash() {
  LOCKSTEP_SHARE_GPUS=1 timeout 100 "$lockstep" run -n "$2" --device cuda -- "$actor" loop "$1" >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; fail "a loop with $1 on $2 workers failed"; }
  sed -n 's/.*weights \([0-9a-f]*\)$/\1/p' "$work/log" | sort -u
}
for model in mlp cnn gpt gan noisy synced; do
  job="own loop, $model"
  same "$(loop_hash $model 1)" "$(loop_hash $model 2)" "$(loop_hash $model 4)"
done

# Workers that take each other for hosts: NCCL goes over sockets, and what is beside it over TCP. On two of them once more,
# each started by a launcher of its own; NCCL is told that these are two hosts, though there is one GPU.
hosts_hash() {
  # shellcheck disable=SC2016
  LOCKSTEP_SHARE_GPUS=1 timeout 100 "$lockstep" run -n "$2" --device cuda -- \
    sh -c 'LOCKSTEP_HOST=host$RANK exec "$0" loop "$1"' "$actor" "$1" >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; fail "a loop with $1 on $2 hosts failed"; }
  sed -n 's/.*weights \([0-9a-f]*\)$/\1/p' "$work/log" | sort -u
}
nodes_hash() {
  local node pids=()
  rm -f "$work"/node?
  (umask 077 && head -c 32 /dev/urandom | base64 >"$work/secret")
  for node in 0 1; do
    LOCKSTEP_HOST=host$node NCCL_HOSTID=host$node NCCL_SOCKET_IFNAME=lo timeout 100 "$lockstep" run -n 1 --device cuda \
      --nodes 2 --node-rank $node --rendezvous 127.0.0.1:29473 --secret-file "$work/secret" -- "$actor" loop "$1" \
      >"$work/node$node" 2>&1 &
    pids+=($!)
  done
  wait "${pids[0]}" && wait "${pids[1]}" || { cat "$work"/node? >&2; fail "a loop with $1 on 2 nodes failed"; }
  sed -n 's/.*weights \([0-9a-f]*\)$/\1/p' "$work"/node? | sort -u
}
for model in mlp cnn gpt; do
  job="hosts on one GPU, $model"
  same "$(loop_hash $model 1)" "$(hosts_hash $model 2)" "$(hosts_hash $model 4)" "$(nodes_hash $model)"
done

# A batch norm over the samples of all workers, beside LibTorch's.
for workers in 1 3; do
  LOCKSTEP_SHARE_GPUS=1 timeout 60 "$lockstep" run -n $workers --device cuda -- "$actor" norms >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; fail "batch norms of $workers workers differ from LibTorch's"; }
done
echo "SyncBatchNorm: $(tail -n 1 "$work/log")"
for mode in uneven drop-in; do
  LOCKSTEP_SHARE_GPUS=1 timeout 60 "$lockstep" run -n 3 --device cuda -- "$actor" $mode >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; fail "the loop $mode differs from LibTorch's"; }
  echo "$mode loop: $(tail -n 1 "$work/log")"
done
# Beside PyTorch's own, on the same GPU.
mkdir "$work/norms"
if ${PYTHON:-python3} -c 'import numpy, torch' 2>/dev/null; then
  for worker in "$actor norms" "${PYTHON:-python3} $(dirname "$0")/sync_batchnorm.py"; do
    # shellcheck disable=SC2086
    LOCKSTEP_SHARE_GPUS=1 timeout 100 "$lockstep" run -n 2 --device cuda -- $worker "$work/norms" >"$work/log" 2>&1 ||
      { cat "$work/log" >&2; fail "batch norms differ from PyTorch's"; }
  done
  echo "SyncBatchNorm: $(grep 'PyTorch' "$work/log" | tail -n 1)"
else
  echo "SyncBatchNorm: not compared with PyTorch's own, since python3 has no PyTorch"
fi

# Held weights go on from a checkpoint with their masters, on another number of workers; with another precision they do not.
for job in "--model gpt --data $work/text --context 64 --optimizer adamw --precision bf16-held" \
  "--model cnn --data synthetic:1024 --precision bf16-held"; do
  rm -rf "$work/run"
  # shellcheck disable=SC2086
  steps=5 hash $job -n 2 --checkpoint "$work/run" >/dev/null
  # shellcheck disable=SC2086
  same "$(hash $job -n 1)" "$(hash $job -n 1 --checkpoint "$work/run" --resume)"
  grep -q '"first_step": 5' "$work/report" || fail "$job: did not go on from its checkpoint"
done
if timeout 60 "$lockstep" train --device cuda -n 1 --model cnn --data synthetic:1024 --steps 12 --shards 4 --global-batch 32 \
  --quiet --precision bf16 --checkpoint "$work/run" --resume >"$work/log" 2>&1; then
  fail "a checkpoint of held weights went on without them"
fi
grep -q "bf16-held" "$work/log" || { cat "$work/log" >&2; fail "the other precision is not told"; }
echo "another precision: $(cat "$work/log")"

# Two workers, and no memory for one of them in the middle of a step: one line each, soon, and nobody is left.
began=$SECONDS
if LOCKSTEP_SHARE_GPUS=1 timeout 60 "$lockstep" run -n 2 --device cuda -- "$actor" >"$work/log" 2>&1; then
  fail "a job without memory ended well"
fi
((SECONDS - began < 40)) || fail "a job without memory took $((SECONDS - began)) s"
grep -q "no memory is left" "$work/log" || { cat "$work/log" >&2; fail "nobody says that no memory is left"; }
grep -q "rank 1 .*failed first" "$work/log" || { cat "$work/log" >&2; fail "the launcher does not name rank 1"; }
if pgrep -x "$(basename "$actor")" >/dev/null; then fail "workers are left"; fi
echo "no memory: told in $((SECONDS - began)) s"
# The same by hand, where nobody ends the other one: it is told whom it has lost.
for rank in 0 1; do
  env LOCKSTEP_SHARE_GPUS=1 LOCKSTEP_DEVICE=cuda TORCHELASTIC_RUN_ID=1 RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$rank \
    LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29571 timeout 60 "$actor" >"$work/log$rank" 2>&1 &
done
wait
grep -q "^worker 0: .*rank 1" "$work/log0" || { cat "$work/log0" "$work/log1" >&2; fail "worker 0 does not name the lost one"; }

# Replicas that part, by LibTorch's own optimizer.
if LOCKSTEP_SHARE_GPUS=1 timeout 60 "$lockstep" run -n 2 --device cuda -- "$actor" parts >"$work/log" 2>&1; then
  fail "two learning rates ended well"
fi
grep -q "weights of .* differ" "$work/log" || { cat "$work/log" >&2; fail "nobody says that the weights differ"; }

if timeout 20 "$lockstep" train --device cuda -n 9 --shards 9 --global-batch 9 --steps 1 --quiet --checkpoint none >"$work/log" 2>&1; then fail "9 workers had a GPU each"; fi
grep -q "9 workers and . GPU" "$work/log" || { cat "$work/log" >&2; fail "the lack of GPUs is not told"; }
[ "$(wc -l <"$work/log")" = 1 ] || fail "more than one line"
