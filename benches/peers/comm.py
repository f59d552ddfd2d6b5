#!/usr/bin/env python3
"""Compares collectives with PyTorch's gloo: both between processes of this machine, in turn, ratios pair by pair.

    python3 benches/peers/comm.py --binary target/release/yolo-train --python /tmp/venv-peer/bin/python --pairs 5

Per size: medians over the pairs of the median times, and gloo's time over ours pair by pair (above 1: ours is faster; also the
ratio of the bandwidths) as median, least and greatest. With --json all that was measured.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
COLLECTIVES = ["all_reduce", "all_reduce_tree"]


def run(words):
    out = subprocess.run(words, capture_output=True, text=True)
    if out.returncode:
        sys.exit(f"{words[0]} failed:\n{out.stdout[-2000:]}\n{out.stderr[-2000:]}")
    return json.loads(out.stdout.splitlines()[-1])


def medians(found):
    return {(row["collective"], row["bytes"]): row["median_ms"] for row in found["rows"]}


def size_of(n):
    for unit, name in [(1 << 20, "MiB"), (1 << 10, "KiB")]:
        if n % unit == 0:
            return f"{n // unit} {name}"
    return f"{n} B"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--binary", default="target/release/yolo-train")
    p.add_argument("--python", required=True, help="a Python with PyTorch")
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--bytes", help="sizes with commas between them; 1 KiB to 64 MiB without")
    p.add_argument("--pairs", type=int, default=5)
    p.add_argument("--json")
    a = p.parse_args()
    ours = [os.path.abspath(a.binary), "bench", "--json", f"--comm={a.bytes or 'true'}", f"--device=cpu:{a.ranks}"]
    gloo = [a.python, os.path.join(HERE, "gloo.py"), "--ranks", str(a.ranks)]
    gloo += ["--bytes", a.bytes] if a.bytes else []
    everything = []
    for pair in range(a.pairs):
        # Who begins alternates.
        turns = [("ours", ours), ("gloo", gloo)]
        found = {name: run(words) for name, words in (turns if pair % 2 == 0 else reversed(turns))}
        everything.append(found)
        print(f"pair {pair + 1} of {a.pairs} done", file=sys.stderr, flush=True)

    pairs = [(medians(found["ours"]), medians(found["gloo"])) for found in everything]
    sizes = [row["bytes"] for row in everything[0]["gloo"]["rows"]]
    print(f"{a.ranks} ranks, {a.pairs} pairs; {everything[0]['gloo']['engine']}")
    print(f"{'size':>8}  {'gloo ms':>9}" + "".join(f"  {name + ' ms':>18}  {'ratio (least to greatest)':>26}" for name in COLLECTIVES))
    for size in sizes:
        line = f"{size_of(size):>8}  {statistics.median(g['all_reduce', size] for _, g in pairs):9.4f}"
        for name in COLLECTIVES:
            ratios = [g["all_reduce", size] / o[name, size] for o, g in pairs]
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            line += f"  {statistics.median(o[name, size] for o, _ in pairs):18.4f}  {spread:>26}"
        print(line)
    if a.json:
        with open(a.json, "w") as f:
            json.dump(everything, f, indent=1)


if __name__ == "__main__":
    main()
