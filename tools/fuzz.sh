#!/usr/bin/env bash
# tools/fuzz.sh SECONDS: builds every fuzzer, runs each for SECONDS, and says how many inputs it tried.
# What it learns is kept in build/fuzz/corpus for the next run; an input that breaks something is kept
# in build/fuzz/crashes, and the exit status is 1.
set -euo pipefail

seconds=${1:?usage: tools/fuzz.sh SECONDS}
cd "$(dirname "$0")/.."
out=build/fuzz

cmake --preset fuzz >/dev/null
cmake --build "$out" --target fuzzers | tail -n 1
mkdir -p "$out/crashes"
"$out/fuzz/fuzz_seeds" "$out/corpus"

failed=0
while read -r fuzzer; do
  corpus="$out/corpus/$fuzzer"
  log="$out/$fuzzer.log"
  mkdir -p "$corpus"
  inputs=("$corpus")
  [[ -d "fuzz/corpus/$fuzzer" ]] && inputs+=("fuzz/corpus/$fuzzer")
  status=0
  "$out/fuzz/$fuzzer" -max_total_time="$seconds" -print_final_stats=1 -timeout=10 \
    -malloc_limit_mb=64 -rss_limit_mb=2048 -artifact_prefix="$out/crashes/$fuzzer-" \
    "${inputs[@]}" >"$log" 2>&1 </dev/null || status=$?
  tried=$(awk '/stat::number_of_executed_units/ {print $2}' "$log")
  if ((status == 0)); then
    printf 'fuzz: %-32s %10s inputs tried, nothing broke\n' "$fuzzer" "${tried:-0}"
  else
    failed=1
    printf 'fuzz: %-32s broke; the end of %s:\n' "$fuzzer" "$log"
    tail -n 40 "$log"
    find "$out/crashes" -name "$fuzzer-*" -exec printf 'fuzz: kept %s\n' {} +
  fi
done <"$out/fuzz/fuzzers.txt"
exit "$failed"
