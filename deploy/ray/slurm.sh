#!/bin/bash
# One experiment, or a sweep, on several nodes of a Slurm cluster. Submit it with: sbatch slurm.sh EXPERIMENT.toml
# The folder must be one that all nodes see, with .venv (pip install 'coterie[ray]') and the data in it.
#SBATCH --job-name=coterie
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem-per-cpu=4G
#SBATCH --time=12:00:00
#SBATCH --signal=B:TERM@120

set -euo pipefail

experiment=${1:?name the TOML file of the experiment}
run=${2:-runs/slurm-$SLURM_JOB_ID}
source .venv/bin/activate

# Ray carries out what it is sent: only who knows the token of this job is listened to.
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_TOKEN
export RAY_USAGE_STATS_ENABLED=0 OMP_NUM_THREADS=1

nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=$(head -n 1 <<<"$nodes")
address=$(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address | awk '{print $1}')

start() {  # node, arguments of `ray start`
  local node=$1
  shift
  srun --nodes=1 --ntasks=1 -w "$node" \
    ray start "$@" --num-cpus="$SLURM_CPUS_PER_TASK" --disable-usage-stats --block &
}

trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

start "$head" --head --node-ip-address="$address" --port=6379 --include-dashboard=false
for _ in $(seq 60); do
  ray status --address="$address:6379" >/dev/null 2>&1 && break
  sleep 2
done
for node in $(tail -n +2 <<<"$nodes"); do
  start "$node" --address="$address:6379"
done
sleep 10

# This script runs on the head node. When the job is out of time, submit it again with the same second argument.
export RAY_ADDRESS="$address:6379"
if [ -f "$run/config.toml" ]; then
  coterie run --resume "$run"
else
  coterie run --config "$experiment" --engine ray --run-dir "$run"
fi
