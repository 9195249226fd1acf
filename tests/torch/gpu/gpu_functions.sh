# shellcheck shell=bash
# What the scripts of jobs on a GPU share. They have set lockstep, work (a folder) and job. DEVICE=cpu tries
# a script itself.
device=(--device "${DEVICE:-cuda}")
[ "${DEVICE:-cuda}" = cpu ] || device+=(--share-gpus)
fail() { echo "$(basename "$0"): $*" >&2; exit 1; }

# hash OPTIONS…: of the weights after a short job.
hash() {
  timeout 100 "$lockstep" train "${device[@]}" --steps "${steps:-12}" --shards 4 --global-batch 32 --quiet --checkpoint none \
    --report "$work/report" "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "lockstep train $* failed"; }
  sed -n 's/.*"weights_sha256": "\([0-9a-f]*\)".*/\1/p' "$work/report"
}
# same HASH…: all are one.
same() {
  local first=$1 other
  [ ${#first} = 64 ] || fail "$job: no hash"
  shift
  for other in "$@"; do [ "$first" = "$other" ] || fail "$job: other bits:" "$first" "$@"; done
  echo "$job: ${first:0:16} $# times"
}
# actor_hash KINDS WORKERS PROGRAM…: of the hashes that a program prints, one for each kind of job.
actor_hash() {
  LOCKSTEP_SHARE_GPUS=1 timeout 200 "$lockstep" run -n "$2" --device "${DEVICE:-cuda}" -- "${@:3}" >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; fail "$job, $2 workers: failed"; }
  grep -o '[a-z-]* [0-9a-f]\{64\}$' "$work/log" | sort -u >"$work/hashes"
  [ "$(wc -l <"$work/hashes")" = "$1" ] || { cat "$work/log" >&2; fail "$job, $2 workers: not one hash for each kind"; }
  sha256sum <"$work/hashes" | cut -d ' ' -f 1
}
