#!/usr/bin/env bash
# Runs raddle's checks, example and benchmarks on a machine with a GPU. `cargo xtask gpu` has put this script next to
# the programs.
#
#   ./run            all steps
#   ./run STEP...    tests, example, bench or experiments
#
# The logs, the tables and summary.txt are in $OUT, or in the folder `out` next to this script. Each program may take
# RADDLE_STEP_SECONDS (240 by default). The status is 0 if all programs passed, and 1 otherwise; a GPU is required.

set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${OUT:-$here/out}
mkdir -p "$out"
chmod +x "$here"/bin/*
# The folders in which containers and distributions put the driver's library.
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/nvidia/lib64:/usr/lib/wsl/lib
export RADDLE_REQUIRE_GPU=1 RADDLE_BENCH_OUT=$out/tables
failed=0

# Runs the program $2 with its arguments, under the name $1.
program() {
    local name=$1 status start=$SECONDS
    shift
    timeout --kill-after=5 "${RADDLE_STEP_SECONDS:-240}" "$here/bin/$1" "${@:2}" >"$out/$name.log" 2>&1 </dev/null
    status=$?
    [[ $status -eq 0 ]] || failed=1
    {
        printf '%-24s status %3d %4d s  ' "$name" "$status" $((SECONDS - start))
        grep -E '^(test result|all together|verdict)|panicked at' "$out/$name.log" | tail -n 3 | tr '\n' ' '
        echo
    } | tee -a "$out/summary.txt"
}

{ uname -a && nvidia-smi; } >"$out/summary.txt" 2>&1
[[ $# -gt 0 ]] || set -- tests example bench experiments
for step in "$@"; do
    case $step in
    tests)
        for marks in counter events; do
            RADDLE_CUDA_MARKS=$marks program "cuda-$marks" cuda
            RADDLE_CUDA_MARKS=$marks program "cuda-$marks-one-by-one" cuda --test-threads=1
        done
        program devices devices
        ;;
    example)
        for kib in 64 1024 4096; do
            program "gpu_pipeline-$kib-kib" gpu_pipeline --gpu cuda --chunk-kib "$kib"
        done
        ;;
    # By default there are eight hardware queues, which sixteen threads, each with a stream, would share.
    bench) CUDA_DEVICE_MAX_CONNECTIONS=32 program bench gpu ;;
    experiments)
        for name in $("$here/bin/experiments" --list | sed -nE 's/^ *[0-9]+ +([^ ]+).*/\1/p'); do
            program "$name" experiments "$name"
        done
        ;;
    *) echo "there is no step $step" >&2 && exit 2 ;;
    esac
done
exit "$failed"
