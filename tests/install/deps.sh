#!/usr/bin/env bash
# What is missing is said before anything is installed, and a build that lacks something names it and the step to run.
#   deps.sh SOURCE_DIR
set -euo pipefail
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "$1"; cat "$work/log"; exit 1; }

# A Debian that has everything but two packages.
mkdir "$work/bin"
cat >"$work/bin/dpkg-query" <<'FAKE'
#!/bin/sh
case $* in *libfmt-dev*|*clang-14*) exit 1 ;; *) echo 'install ok installed' ;; esac
FAKE
cat >"$work/bin/apt-get" <<'FAKE'
#!/bin/sh
cp "$LOG" "$LOG.before"
echo "$@" >>"$LOG.installed"
FAKE
printf '#!/bin/sh\nexec "$@"\n' >"$work/bin/sudo"
sed -i 's/^exec/[ "$1" = -n ] \&\& exit 0; exec/' "$work/bin/sudo"
chmod +x "$work"/bin/*
export LOG=$work/log
PATH="$work/bin:$PATH" "$source/tools/install_deps.sh" "$source/packages.txt" build >"$LOG" 2>&1 || fail "make deps failed"
grep -q 'installing with apt-get, from .*: libfmt-dev$' "$LOG.before" || fail "make deps said nothing before it began"
grep -q clang-14 "$LOG.installed" && fail "make deps installed what only tests need"
rm "$LOG.installed"
PATH="$work/bin:$PATH" "$source/tools/install_deps.sh" "$source/packages.txt" >"$LOG" 2>&1 || fail "make deps-test failed"
grep -q 'libfmt-dev clang-14$' "$LOG.installed" || fail "make deps-test did not install what is missing"

# Without two packages.
cmake -S "$source" -B "$work/build" -G Ninja -DCMAKE_DISABLE_FIND_PACKAGE_ZLIB=ON -DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON \
  >"$LOG" 2>&1 && fail "configured without zlib"
grep -q 'Not found: ZLIB (zlib1g-dev), CLI11 (libcli11-dev)' "$LOG" || fail "CMake did not name what is missing"
grep -q 'make deps' "$LOG" || fail "CMake did not name the step"

# Without a tool.
mkdir "$work/few"
for tool in bash sh make nproc c++ cmake; do ln -s "$(command -v "$tool")" "$work/few/$tool"; done
PATH=$work/few make -C "$source" build >"$LOG" 2>&1 && fail "built without Ninja"
grep -q 'there is no ninja: run `make deps`' "$LOG" || fail "make did not name the step"
