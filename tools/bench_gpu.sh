#!/usr/bin/env bash
# Training steps on one GPU of this machine, beside PyTorch's: writes benchmarks-gpu.md into docs/, or into the folder
# given. `make bench-gpu` builds first; LOCKSTEP names another command, BENCH_ROUNDS the rounds of every section. Takes
# at most seven minutes (BENCH_SECONDS): whatever would not fit gets fewer rounds, or is left out and said so, which is no
# failure. It fails when one of ours failed, or when nothing could be measured. Leave the machine alone while it runs.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-docs}
lockstep=${LOCKSTEP:-build/cuda/lockstep}
budget=${BENCH_SECONDS:-410}
least=$((budget < 20 ? 1 : budget / 20)) # seconds that a section needs
[ -x "$lockstep" ] || { echo "bench_gpu.sh: there is no $lockstep: run \`make bench-gpu\`, or set LOCKSTEP" >&2; exit 2; }
mkdir -p "$folder"
page=$folder/benchmarks-gpu.md
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { printf '%s\n' "$@" >>"$work/page"; }
of_gpu() { nvidia-smi --id=0 --query-gpu="$1" --format=csv,noheader 2>/dev/null || echo unknown; }
# Once for all: importing PyTorch takes seconds, of the budget.
of_torch() {
  python3 2>/dev/null <<'PYTHON' || echo unknown
import torch
nccl = ".".join(map(str, torch.cuda.nccl.version()))
print(f"{torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}, NCCL {nccl}")
PYTHON
}

failed=0
measured=0
last=0        # seconds that the section before took
sections=5    # that are still to come

# measure TITLE ROUNDS SECONDS options…: a section with the command, its table, what went wrong, and its JSON.
measure() {
  local title=$1 rounds=${BENCH_ROUNDS:-$2} seconds=$3 left=$((budget - SECONDS)) began=$SECONDS
  shift 3
  ((left / sections < last / 2)) && rounds=1
  sections=$((sections - 1))
  local command=("$lockstep" bench step --device cuda "$@" --rounds "$rounds" --seconds "$seconds")
  say '' "## $title" '' "    ${command[*]}" ''
  local limit=$((left - sections * least)) # the others are to have their turn
  if ((limit < least)); then
    say "Not measured: no time was left."
    return
  fi
  echo "$title: $rounds rounds" >&2
  local code=0
  timeout --kill-after=10 "$limit" "${command[@]}" --save "$work/json" >"$work/table" 2>"$work/log" || code=$?
  cat "$work/log" >&2
  if ((code == 124 || code == 137)); then
    say "Not measured: it took longer than the $limit seconds that were left for it."
    rm -f "$work/json"
    last=$((SECONDS - began))
    return
  fi
  # 1 when one of ours failed, which the table and the lines below it show.
  ((code == 0)) || failed=1
  if [ -s "$work/table" ]; then
    say '```' "$(cat "$work/table")" '```'
    measured=$((measured + 1))
  else
    say "Not measured."
  fi
  if grep -q '^lockstep: ' "$work/log"; then
    say '' '```' "$(grep -A 3 '^lockstep: ' "$work/log" | grep -v '^round ')" '```'
  fi
  [ ! -s "$work/json" ] || say '' '<details><summary>JSON</summary>' '' '```json' "$(cat "$work/json")" '```' '</details>'
  rm -f "$work/json"
  last=$((SECONDS - began))
}

say "# Benchmarks on a GPU" '' \
  "Written by \`make bench-gpu\`; how it is measured is in [the method](internals/benchmarks.md#training-steps-on-a-gpu)." '' \
  "| | |" "|---|---|" \
  "| date | $(date -u +%Y-%m-%d), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown) |" \
  "| GPU | $(of_gpu name), $(of_gpu memory.total), driver $(of_gpu driver_version), at most $(of_gpu clocks.max.sm) |" \
  "| processor | $(lscpu | sed -n 's/^Model name: *//p' | head -n 1), $(nproc) cores, $(uname -m) |" \
  "| PyTorch and LibTorch | $(of_torch) |" \
  "| compiler | $(c++ --version | head -n 1) |"

graphs=trainer,trainer-deterministic,pytorch-graph,pytorch-graph-deterministic
collectives=drop-in,drop-in-forced,pytorch,pytorch-ddp,pytorch-ddp-views
measure "GPT-2 (124M), batch 8 × 1024 tokens, bf16" 2 0.5 --model gpt --systems "$collectives,$graphs"
measure "The same, our weights held in bf16" 1 0.5 --model gpt --precision bf16-held --systems "$graphs"
measure "MLP (10M), batch 128, float32" 2 0.5 --model mlp --systems "drop-in,pytorch-ddp-views,$graphs"
# What cuDNN finds to be fastest differs from process to process: more of them, shorter.
measure "ResNet-18, 3×32×32, batch 256, float32" 5 0.2 --model resnet18 --systems drop-in,drop-in-forced
measure "The same beside PyTorch" 1 0.4 --model resnet18 --systems trainer,pytorch,pytorch-ddp,pytorch-ddp-views,pytorch-graph

((measured > 0)) || { echo "bench_gpu.sh: nothing could be measured in $budget seconds; BENCH_SECONDS allows more" >&2; exit 1; }
cp "$work/page" "$page"
cat "$page"
echo "bench_gpu.sh: $SECONDS seconds" >&2
exit "$failed"
