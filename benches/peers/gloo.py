"""The peer's collectives: sums of float32 over gloo between processes of one thread each, as `yolo-train bench --comm` times them.

    python benches/peers/gloo.py [--ranks 2] [--bytes 1024,10485760]

Needs PyTorch. Prints a JSON object with the keys of `yolo-train bench --comm --json`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

SIZES = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 10 << 20, 16 << 20, 64 << 20]


def rank(number, size, meeting, sizes):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=number, world_size=size)
    rows = []
    for size_in_bytes in sizes:
        # The same numbers, repeats and checks as ours.
        pattern = torch.arange(size_in_bytes // 4) % 97
        pattern = pattern.float()
        values = pattern * (number + 1)
        repeats = max(10, min(1000, (256 << 20) // size_in_bytes))
        times = []
        for repeat in range(repeats + repeats // 10 + 1):
            if repeat % 16 == 0:
                values.copy_(pattern * (number + 1))
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(values)
            seconds = time.perf_counter() - start
            if repeat % 16 == 0:
                assert torch.equal(values, pattern * (size * (size + 1) // 2)), "a sum is wrong"
            if repeat > repeats // 10:
                times.append(seconds)
        times.sort()
        median = times[len(times) // 2]
        rows.append(
            {
                "collective": "all_reduce",
                "bytes": size_in_bytes,
                "repeats": repeats,
                "median_ms": median * 1e3,
                "best_ms": times[0] * 1e3,
                "gb_per_s": size_in_bytes / median / 1e9,
            }
        )
    if number == 0:
        print(json.dumps({"engine": f"gloo of PyTorch {torch.__version__}", "ranks": size, "rows": rows}), flush=True)
    dist.destroy_process_group()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--bytes", default=",".join(map(str, SIZES)))
    p.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    p.add_argument("--meeting", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.rank is not None:
        rank(a.rank, a.ranks, a.meeting, [int(b) for b in a.bytes.split(",")])
        return
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, os.path.abspath(__file__), "--ranks", str(a.ranks), "--bytes", a.bytes]
        words += ["--meeting", os.path.join(folder, "meeting"), "--rank"]
        env = dict(os.environ, OMP_NUM_THREADS="1")
        ranks = [subprocess.Popen([*words, str(number)], env=env) for number in range(a.ranks)]
        ends = [process.wait() for process in ranks]
    if any(ends):
        sys.exit(f"ranks ended with {ends}")


if __name__ == "__main__":
    main()
