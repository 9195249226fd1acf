#!/usr/bin/env bash
# Installs the Debian packages of a list that are missing, after saying which and from where: as root, or with sudo;
# where neither works it prints the line to run. On a system without dpkg (or with other package names) it leaves the
# choice to the user and CMake says what it misses. LOCKSTEP_SKIP_DEPS=1: installs nothing.
#   install_deps.sh LIST [build]     with `build`, only those above the line of dashes
set -euo pipefail
list=$1
part=${2:-all}
command -v dpkg-query >/dev/null || exit 0
[ "${LOCKSTEP_SKIP_DEPS:-}" = 1 ] && exit 0
missing=()
while read -r package; do
  case $package in '# ----') [ "$part" = build ] && break || continue ;; ''|\#*) continue ;; esac
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done <"$list"
[ ${#missing[@]} -eq 0 ] && exit 0

install=(apt-get install -y -qq --no-install-recommends "${missing[@]}")
if [ "$(id -u)" = 0 ]; then
  as_root=()
elif sudo -n true 2>/dev/null; then
  as_root=(sudo)
else
  echo "lockstep: missing packages; run: sudo apt-get install --no-install-recommends ${missing[*]}" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
echo "lockstep: installing with apt-get, from the sources of this system (/etc/apt): ${missing[*]}"
"${as_root[@]}" "${install[@]}" >/dev/null 2>&1 && exit 0
# The package lists may be old or absent.
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" "${install[@]}" >/dev/null
