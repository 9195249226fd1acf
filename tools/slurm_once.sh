#!/bin/bash
# Runs a job of two tasks under Slurm on this machine, with a controller, a node and munge of its own, and ends them.
#
#   tools/slurm_once.sh [BUILD]      as root, with Debian's slurm-wlm and munge installed
#
# 1. srun starts two workers, which join by Slurm's variables.
# 2. srun starts a launcher, which starts two workers.
set -euo pipefail

build=$(realpath "${1:-build}")
actor=$build/tests/launcher/launcher_join_actor
for program in munged slurmctld slurmd srun; do
  command -v "$program" > /dev/null || PATH=$PATH:/usr/sbin command -v "$program" > /dev/null ||
    { echo "no $program here: apt install slurm-wlm munge"; exit 77; }
done
PATH=$PATH:/usr/sbin
[ "$(id -u)" = 0 ] || { echo "slurmd must be started by root"; exit 77; }

folder=$(mktemp -d /tmp/lockstep-slurm-XXXXXX)
started=()
finish() {
  for pid in "${started[@]}"; do kill "$pid" 2> /dev/null || true; done
  for pid in "${started[@]}"; do wait "$pid" 2> /dev/null || true; done
  rm -rf "$folder"
}
trap finish EXIT

host=$(hostname -s)
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'; }
dd if=/dev/urandom of="$folder/munge.key" bs=128 count=1 status=none
chmod 711 "$folder"
chmod 600 "$folder/munge.key"
munged --force --foreground --socket="$folder/munge" --key-file="$folder/munge.key" --pid-file="$folder/munged.pid" \
       --log-file="$folder/munged.log" --seed-file="$folder/munge.seed" > /dev/null 2>&1 &
started+=($!)

cat > "$folder/slurm.conf" << END
ClusterName=once
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
END
export SLURM_CONF=$folder/slurm.conf
mkdir "$folder/state" "$folder/spool"
for _ in $(seq 100); do [ -S "$folder/munge" ] && break; sleep 0.1; done
slurmctld -D -f "$SLURM_CONF" > "$folder/slurmctld.log" 2>&1 &
started+=($!)
slurmd -D -f "$SLURM_CONF" -N "$host" > "$folder/slurmd.log" 2>&1 &
started+=($!)
for _ in $(seq 300); do sinfo -h -o %t 2> /dev/null | grep -q idle && break; sleep 0.1; done
sinfo || { cat "$folder"/*.log; exit 1; }

echo "srun starts two workers:"
timeout 60 srun --overcommit -n 2 "$actor" | tee "$folder/out" || { tail -n 20 "$folder"/*.log; exit 1; }
grep -q "joined slurm rank 1 of 2 sum 3" "$folder/out"

echo "srun starts a launcher:"
timeout 60 srun -n 1 sh -c "exec '$build/lockstep' run --nodes \$SLURM_NNODES --node-rank \$SLURM_NODEID -n 2 -- '$actor'" \
  | tee "$folder/out"
grep -q "joined lockstep rank 1 of 2 sum 3" "$folder/out"
echo "Slurm $(srun --version | cut -d' ' -f2): both worked"
