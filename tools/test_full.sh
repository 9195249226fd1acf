#!/usr/bin/env bash
# The long tests, in parts of at most 30 minutes each on 2 cores. What each covers, and when it last ran, is in
# docs/internals/testing.md.
#   test_full.sh          all of them, one after the other; stops at the first that fails
#   test_full.sh PART…    these
#   test_full.sh list     their names
# PRESET=cuda takes that build in place of `dev`: on a machine without Gloo, say.
set -euo pipefail
cd "$(dirname "$0")/.."
export JOBS=${JOBS:-$(nproc)}
export OMP_WAIT_POLICY=passive  # as tools/test.sh
dev=${PRESET:-dev}
tree=build
[ "$dev" = dev ] || tree=build/$dev
run_tests() { ctest --test-dir "$1" --output-on-failure --no-tests=error -j "$((JOBS + 1))" "${@:2}"; }
build() { cmake --preset "$1" >/dev/null && cmake --build --preset "$1" -j "$JOBS" "${@:2}" | tail -n 1; }

# What `make test` runs.
part_short() { tools/test.sh; }

# The fuzzers, 60 s each.
part_fuzz() { tools/fuzz.sh 60; }

# Every file below torch/ compiled alone: elsewhere folders are compiled as one, which hides what a file forgot to include.
# And what a GPU's thread does, under the address and undefined-behaviour sanitizers.
part_alone() {
  cmake --preset core >/dev/null
  tools/compile_alone.py build/core
  build asan --target device_text_test
  build/asan/tests/kernels/device_text_test --gtest_brief=1
}

# Every operation, with a worker stopped at every instant, and killed or stopped after any instruction.
part_faults() {
  build "$dev" --target process_faults_test
  LOCKSTEP_TEST_FULL=1 "$tree/tests/comm/process_faults_test" --gtest_brief=1 \
    --gtest_filter='*StoppedAtAnyInstant*:*AfterAnyInstruction'
}

# What was used and called in jobs through 50 faults each.
part_records() {
  build "$dev" --target lockstep faults_record_test
  LOCKSTEP_TEST_FULL=1 "$tree/tests/train/faults_record_test" --gtest_brief=1 --gtest_filter='*Fifty*'
}

# One hash for every job, on any number of workers: as processes, and as threads of one.
part_bits() {
  build "$dev" --target lockstep
  WORKERS=processes tools/same_bits.sh "$tree/lockstep"
}
part_bits-threads() {
  build "$dev" --target layer_test
  WORKERS=threads tools/same_bits.sh "$tree/lockstep"
}

# Workers in several hosts, which are network namespaces: 2 to 4 hosts of 1 to 4 workers, every fault, strangers, every model.
part_hosts() {
  build "$dev" --target hosts_test hosts_bench_test
  [ ! -x "$tree/lockstep-train" ] || build "$dev" --target hosts_train_test
  LOCKSTEP_TEST_FULL=1 run_tests "$tree" -L hosts -j 1
}

# Every model and optimizer beside LibTorch and beside PyTorch's DDP; every example against the installed package; every
# part of `make study`, with a few steps; replays of every kind of asynchronous job.
part_numbers() {
  build "$dev"
  LOCKSTEP_TEST_FULL=1 run_tests "$tree" -R '^(against_|Install\.AConsumer|Study\.)'
  LOCKSTEP_TEST_FULL=1 "$tree/tests/torch/layer_test" --gtest_brief=1 --gtest_filter='Asynchronous*'
  LOCKSTEP_TEST_FULL=1 "$tree/tests/train/train_command_test" --gtest_brief=1 --gtest_filter='Faults.*Asynchronous*'
}

# The tests, many times over, to catch what fails rarely. Those with LibTorch compute for minutes: fewer times. Those of a
# GPU are `make test-gpu`'s.
repeat() {
  build "$dev"
  run_tests "$tree" --repeat "until-fail:$1" "${@:2}"
}
part_repeat1() { repeat 20 -LE 'torch|gpu' -I 1,,4; }
part_repeat2() { repeat 20 -LE 'torch|gpu' -I 2,,4; }
part_repeat3() { repeat 20 -LE 'torch|gpu' -I 3,,4; }
part_repeat4() { repeat 20 -LE 'torch|gpu' -I 4,,4; }
part_repeat-torch() { repeat 5 -L torch -LE gpu; }

# torch/ under sanitizers; LibTorch itself is not instrumented (docs/internals/testing.md says what that costs).
part_asan-torch() {
  build asan-torch --target layer_test
  tools/sanitized_torch.sh asan-torch
}
part_tsan-torch() {
  build tsan-torch --target layer_test
  tools/sanitized_torch.sh tsan-torch
}

# clang-tidy, below torch/ and over it.
part_tidy() {
  build "$dev"
  tools/tidy.py --below-torch
}
part_tidy-torch() {
  build "$dev"
  tools/tidy.py --torch
}

all=$(sed -n 's/^part_\([a-z0-9-]*\)() .*/\1/p' "$0")
if [ "$*" = list ]; then
  printf '%s\n' $all
  exit
fi
for part in ${@:-$all}; do
  if ! declare -F "part_$part" >/dev/null; then
    echo "test_full.sh: there is no part '$part'; parts are" $all >&2
    exit 2
  fi
done
for part in ${@:-$all}; do
  printf '\n==== %s\n' "$part"
  began=$SECONDS
  # A program of its own: `set -e` does not hold inside a condition.
  if [ "${LOCKSTEP_PART:-}" = "$part" ]; then
    "part_$part"
    exit
  fi
  code=0
  LOCKSTEP_PART=$part "$0" "$part" || code=$?
  printf 'part %s: %s in %d s, %s, commit %s\n' "$part" "$([ "$code" = 0 ] && echo passed || echo "failed ($code)")" \
    "$((SECONDS - began))" "$(date -u +%F)" "$(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
  [ "$code" = 0 ] || exit 1
done
