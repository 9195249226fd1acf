#!/usr/bin/env bash
# The measurements that the docs quote, on this machine, now: writes docs/benchmarks.md and the pictures beside it.
# Leave the machine alone while it runs. `bench.sh quick` takes two minutes, measures nothing well, and writes to build/.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=docs
quick=()
[ "${1:-}" = quick ] && folder=build quick=(--rounds 1 --seconds 0.02)
page=$folder/benchmarks.md
draft=$(mktemp)
trap 'rm -f "$draft"' EXIT

say() { printf '%s\n' "$@" >>"$draft"; }
version() { dpkg-query -W -f='${Version}' "$1" 2>/dev/null || echo "not from a package"; }

# measure TITLE PICTURE command…: a section with the command, what it printed, and the picture it drew.
measure() {
  local title=$1 picture=$2
  shift 2
  echo "$title" >&2
  local command=("$@")
  [ -z "$picture" ] || command+=(--plot "$folder/$picture")
  local printed
  printed=$("${command[@]}" "${quick[@]}")
  say '' "## $title" '' "    $*" ''
  [ -z "$picture" ] || say "![$title]($picture)" ''
  say '```' "$printed" '```'
}

# What is noted by hand at the end of the page stays there: machines with a GPU are others.
noted=$(sed -n '/^## The tests on a GPU$/,$p' docs/benchmarks.md)

# aim WORDS…: what the section before was to reach.
aim() { say '' "Aimed at: $*"; }

say "# Benchmarks" '' \
  "Written by \`make bench\`; how it is measured is in [the method](internals/benchmarks.md)." '' \
  "On a GPU, with date and machine: the [result of \`make test-gpu\`](#the-tests-on-a-gpu) and the" \
  "[training steps](benchmarks-gpu.md)." '' \
  "| | |" "|---|---|" \
  "| date | $(date -u +%Y-%m-%d), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown) |" \
  "| processor | $(lscpu | sed -n 's/^Model name: *//p' | head -n 1), $(nproc) cores, $(uname -m) |" \
  "| memory | $(awk '/^MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo) |" \
  "| kernel | $(uname -s) $(uname -r | cut -d- -f1), load of the last minute $(cut -d' ' -f1 /proc/loadavg) |" \
  "| compiler | $(c++ --version | head -n 1), build type $(sed -n 's/^CMAKE_BUILD_TYPE:STRING=//p' build/CMakeCache.txt) |" \
  "| LibTorch | $(version libtorch-dev), OpenBLAS $(version libopenblas0-pthread) |" \
  "| peers | Gloo $(version libgloo-dev), OpenMPI $(version libopenmpi-dev), MPICH $(version libmpich-dev), PyTorch $(version python3-torch) |"

measure "All-reduce, 2 workers" benchmarks-allreduce-2.svg build/lockstep bench allreduce --workers 2
measure "All-reduce, 4 workers" benchmarks-allreduce-4.svg build/lockstep bench allreduce --workers 4 --rounds 2 \
  --sizes 1KiB,64KiB,1MiB,64MiB
for workers in 4 8; do
  measure "What the order of the tree costs, $workers workers" "" build/lockstep bench allreduce --workers $workers --order \
    --engines shm --peers none --sizes 64KiB,1MiB,16MiB,64MiB
  aim "\`in-place-tree\` at most 1.05 times \`in-place-ranks\`."
done
if [ -x build/lockstep-train ]; then
  measure "Training step, 2 workers" benchmarks-step-2.svg build/lockstep bench step --workers 2 --model mlp --batch 32
  measure "Memory of parameters and AdamW's state, 4 workers" "" build/lockstep bench step --workers 4 --model mlp --batch 32 \
    --optimizer adamw --engines shm --peers plain,pytorch-ddp --rounds 1
  measure "What the divergence check costs, 2 workers" "" build/lockstep bench step --workers 2 --model mlp --batch 32 \
    --engines shm --peers unchecked --rounds 5
  aim "\`lockstep-shm-fused\` at most 1.01 times \`lockstep-shm-unchecked\`."
  measure "The same with eight shards" "" build/lockstep bench step --workers 2 --shards 8 --model mlp --batch 32 \
    --engines shm --peers unchecked --rounds 3
  measure "The same of a cnn" "" build/lockstep bench step --workers 2 --model cnn --batch 32 --engines shm --peers unchecked --rounds 3
  for workers in 1 2; do
    for batch in 32 8; do
      measure "Eight shards, batch $batch each, $workers worker$([ $workers = 1 ] || echo s)" "" build/lockstep bench step --workers $workers \
        --shards 8 --model mlp --batch $batch --engines shm
      aim "\`lockstep-shm-fused\` at most $([ $batch = 8 ] && echo 1.08 || echo 1.05) times \`plain-accumulate\`."
    done
  done
fi
quick=()
measure "Starting and joining" "" build/tests/bench/start_bench build/lockstep build/tests/bench/join_probe
say '' "$noted"
mv "$draft" "$page"
chmod 644 "$page"
trap - EXIT
cat "$page"
