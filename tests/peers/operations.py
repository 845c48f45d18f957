#!/usr/bin/env python3
"""Single operations in this engine and in PyTorch, in turns: how many times as fast the engine is.

    python3 tests/peers/operations.py [--threads 1] [--mib 24] [--dtypes f32,bf16] [--rounds 2] [NAME ...]

Matrices of 4,096 columns of the given size, the same number of threads; each round times both, and the best of each
counts. PyTorch draws its own random numbers, and its indices are i64, as it wants them. The C library is told to keep
memory that PyTorch gives back, as the engine does, which it does up to 32 MiB: otherwise fresh pages cost PyTorch up to
half of the time. With NAMEs only those. The last line names what is slower here than in PyTorch.

Needs torch (pip install torch).
"""

import argparse
import os
import subprocess
import sys
import time

# Read when a process starts: nothing below 32 MiB, the most that is possible, is mapped or given back by itself.
KEEP = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
if not KEEP.items() <= os.environ.items():
    os.execve(sys.executable, [sys.executable] + sys.argv, {**os.environ, **KEEP})

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    sys.exit(f"operations.py compares with PyTorch: {error}; pip install torch")

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WIDTH = 4096

options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
options.add_argument("--threads", type=int, default=1, help="of each program")
options.add_argument("--mib", type=int, default=24, help="size of the matrices")
options.add_argument("--dtypes", default="f32,bf16")
options.add_argument("--rounds", type=int, default=2)
options.add_argument("--mxlua", default=os.path.join(ROOT, "build", "mxlua"), help="the engine's program")
options.add_argument("names", nargs="*", metavar="NAME")
options = options.parse_args()
torch.set_num_threads(options.threads)


def ids(x, high):
    return torch.randint(0, high, x.shape)


