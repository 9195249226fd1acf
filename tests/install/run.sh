#!/usr/bin/env bash
# Installs Lockstep into an empty folder, builds examples/hello against it as a user would, and runs it on 3
# workers with the installed command.
#   run.sh BUILD_DIR SOURCE_DIR
set -euo pipefail
build=$1
source=$2
work=$(mktemp -d "${TMPDIR:-/tmp}/lockstep install XXXXXX")  # a path with spaces
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" >"$work/install.log"
cmake -S "$source/examples/hello" -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" \
      -DCMAKE_CXX_FLAGS="${LOCKSTEP_CONSUMER_FLAGS:-}" >"$work/configure.log"
cmake --build "$work/build" >"$work/build.log" || { cat "$work/build.log"; exit 1; }
if find "$work/prefix/include" -name '*.h' -newer /dev/null | grep -v '/include/lockstep/'; then
  echo "installed a header outside include/lockstep"
  exit 1
fi
"$work/build/hello" | grep -qx 'rank 0 of 1: the sum of all ranks is 0'
"$work/prefix/bin/lockstep" run -n 3 -- "$work/build/hello" >"$work/out"
for rank in 0 1 2; do grep -q "rank $rank of 3: the sum of all ranks is 3" "$work/out"; done
