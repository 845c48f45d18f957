"""Frequencies of every kind of RoPE that the configs can name, as the transformers library computes them.

rope.json is a list of cases: `words` of a config, `frequencies` (one for each pair of a head) and `factor`, by which
cosines and sines are multiplied.
"""

import json
import os

from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

YARN = {"rope_type": "yarn", "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 4096}
LLAMA31 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 8192}

CASES = [
    # head_dim, rope_parameters, words of the config besides head_dim and rope_max_timescale
    (256, {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}, ["rope_linear_scaling_factor=8"]),  # Gemma 3
    (64, {"rope_type": "linear", "rope_theta": 1e4, "factor": 1.0, "partial_rotary_factor": 0.25},
     ["partial_rotary_factor=0.25"]),
    (128, LLAMA31, ["rope_type=llama3.1"]),
    (64, {**LLAMA31, "factor": 32.0}, ["rope_type=llama3.1", "llama_rope_factor=32"]),  # Llama 3.2
    (128, {**LLAMA31, "factor": 16.0, "high_freq_factor": 1.0},
     ["rope_type=llama3.1", "llama_rope_factor=16", "llama_rope_high_freq_factor=1"]),  # Llama 4
    (64, {**YARN, "rope_theta": 1e4, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0},
     ["rope_type=yarn"]),  # DeepSeek V3
    (64, {**YARN, "rope_theta": 1.5e5, "factor": 32.0, "truncate": False},
     ["rope_type=yarn", "rope_factor=32", "rope_truncate=false", "rope_attention_scaling=true"]),  # gpt-oss
    (128, {**YARN, "rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 8192},
     ["rope_type=yarn", "rope_factor=8", "original_max_position_embeddings=8192", "rope_attention_scaling=true"]),  # OLMo 3
    (128, {**YARN, "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768,
           "partial_rotary_factor": 0.5},
     ["rope_type=yarn", "rope_factor=4", "original_max_position_embeddings=32768", "rope_attention_scaling=true",
      "partial_rotary_factor=0.5"]),
    # All pairs scaled or none: the ends of the blend are clamped, and one after the other.
    (16, {**YARN, "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 8},
     ["rope_type=yarn", "rope_factor=4", "original_max_position_embeddings=8", "rope_attention_scaling=true"]),
    (16, {**YARN, "rope_theta": 3.0, "factor": 4.0, "beta_fast": 1},
     ["rope_type=yarn", "rope_factor=4", "beta_fast=1", "rope_attention_scaling=true"]),
]


def main():
    cases = []
    for head_dim, parameters, words in CASES:
        config = LlamaConfig(hidden_size=4 * head_dim, num_attention_heads=4, head_dim=head_dim,
                             max_position_embeddings=1 << 20, rope_parameters=dict(parameters))
        frequencies, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu")
        cases.append({
            "words": [f"head_dim={head_dim}", f"rope_max_timescale={parameters['rope_theta']}"] + words,
            "frequencies": [float(f"{f:.9g}") for f in frequencies.double().tolist()], "factor": factor,
        })
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rope.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(cases, file, indent=0)
        file.write("\n")


if __name__ == "__main__":
    main()
