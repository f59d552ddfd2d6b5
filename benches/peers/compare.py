#!/usr/bin/env python3
"""Compares training steps with a peer: both as processes, in turn, ratios pair by pair.

    python3 benches/peers/compare.py --binary target/release/yolo-train --data my.yaml --peer-data peer.yaml \
        --venv /tmp/yolo-train-peer --row yolo26n,640,4,2 --row yolo26n,320,16,2 --pairs 5

Installs the peer from PyPI into the virtual environment if that is missing (outside the project; several GB). The two
data files describe the same images, one in each program's format. Prints one line per pair and row, and JSON with --json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
REQUIRED = "torch torchvision opencv-python-headless pillow numpy pyyaml requests psutil matplotlib polars scipy".split()


def install(venv):
    python = os.path.join(venv, "bin", "python")
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *REQUIRED], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "ultralytics", "ultralytics-thop"], check=True)
    return python


def ours(a, model, imgsz, batch, threads):
    words = f"bench --json --model {model} --imgsz {imgsz} --batch {batch} --threads {threads} --workers {threads}"
    out = subprocess.run(
        [os.path.abspath(a.binary), *words.split(), "--steps", str(a.steps), "--data", os.path.abspath(a.data)],
        check=True, capture_output=True, text=True,
    )
    return json.loads(out.stdout)


def peers(a, python, model, imgsz, batch, threads):
    with tempfile.TemporaryDirectory() as folder:
        env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
        env.update(OMP_NUM_THREADS=threads, YOLO_OFFLINE="true", YOLO_CONFIG_DIR=folder)
        out = subprocess.run(
            [python, os.path.join(HERE, "peer.py"), model, imgsz, batch, threads, str(a.steps), os.path.abspath(a.peer_data)]
            + (["best"] if a.best else []),
            cwd=folder, env=env, capture_output=True, text=True,
        )
        lines = [line for line in out.stdout.splitlines() if "RESULT " in line]
        if not lines:
            sys.exit(f"the peer failed:\n{out.stdout[-2000:]}\n{out.stderr[-2000:]}")
        return json.loads(lines[-1].split("RESULT ", 1)[1])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--binary", default="target/release/yolo-train")
    p.add_argument("--data", required=True)
    p.add_argument("--peer-data", required=True)
    p.add_argument("--venv", required=True)
    p.add_argument("--row", action="append", required=True, help="model,imgsz,batch,threads")
    p.add_argument("--pairs", type=int, default=1)
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--best", action="store_true", help="the peer with channels_last and bfloat16 autocast")
    p.add_argument("--json")
    a = p.parse_args()
    python = install(a.venv)
    rows, everything = [], []
    for row in a.row:
        parts = row.split(",")
        ratios = []
        for _ in range(a.pairs):
            x, y = ours(a, *parts), peers(a, python, *parts)
            ratios.append(x["images_per_s"] / y["images_per_s"])
            everything.append({"row": row, "ours": x, "peer": y})
            print(
                f"{row}: {x['images_per_s']:.2f} and {y['images_per_s']:.2f} images/s, ratio {ratios[-1]:.2f}; "
                f"memory {x['peak_memory_bytes'] / y['peak_memory_bytes']:.2f}, "
                f"first step {x['first_step_s']:.2f} s and {y['first_step_s']:.2f} s",
                flush=True,
            )
        rows.append(statistics.median(ratios))
        print(f"{row}: median ratio {rows[-1]:.2f} ({min(ratios):.2f} to {max(ratios):.2f}) of {a.pairs} pairs", flush=True)
    print(f"geometric mean of {len(rows)} rows: {statistics.geometric_mean(rows):.2f}")
    if a.json:
        with open(a.json, "w") as f:
            json.dump(everything, f, indent=1)


if __name__ == "__main__":
    main()
