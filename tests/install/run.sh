#!/usr/bin/env bash
# Installs Lockstep into an empty folder, builds the examples against it as a user would, and runs them with the
# installed command.
#   run.sh BUILD_DIR SOURCE_DIR [torch]      with `torch`, also what needs LibTorch
set -euo pipefail
build=$1
source=$2
work=$(mktemp -d "${TMPDIR:-/tmp}/lockstep install XXXXXX")  # a path with spaces
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" >"$work/install.log"
build_example() {
  cmake -S "$source/examples/$1" -B "$work/$1" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/configure.log" 2>&1 ||
    { cat "$work/configure.log"; exit 1; }
  cmake --build "$work/$1" "${@:2}" >"$work/build.log" || { cat "$work/build.log"; exit 1; }
}
build_example hello
if find "$work/prefix/include" -name '*.h' -newer /dev/null | grep -v '/include/lockstep/'; then
  echo "installed a header outside include/lockstep"
  exit 1
fi
"$work/hello/hello" | grep -x 'rank 0 of 1: the sum of all ranks is 0' >/dev/null
"$work/prefix/bin/lockstep" run -n 3 -- "$work/hello/hello" >"$work/out"
for rank in 0 1 2; do grep -q "rank $rank of 3: the sum of all ranks is 3" "$work/out"; done

[ "${3:-}" = torch ] || exit 0
# The loops of the README: alone, and on 4 workers, which see the same data and learn the same; the first to the bit. The second,
# and what both were made from, take as long to compile: only when all is tested.
targets=(train)
[ -z "${LOCKSTEP_TEST_FULL:-}" ] || targets+=(plain drop_in own_codec diloco sync_batchnorm mixed_precision uneven gan resnet)
build_example train --target "${targets[@]}"
cd "$work"
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
[ ! -x train/plain ] || train/plain | grep 'epoch 4: loss 0\.' >/dev/null
for program in train own_codec diloco drop_in sync_batchnorm mixed_precision; do
  [ -x train/$program ] || continue
  train/$program >alone.out
  test -s net.safetensors
  rm net.safetensors
  "$work/prefix/bin/lockstep" run -n 4 -- train/$program | sed 's/^\[0\] //' >four.out
  test -s net.safetensors
  grep -q 'epoch 4: loss 0\.' four.out
  # Equal batches and equal weights: in drop-in loops the order of additions differs, in loops of a Job nothing.
  [ $program != train ] && [ $program != own_codec ] && [ $program != diloco ] || cmp alone.out four.out
  # In half types a rounding more is seen in the loss.
  [ $program != mixed_precision ] || continue
  paste alone.out four.out | grep epoch | awk '{ d = $4 - $(NF / 2 + 4); if (d < -0.0005 || d > 0.0005) { print "apart: " $0; exit 1 } }'
done
# Loops whose data depends on the number of workers: alone, and on 4. Uneven workers have 32, 48, 64 and 80 batches.
if [ -x train/uneven ]; then
  train/uneven | grep 'epoch 2: loss 0\.[0-9]* over 32 batches' >/dev/null
  "$work/prefix/bin/lockstep" run -n 4 -- train/uneven | grep 'epoch 2: loss 0\.[0-9]* over 224 batches' >/dev/null
  train/gan | grep 'step 600: radius [0-3]\.' >/dev/null
  "$work/prefix/bin/lockstep" run -n 4 -- train/gan | grep 'step 600: radius [0-3]\.' >/dev/null
fi
if [ -x train/resnet ]; then
  train/resnet >alone.out
  grep -q '^step 31: loss' alone.out
  for workers in 2 3; do
    "$work/prefix/bin/lockstep" run -n $workers -- train/resnet | sed 's/^\[0\] //' | cmp - alone.out
  done
fi
# A table of some trainings, each of which may diverge, and one number of the noise scale.
if [ -n "${LOCKSTEP_TEST_FULL:-}" ]; then
  build_example large_batch
  large_batch/large_batch quick >alone.out
  [ "$(grep -c '%' alone.out)" = 6 ]
  "$work/prefix/bin/lockstep" run -n 3 -- large_batch/large_batch quick | sed 's/^\[0\] //' | cmp - alone.out
fi
"$work/prefix/bin/lockstep" train --model mlp --data synthetic --steps 2 --global-batch 8 --workers 2 --quiet --checkpoint none |
  grep 'Trained after 2 steps' >/dev/null
