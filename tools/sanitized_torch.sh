#!/usr/bin/env bash
# Runs layer_test of a build under sanitizers in which LibTorch is not instrumented.
#   sanitized_torch.sh asan-torch|tsan-torch [GTEST_FILTER]
# Left out: what compares with other processes (`lockstep train`, PyTorch), and every job on every number of workers, of
# which the sample of SameBits stays.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
export GTEST_FILTER=${2:-'-Train/Against*:Every/SameBitsOfJob.*'}
# No search for leaks: a case that is to refuse create_graph has LibTorch make a cycle, which stays.
export ASAN_OPTIONS="detect_leaks=0 detect_stack_use_after_return=1"
export UBSAN_OPTIONS="print_stacktrace=1"
# What LibTorch does by itself is not looked at, only what our code does. OpenMP's and OpenBLAS's threads would meet in
# ways that the sanitizer does not see: they are not started, and what it says of them is passed over.
export TSAN_OPTIONS="halt_on_error=1 ignore_noninstrumented_modules=1 suppressions=$PWD/tools/tsan_torch.txt"
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 GTEST_TOTAL_SHARDS=${JOBS:-$(nproc)}
seq 0 $((GTEST_TOTAL_SHARDS - 1)) | xargs -P "$GTEST_TOTAL_SHARDS" -I '{}' env GTEST_SHARD_INDEX='{}' \
  timeout 1500 "build/$preset/tests/torch/layer_test" --gtest_brief=1
