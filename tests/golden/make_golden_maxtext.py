"""Training steps of MaxText itself, for tests/lua/test_maxtext_golden.lua: twenty of the first cases in maxtext.h5, five
of each further block that decoder_block names in maxtext_blocks.h5, and of blocks with experts in maxtext_experts.h5.

    JAX_PLATFORMS=cpu python make_golden_maxtext.py FOLDER

FOLDER holds an unpacked MaxText 0.2.5 (its folder `maxtext`). Needs Python 3.12, jax 0.12.0, flax 0.12.12, optax, h5py
and what MaxText imports to train; modules for clouds, data pipelines and other models are replaced by empty ones below.

A case is a list of key=value words. Both programs read `words`; MaxText alone reads `theirs` (its names for what mxlua
says otherwise), and mxlua alone `ours`. The files hold for each case

    CASE.tokens, .targets, .segments, .positions   (steps, B, S) i32; segment 0 is padding
    CASE.mask                                      (steps, B, S) u8: which targets count
    CASE.params.NAME, CASE.final.NAME              parameters before and after, under mxlua's names, as (in, out)
    CASE.losses, .norms, .rates                    (steps) f32; norms of gradients before clipping

and in the attribute `about` the words as JSON. A case with `like` starts from the parameters and batches of another
case, and stores neither. Blocks, with experts or without, store no `final`.

MaxText rounds a tied table to bf16 for the logits, in any dtype. `exact_table` takes that rounding out.
"""

import functools
import importlib.abc
import importlib.machinery
import json
import pathlib
import sys
import types
import unittest.mock
import zlib

import h5py
import numpy as np

STEPS, SEQUENCES, LENGTH, VOCAB = 20, 2, 16, 44

SIZES = [
    "base_emb_dim=24", "base_num_query_heads=4", "base_num_kv_heads=2", "head_dim=6", "base_mlp_dim=32",
    "base_num_decoder_layers=2", f"vocab_size={VOCAB}", f"per_device_batch_size={SEQUENCES}",
    f"max_target_length={LENGTH}", f"steps={STEPS}", "learning_rate=0.003", "enable_checkpointing=false",
]
THEIRS = [
    "run_name=golden", "scan_layers=false", "attention=dot_product", "dataset_type=synthetic", "hardware=cpu",
    "enable_dropout=false", "skip_jax_distributed_system=true", "enable_tensorboard=false",
]

CASES = {
    # Llama 2: grouped queries; the scale of attention is in the initial query weights.
    "llama": {
        "words": ["dtype=float32", "normalize_embedding_logits=false"],
        "ours": ["fold_attention_scale=true"],
    },
    # The same in bf16, with f32 weights.
    "llama_bf16": {
        "like": "llama",
        "words": ["dtype=bfloat16", "normalize_embedding_logits=false"],
        "ours": ["fold_attention_scale=true"],
    },
    # The same with first moments in bf16.
    "moments": {
        "like": "llama",
        "words": ["dtype=float32", "mu_dtype=bfloat16", "normalize_embedding_logits=false"],
        "ours": ["fold_attention_scale=true"],
    },
    # Qwen 3: norms of queries and keys; packed documents and padding, z-loss, WSD, norms do not decay.
    "qwen": {
        "packed": True,
        "words": [
            "dtype=float32", "use_qk_norm=true", "normalization_layer_epsilon=1e-6", "z_loss_multiplier=0.001",
            "lr_schedule_type=wsd", "wsd_decay_steps_fraction=0.4", "adamw_mask=[norm]", "adam_weight_decay=0.5",
            "normalize_embedding_logits=false",
        ],
        "theirs": ["decoder_block=qwen3"],
    },
    # A table that gives the logits, too. MaxText rounds it to bf16 for that, whatever the dtype.
    "tied": {
        "words": [
            "dtype=float32", "logits_via_embedding=true", "normalize_embedding_logits=true", "adam_b2=0.99",
            "adam_eps_root=1e-12",
        ],
        "theirs": ["logits_dot_in_fp32=true"],
        "ours": ["fold_attention_scale=true"],
    },
    # A soft cap of the scores; only the MLPs are trained; the schedule ends before the run.
    "frozen": {
        "words": [
            "dtype=float32", "attn_logits_soft_cap=2.0", "trainable_parameters_mask=[wi_,wo]",
            "gradient_clipping_threshold=0.0", "learning_rate_schedule_steps=15", "warmup_steps_fraction=0.2",
            "learning_rate_final_fraction=0.25", "wsd_decay_style=cosine", "lr_schedule_type=wsd",
            "wsd_decay_steps_fraction=0.5", "normalize_embedding_logits=false",
        ],
        "ours": ["fold_attention_scale=true"],
    },
}

