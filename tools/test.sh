#!/usr/bin/env bash
# Everything a change must pass, in some 15 minutes on 2 cores. The long ones are in tools/test_full.sh.
#
#   1. checks of form: clang-format, function size, classes, documents; layers as part of the tests
#   2. the tests, optimised build
#   3. the tests again under address+undefined and under thread sanitizers (everything below torch/), which are built
#      behind the tests before them
#   4. the fuzzers, 3 s each
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}
# Many tests wait more than they compute: more at a time than there are cores. Those under sanitizers wait most.
run_tests() { ctest --test-dir "$1" --output-on-failure --no-tests=error -j "$((jobs + 1))" "${@:2}"; }
step() { printf '\n== %s\n' "$*"; }

step "form"
git ls-files '*.h' '*.cpp' | xargs clang-format-14 --dry-run -Werror
tools/check_functions.py
tools/check_classes.py
tools/check_docs.py --self-test
tools/check_docs.py

# build_behind PRESET: builds it behind the tests that run now, which wait as much as they compute; the least priority
# keeps out of their way. A process group of its own, to be ended with this script.
builder=
trap '[ -z "$builder" ] || kill -- "-$builder" 2>/dev/null || true' EXIT
build_behind() {
  mkdir -p "build/$1"
  set -m
  nice -n 19 sh -c 'cmake --preset "$1" && cmake --build --preset "$1" -j "$2"' - "$1" "$jobs" >"build/$1/build.log" 2>&1 &
  builder=$!
  set +m
}
await_build() {
  wait "$builder" || { builder=; cat "build/$1/build.log"; exit 1; }
  builder=
}

# OpenMP's threads wait asleep: where more tests run than there are cores, those that wait awake take ten times as long.
export OMP_WAIT_POLICY=passive
export TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1" UBSAN_OPTIONS="print_stacktrace=1"
export ASAN_OPTIONS="detect_leaks=0 detect_stack_use_after_return=1"
step "tests"
build_behind asan
run_tests build

# Whole programs: leaks are looked for at the end of each, which takes seconds on some processors. What starts processes
# of its own looks for none. Those of tests/comm begin, because they wait longest.
step "tests under the address and undefined-behaviour sanitizers"
await_build asan
build_behind tsan
find build/asan/tests/comm build/asan/src -name '*_test' -type f -print0 |
  ASAN_OPTIONS="detect_leaks=1 detect_stack_use_after_return=1" xargs -0 -P "$((jobs + 2))" -n 1 \
    sh -c 'timeout 300 "$0" --gtest_brief=1 >"$0.log" 2>&1 || { cat "$0.log"; exit 1; }'
run_tests build/asan -L launcher
step "tests under the thread sanitizer"
await_build tsan
run_tests build/tsan -j "$((jobs + 2))"
unset ASAN_OPTIONS TSAN_OPTIONS UBSAN_OPTIONS

step "fuzzers"
tools/fuzz.sh 3
printf '\nall passed\n'
