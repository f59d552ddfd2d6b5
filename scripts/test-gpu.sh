#!/usr/bin/env bash
# What can be tested of GPUs without one: kernels and training on any Vulkan (Debian's mesa-vulkan-drivers is one in
# software), and everything around CUDA and NCCL over fake drivers.  Usage: scripts/test-gpu.sh
set -euo pipefail
cd "$(dirname "$0")/.."
export YOLO_TRAIN_REQUIRE_WGPU=1
cargo test --release --features cuda,wgpu --lib -- gpu device --test-threads=2
