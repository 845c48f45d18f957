#!/usr/bin/env python3
"""Training steps of GPT-2 124M in this engine and in PyTorch, in turns.

    python3 tests/peers/gpt2.py [--threads 2] [--batch 4] [--length 1024] [--rounds 5] [--path avx2] [--dtypes bf16,f32]
                                [WORD ...]

The model, its parameters, the batch, bf16 products with f32 masters, AdamW and the number of threads are the same. So
are the losses of each step, up to bf16: they are compared, and a difference above 1 % fails. Words such as
remat_policy=full or quantization=int8 go to the engine. PyTorch runs eagerly, then compiled by torch.compile (its first
step takes a minute). The last lines give the median of the ratios of steps that followed each other: by time, and by
processor time of all threads, which other programs on the machine disturb less.

--dtypes gives the dtype of products in the engine and in PyTorch, which may differ: on AVX2, PyTorch multiplies bf16 in
plain loops, so its f32 is the better peer there.

--path limits both programs to an instruction set: the engine by --isa, and its f32 products by OPENBLAS_CORETYPE;
PyTorch's own loops and those of torch.compile by ATEN_CPU_CAPABILITY, its bf16 products by ONEDNN_MAX_CPU_ISA, its f32
products by MKL_ENABLE_INSTRUCTIONS. Without it each program chooses. The first lines say what each uses, as its
libraries report it.

Needs torch and numpy (pip install torch numpy) and, for torch.compile, a C++ compiler.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

# Of each path of the engine: the limits of ATen, oneDNN and MKL, and the core type of the engine's OpenBLAS.
VARIABLES = "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "OPENBLAS_CORETYPE"
LIMITS = {
    "avx2": ("avx2", "AVX2", "AVX2", "Haswell"),
    "avx512": ("avx512", "AVX512_CORE_VNNI", "AVX512", "SkylakeX"),
    "avx512_bf16": ("avx512", "AVX512_CORE_BF16", "AVX512", "SkylakeX"),
}
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
options.add_argument("--threads", type=int, default=os.cpu_count(), help="of each program; default: all cores")
options.add_argument("--batch", type=int, default=4, help="sequences of a step")
options.add_argument("--length", type=int, default=1024, help="tokens of a sequence")
options.add_argument("--layers", type=int, default=12, help="of the model; fewer for a quick look")
options.add_argument("--rounds", type=int, default=5, help="measured steps of each, after two of warm-up")
options.add_argument("--mxlua", default=os.path.join(ROOT, "build", "mxlua"), help="the engine's program")
options.add_argument("--path", choices=LIMITS, help="instruction set of both; default: each chooses")
options.add_argument("--dtypes", default="bf16,bf16", help="of products in the engine, in PyTorch: bf16 or f32")
options.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
options.add_argument("words", nargs="*", metavar="WORD", help="of the engine's configuration")
options = options.parse_args()
dtypes = options.dtypes.split(",")
if len(dtypes) != 2 or not set(dtypes) <= {"bf16", "f32"}:
    sys.exit(f"gpt2.py: --dtypes is '{options.dtypes}'; expected two of bf16 and f32, such as bf16,f32")

if options.path:  # before the libraries look
    os.environ.update(zip(VARIABLES, LIMITS[options.path]))

try:
    import numpy
    import torch
    import torch.nn.functional as F
except ImportError as error:
    sys.exit(f"gpt2.py compares with PyTorch: {error}; pip install torch numpy")

HEADS, RATE = 12, 1e-4


class Engine:
    """The engine's program, one step at a time."""

    def __init__(self, path):
        words = [
            path, "model_name=gpt2-124m", f"base_num_decoder_layers={options.layers}",
            f"max_target_length={options.length}",
            f"per_device_batch_size={options.batch}", "remat_policy=none", f"learning_rate={RATE}",
            "lr_schedule_type=constant", "warmup_steps_fraction=0", "gradient_clipping_threshold=0",
        ]
        words += ["dtype=float32"] if dtypes[0] == "f32" else []
        command = [options.mxlua, "--threads", str(options.threads)] + (["--isa", options.path] if options.path else [])
        command.append(os.path.join(ROOT, "tests/peers/gpt2.lua"))
        self.process = subprocess.Popen(
            command + words + options.words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        first = self.process.stdout.readline().split()
        if first[:1] != ["ready"]:
            sys.exit("gpt2.py: the engine did not start")
        self.products = " ".join(first[1:])

    def step(self):
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        return tuple(map(float, self.process.stdout.readline().split()))


class Gpt2(torch.nn.Module):
    """GPT-2 on the engine's parameters. Their matrices have the input first, those of PyTorch's layers the output."""

    def __init__(self, arrays):
        super().__init__()
        self.p = torch.nn.ParameterDict({
            name.replace(".", "_"): torch.nn.Parameter(torch.from_numpy(
                array.T.copy() if name.startswith("layer") and array.ndim == 2 else array))
            for name, array in arrays.items() if name not in ("tokens", "targets")
        })

    def norm(self, name, x):
        return F.layer_norm(x, x.shape[-1:], self.p[name + "_weight"], self.p[name + "_bias"], 1e-5)

    def linear(self, name, x):
        return F.linear(x, self.p[name + "_weight"], self.p[name + "_bias"])

    def layer(self, name, x):
        batch, length, width = x.shape
        h = self.norm(name + "_norm", x)
        q, k, v = (
            self.linear(f"{name}_{part}", h).view(batch, length, HEADS, width // HEADS).transpose(1, 2)
            for part in ("query", "key", "value"))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.linear(name + "_out", h.transpose(1, 2).reshape(batch, length, width))
        h = F.gelu(self.linear(name + "_wi", self.norm(name + "_mlp_norm", x)), approximate="tanh")
        return x + self.linear(name + "_wo", h)

    def forward(self, tokens, targets):
        x = F.embedding(tokens, self.p["embedding_weight"]) + self.p["position_weight"][:tokens.shape[1]]
        for i in range(1, options.layers + 1):
            x = self.layer(f"layer{i:03d}", x)
        logits = self.norm("norm", x) @ self.p["embedding_weight"].t()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Peer:
    def __init__(self, arrays, is_compiled):
        model = Gpt2(arrays)
        self.optimizer = torch.optim.AdamW(model.parameters(), RATE, (0.9, 0.95), 1e-8, 0.1, fused=True)
        self.model = torch.compile(model) if is_compiled else model
        self.tokens, self.targets = (torch.from_numpy(arrays[name]).long() for name in ("tokens", "targets"))

    def step(self):
        start, busy = time.perf_counter(), time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtypes[1] == "bf16"):
            loss = self.model(self.tokens, self.targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - start, time.process_time() - busy, loss.item()


def products_of_torch():
    """What multiplies matrices in PyTorch, from the logs of one product in another process."""
    code = ("import torch; m = torch.nn.Linear(768, 768); x = torch.ones(512, 768)\n"
            f"with torch.autocast('cpu', torch.bfloat16, enabled={dtypes[1] == 'bf16'}): m(x)")
    log = subprocess.run([sys.executable, "-c", code], env={**os.environ, "ONEDNN_VERBOSE": "1", "MKL_VERBOSE": "1"},
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    onednn = re.search(r"exec,cpu,(?:matmul|inner_product),([^,]+)", log)
    mkl = re.search(r"MKL_VERBOSE oneMKL.*?\((Intel\(R\) AVX[^)]*)\)", log)
    return f"oneDNN's {onednn[1]}" if onednn else f"MKL on {mkl[1]}" if mkl else "loops of ATen"


def main():
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(os.path.join(folder, "start.npz"))
        start = os.path.join(folder, "start.npz")
        runs = {"mxlua": engine, "eager": Peer(dict(numpy.load(start)), False)}
        if not options.no_compile:
            runs["compile"] = Peer(dict(numpy.load(start)), True)
    tokens = options.batch * options.length
    print(f"GPT-2, {options.layers} layers, {options.batch} x {options.length} tokens, threads: {options.threads}")
    print(f"mxlua: {dtypes[0]} products on {engine.products}")
    print(f"torch {torch.__version__}: {dtypes[1]} products by {products_of_torch()}, "
          f"loops on {torch.backends.cpu.get_cpu_capability()}")
    print(f"{'tokens/s':>10s}" + "".join(f"{name:>10s}" for name in runs) + "   loss")
    times = {name: [] for name in runs}
    for turn in range(-2, options.rounds):
        results = {name: run.step() for name, run in runs.items()}
        losses = [loss for _, _, loss in results.values()]
        for name, (seconds, busy, _) in results.items():
            times[name] += [(seconds, busy)] if turn >= 0 else []
        print(f"{turn + 1 if turn >= 0 else 'warm-up':>10}"
              + "".join(f"{tokens / seconds:10.1f}" for seconds, _, _ in results.values())
              + "   " + ", ".join(f"{loss:.4f}" for loss in losses), flush=True)
        if not max(losses) < 1.01 * min(losses) or any(loss != loss for loss in losses):
            sys.exit("gpt2.py: the losses differ by more than 1 %, so the programs do not train the same model")
    for name in list(runs)[1:]:
        by_time, by_processor = (
            statistics.median(theirs[i] / ours[i] for ours, theirs in zip(times["mxlua"], times[name])) for i in (0, 1))
        print(f"mxlua is {by_time:.2f} times as fast as PyTorch's {name}; by processor time {by_processor:.2f} times")


main()