# Norms do not decay: MaxText's would towards 0, mxlua's towards 1.
GEMMA = [
    "dtype=float32", "mlp_activations=[gelu,linear]", "logits_via_embedding=true", "normalization_layer_epsilon=1e-6",
    "adamw_mask=[norm]",
]
POST_NORMS = ["use_post_attn_norm=true", "use_post_ffw_norm=true", "sliding_window_size=5"]
FOLDED = ["fold_attention_scale=true"]
TIED = {"exact_table": True, "theirs": ["logits_dot_in_fp32=true"]}

BLOCKS = {
    "default": {"words": ["decoder_block=default", "dtype=float32"], "ours": FOLDED},
    "gemma": {**TIED, "words": ["decoder_block=gemma", *GEMMA], "ours": FOLDED},
    "gemma2": {  # the two layers of a config are four
        **TIED, "ours": FOLDED,
        "words": ["decoder_block=gemma2", *GEMMA, *POST_NORMS, "attn_logits_soft_cap=2", "final_logits_soft_cap=4"],
    },
    "gemma3": {
        "exact_table": True,
        "words": [
            "decoder_block=gemma3", *GEMMA, *POST_NORMS, "base_num_decoder_layers=6", "rope_linear_scaling_factor=4.0",
            "rope_max_timescale=1000", "local_rope_max_timescale=50",
        ],
        "theirs": ["logits_dot_in_fp32=true", "model_name=gemma3-4b", "override_model_config=true"],
    },
    "olmo3": {
        "words": [
            "decoder_block=olmo3", "dtype=float32", "base_num_decoder_layers=4", "sliding_window_size=5",
            "use_qk_norm=true", "normalization_layer_epsilon=1e-6", "rope_max_timescale=1000",
        ],
        "theirs": ["model_name=olmo3-7b-pt", "override_model_config=true"],
    },
    "gpt3": {
        "exact_table": True,
        "words": [
            "decoder_block=gpt3", "dtype=float32", "base_num_kv_heads=4", f"trainable_position_size={LENGTH}",
            "mlp_activations=[gelu]", "logits_via_embedding=true", "normalize_embedding_logits=false",
        ],
        "theirs": ["logits_dot_in_fp32=true", "fused_qkv=false"],
    },
}

# The losses hold the load-balance loss. MaxText's Megablox kernels need a TPU; without them it uses lax.ragged_dot.
ROUTED = ["dtype=float32", "normalize_embedding_logits=false", "num_experts_per_tok=2", "base_moe_mlp_dim=32"]

EXPERTS = {
    "mixtral": {
        "words": ["decoder_block=mixtral", *ROUTED, "num_experts=4", "load_balance_loss_weight=0.05"],
        "theirs": ["megablox=false"], "ours": FOLDED,
    },
    # At most 1.25 times the even share of an expert in a sequence: other products in MaxText, and tokens are dropped.
    "mixtral_dropped": {
        "like": "mixtral", "ours": FOLDED,
        "words": [
            "decoder_block=mixtral", *ROUTED, "num_experts=4", "load_balance_loss_weight=0.05", "sparse_matmul=false",
            "capacity_factor=1.25",
        ],
    },
    "qwen3_moe": {
        "words": [
            "decoder_block=qwen3_moe", *ROUTED, "num_experts=6", "norm_topk_prob=true", "use_qk_norm=true",
            "float32_gate_logits=true", "load_balance_loss_weight=0.05", "normalization_layer_epsilon=1e-6",
        ],
        "theirs": ["megablox=false"],
    },
    # Every second layer has experts, of which a token gets one; norms after MLPs and experts.
    "envy": {
        "words": [
            "decoder_block=envy", "dtype=float32", "normalize_embedding_logits=false", "num_experts=4",
            "num_experts_per_tok=1", "base_moe_mlp_dim=24", "interleave_moe_layer_step=2", "use_qk_norm=true",
            "use_post_ffw_norm=true", "load_balance_loss_weight=0.05", "sparse_matmul=false",
        ],
    },
}

