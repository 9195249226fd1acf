#!/usr/bin/env bash
# The measurements that the docs quote, on this machine, now. Leave the machine alone while it runs.
set -euo pipefail
cd "$(dirname "$0")/.."
printf '%s, %s cores, load %s\n\n' "$(uname -m)" "$(nproc)" "$(cut -d' ' -f1 /proc/loadavg)"
if [ -x build/tests/bench/gloo_allreduce_bench ]; then
  echo "all-reduce: direct over Gloo against Gloo's own"
  build/tests/bench/gloo_allreduce_bench
  echo
fi
echo "joining and starting"
build/tests/bench/start_bench build/lockstep build/tests/bench/join_probe
