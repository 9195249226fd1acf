#!/usr/bin/env bash
# tools/fuzz.sh SECONDS: builds every fuzzer, runs each for SECONDS, as many at once as there are cores, and says how many
# inputs it tried. What it learns is kept in build/asan/corpus for the next run; an input that breaks something is kept in
# build/asan/crashes, and the exit status is 1.
set -euo pipefail

seconds=${1:?usage: tools/fuzz.sh SECONDS}
cd "$(dirname "$0")/.."
export out=build/asan seconds
# The search for leaks at the end of a run may take as long as a short run.
((seconds < 30)) && export ASAN_OPTIONS=detect_leaks=0

cmake --preset asan >/dev/null
cmake --build "$out" --target fuzzers | tail -n 1
mkdir -p "$out/crashes"
"$out/fuzz/fuzz_seeds" "$out/corpus"

run() {
  local fuzzer=$1 corpus=$out/corpus/$1 log=$out/$1.log status=0 tried
  mkdir -p "$corpus"
  local inputs=("$corpus")
  [[ -d "fuzz/corpus/$fuzzer" ]] && inputs+=("fuzz/corpus/$fuzzer")
  "$out/fuzz/$fuzzer" -max_total_time="$seconds" -print_final_stats=1 -timeout=10 \
    -malloc_limit_mb=64 -rss_limit_mb=2048 -artifact_prefix="$out/crashes/$fuzzer-" \
    "${inputs[@]}" >"$log" 2>&1 </dev/null || status=$?
  tried=$(awk '/stat::number_of_executed_units/ {print $2}' "$log")
  if ((status == 0)); then
    printf 'fuzz: %-32s %10s inputs tried, nothing broke\n' "$fuzzer" "${tried:-0}"
    return
  fi
  printf 'fuzz: %-32s broke; the end of %s:\n' "$fuzzer" "$log"
  tail -n 40 "$log"
  find "$out/crashes" -name "$fuzzer-*" -exec printf 'fuzz: kept %s\n' {} +
  return 1
}
export -f run
xargs -P "${JOBS:-$(nproc)}" -I{} bash -c 'run {}' <"$out/fuzz/fuzzers.txt"
