#!/usr/bin/env bash
# Runs the suite of the process group over MPI: each test is a job of its own. Needs Debian's libopenmpi-dev,
# openmpi-bin and libclang-dev.  Usage: scripts/test-mpi.sh [ranks]
set -euo pipefail
cd "$(dirname "$0")/.."
ranks=${1:-4}
binary=$(cargo test --release --features mpi --test dist_mpi --no-run --message-format=json |
  sed -n 's/.*"executable":"\([^"]*dist_mpi[^"]*\)".*/\1/p' | tail -1)
job() { timeout 120 mpirun --allow-run-as-root --oversubscribe -n "$ranks" "$binary" --ignored --exact --test-threads=1 "$@"; }

job every_collective_gives_what_the_oracle_says
job training_over_mpi_ends_with_the_bytes_of_one_rank
# The ranks end with errors of their own, without finalising MPI; what counts is what each test asserted.
out=$(job different_collectives_are_an_error_on_every_rank --nocapture 2>&1 || true)
test "$(grep -c 'do not agree' <<<"$out")" -ge "$ranks" || { echo "$out"; exit 1; }
if out=$(job a_panic_ends_the_job 2>&1); then echo "a job with a panic ended well: $out"; exit 1; fi
grep -q MPI_ABORT <<<"$out" || { echo "$out"; exit 1; }
echo "== MPI: all passed on $ranks ranks"
