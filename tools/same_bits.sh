#!/usr/bin/env bash
# Every job gives one hash, whatever it runs on: models × optimizers × clipping, each on several numbers of workers, engines,
# algorithms and bucket sizes. Prints a line for each job; fails if one has two hashes. Workers are processes; at the end
# threads of one, where every choice meets every other (tests/torch/same_bits_test.cpp).
#
#   tools/same_bits.sh [LOCKSTEP [STEPS]]      ENGINES="tcp" for some of the engines; WORKERS=processes or threads for one half
set -euo pipefail
cd "$(dirname "$0")/.."
lockstep=${1:-build/lockstep}
steps=${2:-30}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
head -c 20000 /dev/zero | tr '\0' 'a' | sed 's/aaaaaaa/lockstep. /g' >"$folder/text"
engines=${ENGINES:-shm tcp}

hash_of() { "$lockstep" train --quiet --checkpoint none --steps "$steps" --report "$folder/report.json" "$@" >/dev/null &&
  sed -n 's/.*"weights_sha256": "\([0-9a-f]*\)".*/\1/p' "$folder/report.json"; }

failed=0
check() {  # a job: its options
  local hashes="" runs=0
  once() { hashes+="$(hash_of "${job[@]}" "$@")"$'\n'; runs=$((runs + 1)); }
  local job=("$@")
  for workers in 1 2 3 4 5 8; do once --workers "$workers"; done
  for engine in $engines; do
    once --workers 2 --engine "$engine" --bucket-bytes 65536
    once --workers 3 --engine "$engine" --bucket-bytes 1048576
    once --workers 4 --engine "$engine" --algorithm halving-doubling
  done
  local different
  different=$(printf '%s' "$hashes" | sort -u | wc -l)
  printf '%-70s %2d runs, %s\n' "${job[*]/$folder\//}" "$runs" \
    "$([ "$different" = 1 ] && echo "one hash: $(printf '%s' "$hashes" | head -c 16)…" || echo "$different HASHES")"
  [ "$different" = 1 ] || failed=1
}

as_processes() {
  local model optimizer clip shards first last word
  for model in "mlp --data synthetic:300" "cnn --data synthetic:300" "gpt --data $folder/text --context 32"; do
    for optimizer in sgd adamw; do
      for clip in 0 0.5; do
        # shellcheck disable=SC2086
        check --model $model --optimizer "$optimizer" --clip-norm "$clip" --global-batch 16
      done
    done
  done
  check --model cnn --data synthetic:300 --optimizer lars --ema 0.9 --sync-batchnorm on --global-batch 16
  check --model mlp --data synthetic:300 --optimizer lamb --precision bf16 --loss-scale 1024 --clip-norm 0.5 --global-batch 16
  check --model gpt --data "$folder/text" --context 32 --precision bf16-held --clip-value 0.01 --global-batch 16
  for shards in 1 2 3 5 6 7; do
    first=$(hash_of --model cnn --data synthetic:200 --shards "$shards" --global-batch $((shards * 2)) --workers 1)
    last=$(hash_of --model cnn --data synthetic:200 --shards "$shards" --global-batch $((shards * 2)) --workers "$shards")
    [ "$first" = "$last" ] && word="one hash: ${first:0:16}…" || { word="2 HASHES"; failed=1; }
    printf '%-70s %2d runs, %s\n' "--model cnn --shards $shards, 1 and $shards workers" 2 "$word"
  done
}
as_threads() {
  local threads filter='Every/SameBitsOfJob.*'
  threads="$(dirname "$lockstep")/tests/torch/layer_test"
  if [ -x "$threads" ]; then
    "$threads" --gtest_list_tests --gtest_filter="$filter" | grep -q AllChoices || { echo "no test is called $filter" >&2; exit 1; }
    export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 LOCKSTEP_TEST_FULL=1 GTEST_TOTAL_SHARDS
    GTEST_TOTAL_SHARDS=$(nproc)
    seq 0 $((GTEST_TOTAL_SHARDS - 1)) | xargs -P "$GTEST_TOTAL_SHARDS" -I '{}' env GTEST_SHARD_INDEX='{}' \
      "$threads" --gtest_brief=1 --gtest_filter="$filter" || failed=1
  fi
}
[ "${WORKERS:-processes}" = threads ] || as_processes
[ "${WORKERS:-threads}" = processes ] || as_threads
exit $failed