# ---- modules that training on a CPU does not use ----

ABSENT = {
    "PIL", "google", "google_cloud_mldiagnostics", "grain", "librosa", "ml_goodput_measurement", "mlperf_logging",
    "sentencepiece", "tensorflow", "tiktoken", "tokamax", "tokenizers", "transformers",
}


class Empty(types.ModuleType):
    """A module that has every name: classes for capitalised ones, empty modules otherwise."""

    __path__ = []
    __version__ = "9.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper():
            base = Exception if name.endswith("Error") else object
            value = type(name, (base,), {"__init__": lambda self, *_, **__: None})
        else:
            value = Empty(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value

    def __call__(self, *args, **_):
        return args[0] if len(args) == 1 and callable(args[0]) else self


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Empty(spec.name)

    def exec_module(self, module):
        pass


# ---- batches ----


def batches(name, packed, steps):
    """A batch for each step: whole sequences, or two documents and padding in each sequence."""
    rng = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    shape = (steps, SEQUENCES, LENGTH)
    ids = rng.integers(0, VOCAB, (steps, SEQUENCES, LENGTH + 1))
    segments = np.ones(shape, np.int32)
    positions = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), shape).copy()
    if packed:
        for index in np.ndindex(steps, SEQUENCES):
            cut, end = rng.integers(3, 8), rng.integers(11, LENGTH + 1)
            segments[index][cut:end], segments[index][end:] = 2, 0
            positions[index][cut:end] = np.arange(end - cut)
            positions[index][end:] = 0
    return {
        "tokens": ids[:, :, :-1].astype(np.int32), "targets": ids[:, :, 1:].astype(np.int32), "segments": segments,
        "positions": positions, "mask": (segments > 0).astype(np.uint8),
    }


def batch_of(data, step):
    from_ours = {"inputs": "tokens", "targets": "targets"}
    for side in ("inputs", "targets"):
        from_ours |= {f"{side}_position": "positions", f"{side}_segmentation": "segments"}
    return {theirs: np.asarray(data[ours][step]) for theirs, ours in from_ours.items()}


# ---- parameters ----

PARTS = {
    "pre_self_attention_layer_norm": "norm", "pre_self_attention_norm": "norm",
    "post_self_attention_layer_norm": "mlp_norm", "post_self_attention_norm": "post_norm", "pre_ffw_norm": "mlp_norm",
    "post_ffw_norm": "mlp_post_norm", "post_mlp_layer_norm": "mlp_post_norm", "mlp/mlp_layer_norm": "mlp_norm",
}
WHOLE = {
    "token_embedder/embedding": "embedding.weight", "decoder/position_embedder/embedding": "position.weight",
    "decoder/decoder_norm/scale": "norm.weight", "decoder/decoder_norm/bias": "norm.bias",
    "decoder/logits_dense/kernel": "unembedding.weight",
}


def our_name(path, block):
    if path in WHOLE:
        return WHOLE[path]
    _, layer, part = path.split("/", 2)
    number = int(layer.removeprefix("layers_")) + 1
    if block == "gemma2":
        number = 2 * number - ("_local" in part)
        part = part.replace("_local", "").replace("_global", "")
    if part.startswith(("MoeBlock_0/", "moe_block/")):
        part = part.split("/")[1]
        return f"layer{number:03d}.{'router' if part == 'gate' else 'experts.' + part}.weight"
    part, kind = part.rsplit("/", 1)
    name = PARTS.get(part) or part.split("/")[1]
    if block == "olmo3" and part == "post_self_attention_layer_norm":
        name = "post_norm"
    return f"layer{number:03d}.{name}.{'bias' if kind == 'bias' else 'weight'}"


def as_matrix(name, a):
    """Heads and their features are one dimension here."""
    if name.endswith(".bias"):
        return a.reshape(-1)
    if a.ndim == 3 and "experts" not in name:
        return a.reshape(-1, a.shape[-1]) if name.endswith("out.weight") else a.reshape(a.shape[0], -1)
    return a


