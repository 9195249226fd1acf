#!/usr/bin/env bash
# How tools/bench_gpu.sh ends, with a command that is none: in its time, well when a section did not fit, and badly when
# one of ours failed.
#   bench_gpu.sh SOURCE_DIR
set -euo pipefail
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
printf '#!/bin/sh\ncat >/dev/null\necho fake\n' >"$work/bin/python3" # importing PyTorch takes seconds
chmod +x "$work/bin/python3"
export PATH="$work/bin:$PATH" LOCKSTEP="$work/lockstep"

# ends CODE TABLES SECONDS SCRIPT: with SCRIPT as the command it ends with CODE and at least so many tables.
ends() {
  local code=0 tables
  printf '#!/bin/bash\n%s\n' "$4" >"$LOCKSTEP"
  chmod +x "$LOCKSTEP"
  rm -rf "$work/docs"
  BENCH_SECONDS=$3 timeout 60 "$source/tools/bench_gpu.sh" "$work/docs" >"$work/log" 2>&1 || code=$?
  tables=$(cat "$work/docs/benchmarks-gpu.md" 2>/dev/null | grep -c '^a table$') || true
  if [ "$code" != "$1" ] || ((tables < $2)); then
    echo "bench_gpu.sh ended with $code and $tables tables; expected $1 and $2, with: $4"
    cat "$work/log"
    exit 1
  fi
}

ends 0 5 410 'echo a table'
# The third section takes too long; whether there is time for those after it depends on the machine.
ends 0 2 8 'case $* in *mlp*) exec sleep 100 ;; esac; echo a table'
grep -q '^Not measured: it took longer than' "$work/docs/benchmarks-gpu.md"
ends 1 5 410 'echo a table; case $* in *mlp*) echo "lockstep: no" >&2; exit 1 ;; esac'
ends 1 0 410 'exit 1'
