#!/usr/bin/env bash
# Runs layer_test of a build under sanitizers in which LibTorch is not instrumented.
#   sanitized_torch.sh asan-torch|tsan-torch [GTEST_FILTER]
# Left out: what compares with other processes (`lockstep train`, PyTorch), and every job on every number of workers, of
# which the sample of SameBits stays. And the rules of commit after every instruction: there are too many of them here.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
# No search for leaks: a case that is to refuse create_graph has LibTorch make a cycle, which stays.
export ASAN_OPTIONS="detect_leaks=0 detect_stack_use_after_return=1"
export UBSAN_OPTIONS="print_stacktrace=1"
# What LibTorch does by itself is not looked at, only what our code does. OpenMP's and OpenBLAS's threads would meet in
# ways that the sanitizer does not see: they are not started, and what it says of them is passed over.
export TSAN_OPTIONS="halt_on_error=1 ignore_noninstrumented_modules=1 suppressions=$PWD/tools/tsan_torch.txt"
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# Two halves beside each other; GoogleTest's own shards would be inherited by the programs that cases start.
filters=("${2:--*/*}" '*/*-Train/Against*:Every/SameBitsOfJob.*:*/Commit.*')
printf '%s\n' "${filters[@]:0:$((2 - ($# > 1)))}" | xargs -P 2 -I '{}' timeout 1500 "build/$preset/tests/torch/layer_test" --gtest_brief=1 \
  --gtest_filter='{}'
