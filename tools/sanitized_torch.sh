#!/usr/bin/env bash
# Runs layer_test of a build under sanitizers in which LibTorch is not instrumented.
#   sanitized_torch.sh asan-torch|tsan-torch [GTEST_FILTER]
# Left out: what compares with other processes (`lockstep train`, PyTorch), and every job on every number of workers, of
# which the sample of SameBits stays.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
export GTEST_FILTER=${2:-'-Train/Against*:Every/SameBitsOfJob.*'}
# LibTorch's own: both it and its dependencies define some globals; memory that its globals hold at the end is no leak of
# ours, and is looked for below torch/.
export ASAN_OPTIONS="detect_leaks=0 detect_odr_violation=0 detect_stack_use_after_return=1"
export UBSAN_OPTIONS="print_stacktrace=1"
# What LibTorch and its libraries do among themselves is not seen, only what our code does; OpenMP's own threads, which
# would be reported falsely, are not started.
export TSAN_OPTIONS="halt_on_error=1 ignore_noninstrumented_modules=1 suppressions=$PWD/tools/tsan_torch.txt"
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 GTEST_TOTAL_SHARDS=${JOBS:-$(nproc)}
seq 0 $((GTEST_TOTAL_SHARDS - 1)) | xargs -P "$GTEST_TOTAL_SHARDS" -I '{}' env GTEST_SHARD_INDEX='{}' \
  timeout 1500 "build/$preset/tests/torch/layer_test" --gtest_brief=1