def parameters(jax, state, block):
    """Under mxlua's names. Its norms of Gemma add 1 to their weights."""
    found = {}
    for path, value in jax.tree_util.tree_leaves_with_path(state):
        name = our_name(jax.tree_util.keystr(path, simple=True, separator="/").removesuffix("/value"), block)
        found[name] = as_matrix(name, np.asarray(value, np.float32))
        if block.startswith("gemma") and name.endswith("norm.weight"):
            found[name] = found[name] - 1
    return found


# ---- the run ----


def attend_in_f32(query, table, dtype, *_):
    import jax.numpy as jnp

    return jnp.dot(query, table.T, preferred_element_type=dtype)


def run(folder, case, data, start, block, steps):
    """Trains from the parameters of MaxText's initial state `start` (None: its own)."""
    import jax
    from flax import nnx
    from flax.core.spmd import logical_axis_rules
    from maxtext.common import train_state_nnx
    from maxtext.configs import pyconfig
    from maxtext.layers import nnx_decoders
    from maxtext.trainers.pre_train import train
    from maxtext.utils import maxtext_utils, model_creation_utils, train_utils

    words = SIZES + THEIRS + case["words"] + case.get("theirs", [])
    config = pyconfig.initialize(["train", str(folder / "maxtext/configs/base.yml"), *words])
    mesh = maxtext_utils.get_mesh_from_config(config)
    attend = attend_in_f32 if case.get("exact_table") else nnx_decoders.attend_on_embedding
    patch = unittest.mock.patch.object(nnx_decoders, "attend_on_embedding", attend)
    with patch, jax.set_mesh(mesh), logical_axis_rules(config.logical_axis_rules):
        create, abstract = model_creation_utils.create_nnx_abstract_model(config, mesh)
        schedule, optimizer = train_utils.create_training_optimizer(config, abstract, mesh=mesh)
        model = create()
        if start is not None:
            nnx.update(model, start)
        start = nnx.state(model, nnx.Param)
        first = parameters(jax, start, block)
        state = train_state_nnx.TrainStateNNX(model, nnx.Optimizer(model, optimizer, wrt=nnx.Param))
        graph, state = nnx.split(state)
        step = jax.jit(functools.partial(train.train_step, graph, config, None, None))
        losses, norms, rates = [], [], []
        for i in range(steps):
            rates.append(float(schedule(i)))
            state, metrics = step(state, batch_of(data, i))
            losses.append(float(metrics["scalar"]["learning/loss"]))
            norms.append(float(metrics["scalar"]["learning/raw_grad_norm"]))
        last = parameters(jax, nnx.state(nnx.merge(graph, state).model, nnx.Param), block)
    return start, first, last, {"losses": losses, "norms": norms, "rates": rates}


def make(folder, file_name, cases, steps):
    path = pathlib.Path(__file__).with_name(file_name)
    about, known = {}, {}
    with h5py.File(path, "w") as file:
        for name, case in cases.items():
            like = case.get("like")
            data, start = known[like] if like else (batches(name, case.get("packed", False), steps), None)
            start, first, last, figures = run(folder, case, data, start, name, steps)
            known[name] = data, start
            arrays = {key: np.asarray(value, np.float32) for key, value in figures.items()}
            if not like:
                arrays |= data
                arrays |= {f"params.{key}": value for key, value in first.items()}
            if not like and cases is CASES:
                arrays |= {f"final.{key}": value for key, value in last.items()}
            for key, value in arrays.items():
                file.create_dataset(f"{name}.{key}", data=value, track_times=False)
            about[name] = {"words": SIZES + case["words"] + case.get("ours", []), "from": like or name}
            print(name, figures["losses"][0], figures["losses"][-1])
        file.attrs["about"] = json.dumps(about)


def main():
    folder = pathlib.Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(folder))
    sys.meta_path.append(Finder())
    make(folder, "maxtext.h5", CASES, STEPS)
    make(folder, "maxtext_blocks.h5", BLOCKS, 5)
    make(folder, "maxtext_experts.h5", EXPERTS, 5)


main()