def on_rows(x, n):
    """x as rows of n elements, without what does not fill one."""
    return x.reshape(-1)[:x.numel() // n * n].view(-1, n)


def with_ids(call, dim):
    def make(x):
        at = ids(x, x.shape[dim])
        return lambda: call(x, dim, at)
    return make


def one_hot(x):
    classes = torch.randint(0, 64, (x.numel() // 64,))
    return lambda: F.one_hot(classes, 64)


def nonzero(x):
    ones = (torch.randint(0, 16, x.shape) == 0).to(x.dtype)
    return lambda: torch.nonzero(ones)


def bernoulli(x):
    p = torch.rand_like(x)
    return lambda: torch.bernoulli(p)


def index_select(x):
    rows = on_rows(x, 16)
    at = torch.randperm(rows.shape[0])
    return lambda: rows.index_select(0, at)


def batch_norm(x):
    planes = x.view(-1, 256, 256)
    one = torch.ones(256, dtype=x.dtype)
    return lambda: F.batch_norm(planes, None, None, one, one, True)


def of(call):
    """A call on the matrix itself."""
    return lambda x: lambda: call(x)


# What is made once of a matrix, and the call that is timed. As in operations.lua.
CASES = {
    "add": lambda x: (lambda y: lambda: x + y)(x.clone()),
    "gelu": of(lambda x: F.gelu(x, approximate="tanh")),
    "softplus": of(F.softplus),
    "erf": of(torch.erf),
    "tanh": of(torch.tanh),
    "log1p": lambda x: (lambda y: lambda: torch.log1p(y))(x.abs()),
    "pow": lambda x: (lambda y: lambda: y ** 1.7)(x.abs()),
    "sin": of(torch.sin),
    "where": of(lambda x: torch.where(x > 0, x, -1)),
    "sum_rows": of(lambda x: x.sum(1)),
    "sum_columns": of(lambda x: x.sum(0)),
    "max_columns": of(lambda x: x.amax(0)),
    "argmax_columns": of(lambda x: x.argmax(0)),
    "argmax_rows": of(lambda x: x.argmax(1)),
    "var_columns": of(lambda x: x.var(0)),
    "logsumexp_rows": of(lambda x: x.logsumexp(1)),
    "logsumexp_columns": of(lambda x: x.logsumexp(0)),
    "softmax_rows": of(lambda x: x.softmax(1)),
    "softmax_columns": of(lambda x: x.softmax(0)),
    "cumsum_rows": of(lambda x: x.cumsum(1)),
    "cumsum_columns": of(lambda x: x.cumsum(0)),
    "sort": of(lambda x: x.sort(1)),
    "argsort": of(lambda x: x.argsort(1)),
    "topk_64": of(lambda x: x.view(-1, 64).topk(8)),
    "topk_50257": lambda x: (lambda y: lambda: y.topk(50))(on_rows(x, 50257)),
    "rand": of(torch.rand_like),
    "randn": of(torch.randn_like),
    "truncated_normal": of(lambda x: torch.nn.init.trunc_normal_(torch.empty_like(x))),
    "bernoulli": bernoulli,
    "multinomial": lambda x: (lambda p: lambda: torch.multinomial(p, 1))(x.abs()),
    "randint": of(lambda x: torch.randint(0, 1000, x.shape, dtype=torch.int32)),
    "permutation": of(lambda x: torch.randperm(x.numel(), dtype=torch.int32)),
    "nonzero": nonzero,
    "one_hot": one_hot,
    "dropout": of(lambda x: F.dropout(x, 0.1)),
    "gather_rows": with_ids(lambda x, dim, at: x.gather(dim, at), 1),
    "gather_columns": with_ids(lambda x, dim, at: x.gather(dim, at), 0),
    "scatter_add_rows": with_ids(lambda x, dim, at: x.scatter_add(dim, at, x), 1),
    "scatter_add_columns": with_ids(lambda x, dim, at: x.scatter_add(dim, at, x), 0),
    "scatter_max_rows": with_ids(lambda x, dim, at: x.scatter_reduce(dim, at, x, "amax"), 1),
    "index_select": index_select,
    "transpose": of(lambda x: x.t().contiguous()),
    "permute": of(lambda x: x.view(-1, 32, 64, 32).permute(3, 2, 1, 0).contiguous()),
    "flip": of(lambda x: x.flip(1)),
    "batch_norm": batch_norm,
    "rfft": of(torch.fft.rfft),
    "irfft": lambda x: (lambda y: lambda: torch.fft.irfft(y))(torch.fft.rfft(x)),
    "fft_65536": lambda x: (lambda y: lambda: torch.fft.fft(y))(on_rows(x, 65536).to(torch.complex64)),
    "rfft_one_row": of(lambda x: torch.fft.rfft(x.view(-1))),
    "max_pool2d": of(lambda x: F.max_pool2d(x.view(-1, 64, 64, 64), 2, return_indices=True)),
}

F32_ONLY = {"rfft", "irfft", "fft_65536", "rfft_one_row"}


class Engine:
    def __init__(self):
        command = [options.mxlua, "--threads", str(options.threads), os.path.join(ROOT, "tests/peers/operations.lua")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            sys.exit("operations.py: the engine did not start")

    def seconds(self, name, dtype):
        self.process.stdin.write(f"{name} {dtype} {options.mib}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        try:
            return float(line)
        except ValueError:
            sys.exit(f"operations.py: {name} {dtype}: {line.strip()}")


def peer_seconds(name, x):
    call = CASES[name](x)
    call()
    best, begun = float("inf"), time.perf_counter()
    while best == float("inf") or time.perf_counter() - begun < 1 / 3:
        at = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - at)
    return best


def main():
    unknown = set(options.names) - set(CASES)
    if unknown:
        sys.exit(f"operations.py: no operation '{min(unknown)}'; known: {' '.join(CASES)}")
    dtypes = {"f32": torch.float32, "bf16": torch.bfloat16}
    engine, slower = Engine(), []
    print(f"{options.mib} MiB, {options.threads} threads, PyTorch {torch.__version__}\n")
    print(f"{'operation':20} {'dtype':5} {'ms here':>9} {'PyTorch':>9} {'times as fast':>14}")
    for name in options.names or CASES:
        for dtype in ["f32"] if name in F32_ONLY else options.dtypes.split(","):
            rows = (options.mib << 20) // dtypes[dtype].itemsize // WIDTH
            x = torch.randn(rows, WIDTH).to(dtypes[dtype])
            here = there = float("inf")
            for _ in range(options.rounds):
                here = min(here, engine.seconds(name, dtype))
                there = min(there, peer_seconds(name, x))
            print(f"{name:20} {dtype:5} {1e3 * here:9.2f} {1e3 * there:9.2f} {there / here:14.2f}", flush=True)
            if here > there:
                slower.append(f"{name} of {dtype}")
    print("\nslower here: " + (", ".join(slower) or "none"))


main()
