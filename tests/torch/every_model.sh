#!/usr/bin/env bash
# Trains each model for two steps on one worker: the world of one, which needs no engine.
#   every_model.sh LOCKSTEP
set -euo pipefail
lockstep=$1
work=$(mktemp -d "${TMPDIR:-/tmp}/lockstep models XXXXXX")
trap 'rm -rf "$work"' EXIT
for i in $(seq 400); do echo "all work and no play makes $i a dull number"; done >"$work/text.txt"
seq 100 | awk '{ print $1 / 10 "," $1 % 7 "," $1 % 3 }' >"$work/table.csv"
train() { "$lockstep" train --quiet --checkpoint none --workers 1 --steps 2 --global-batch 4 "$@" | tee "$work/out"; grep -q 'Trained after 2 steps' "$work/out"; }
train --model mlp --data synthetic:40 --optimizer lars --clip-value 1 --ema 0.9
train --model mlp --data "$work/table.csv" --optimizer adamw
train --model cnn --data synthetic:40 --accumulate 2 --optimizer adagrad
train --model resnet18 --data synthetic:40 --optimizer adam --report "$work/report.json"
grep -q '"parameters": 1117' "$work/report.json"
train --model gpt --data "$work/text.txt" --gpt-size small --context 32 --optimizer adamw --warmup 1 --decay cosine
