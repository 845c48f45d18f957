#!/usr/bin/env python3
"""Training steps of GPT-2 124M in this engine and in PyTorch, in turns.

    python3 tests/peers/gpt2.py [--threads 2] [--batch 4] [--length 1024] [--rounds 5] [WORD ...]

The model, its parameters, the batch, bf16 products with f32 masters, AdamW and the number of threads are the same. So
are the losses of each step, up to bf16: they are compared, and a difference above 1 % fails. Words such as
remat_policy=full or quantization=int8 go to the engine. PyTorch runs eagerly, then compiled by torch.compile (its first
step takes a minute). The last line gives the median of the ratios of steps that followed each other.

Needs torch and numpy (pip install torch numpy) and, for torch.compile, a C++ compiler.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
options.add_argument("--threads", type=int, default=os.cpu_count(), help="of each program; default: all cores")
options.add_argument("--batch", type=int, default=4, help="sequences of a step")
options.add_argument("--length", type=int, default=1024, help="tokens of a sequence")
options.add_argument("--layers", type=int, default=12, help="of the model; fewer for a quick look")
options.add_argument("--rounds", type=int, default=5, help="measured steps of each, after two of warm-up")
options.add_argument("--mxlua", default=os.path.join(ROOT, "build", "mxlua"), help="the engine's program")
options.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
options.add_argument("words", nargs="*", metavar="WORD", help="of the engine's configuration")
options = options.parse_args()

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
        command = [options.mxlua, "--threads", str(options.threads), os.path.join(ROOT, "tests/peers/gpt2.lua")]
        self.process = subprocess.Popen(
            command + words + options.words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        first = self.process.stdout.readline().split()
        if first[:1] != ["ready"]:
            sys.exit("gpt2.py: the engine did not start")
        self.path_of_instructions = first[1]

    def step(self):
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        seconds, loss = self.process.stdout.readline().split()
        return float(seconds), float(loss)


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
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16):
            loss = self.model(self.tokens, self.targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - start, loss.item()


def main():
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(os.path.join(folder, "start.npz"))
        start = os.path.join(folder, "start.npz")
        runs = {"mxlua": engine, "eager": Peer(dict(numpy.load(start)), False)}
        if not options.no_compile:
            runs["compile"] = Peer(dict(numpy.load(start)), True)
    tokens = options.batch * options.length
    print(f"GPT-2, {options.layers} layers, {options.batch} x {options.length} tokens, threads: {options.threads}; "
          f"mxlua on {engine.path_of_instructions}, torch {torch.__version__}")
    print(f"{'tokens/s':>10s}" + "".join(f"{name:>10s}" for name in runs) + "   loss")
    rates = {name: [] for name in runs}
    for turn in range(-2, options.rounds):
        results = {name: run.step() for name, run in runs.items()}
        losses = [loss for _, loss in results.values()]
        for name, (seconds, _) in results.items():
            rates[name] += [tokens / seconds] if turn >= 0 else []
        print(f"{turn + 1 if turn >= 0 else 'warm-up':>10}"
              + "".join(f"{tokens / seconds:10.1f}" for seconds, _ in results.values())
              + "   " + ", ".join(f"{loss:.4f}" for loss in losses), flush=True)
        if not max(losses) < 1.01 * min(losses) or any(loss != loss for loss in losses):
            sys.exit("gpt2.py: the losses differ by more than 1 %, so the programs do not train the same model")
    for name in list(runs)[1:]:
        ratio = statistics.median(ours / theirs for ours, theirs in zip(rates["mxlua"], rates[name]))
        print(f"mxlua is {ratio:.2f} times as fast as PyTorch's {name}")


main()
