#!/usr/bin/env python3
"""Added tokens of every kind in random texts, and the ids that the package `tokenizers` gives: added.json.

    tokens   fields of added_tokens of a tokenizer.json whose vocabulary is the byte letters
    texts    [text, [id, ...]]

    pip install tokenizers==0.23.3
"""

import json
import os
import random

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

FOLDER = os.path.dirname(os.path.abspath(__file__))
TOKENS = [
    # content, single_word, lstrip, rstrip, normalized, special
    ("<|end|>", 0, 0, 0, 0, 1), ("<|im|>", 0, 0, 1, 0, 1), ("<|im|>x", 0, 0, 0, 0, 0), ("    ", 0, 0, 0, 0, 0),
    ("  ", 0, 0, 0, 1, 0), ("<tool>", 0, 1, 1, 0, 0), ("word", 1, 0, 0, 1, 0), ("words", 1, 1, 0, 0, 0),
    ("Foo", 0, 0, 0, 1, 0), ("FooBar", 0, 0, 1, 1, 0), ("\u65e5\u672c", 0, 0, 0, 1, 0), ("\u65e5", 1, 0, 0, 0, 0),
    ("\ufb01", 0, 0, 0, 1, 0), ("A\u030a", 0, 1, 0, 1, 0), ("\n", 0, 0, 0, 0, 0), ("\n\n", 0, 0, 0, 0, 0),
    ("aa", 0, 0, 0, 0, 0), ("aab", 0, 0, 0, 1, 0), ("\u00b2", 1, 0, 0, 0, 0),
]
PARTS = [t[0] for t in TOKENS] + [" ", "  ", "   ", "\t", "\u3000", "\u00a0", "a", "b", "x", "_", "1", "-", "'s", "\u00c5",
                                  "\u2168", "\u0301", "\u200d", "\U00010ec2", "\U0001e4d0", "wor", "Bar", "<|im", "\u672c"]


def main():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    data = json.loads(Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[])).to_str())
    data["added_tokens"] = [
        dict(zip(("content", "single_word", "lstrip", "rstrip", "normalized", "special"),
                 (t[0], *map(bool, t[1:]))), id=256 + i)
        for i, t in enumerate(TOKENS)
    ]
    data["normalizer"] = {"type": "NFC"}
    data["pre_tokenizer"] = json.loads(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r" ?\p{L}+| ?[^\s\p{L}]+|\s+"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)]).__getstate__())
    tokenizer = Tokenizer.from_str(json.dumps(data))
    rng, texts = random.Random(1), []
    while len(texts) < 400:
        text = "".join(rng.choice(PARTS) for _ in range(rng.randint(2, 8)))
        encoding = tokenizer.encode(text)
        texts.append([text, encoding.ids])
    with open(os.path.join(FOLDER, "added.json"), "w") as file:
        json.dump({"tokens": data["added_tokens"], "alphabet": alphabet, "normalizer": data["normalizer"],
                   "pre_tokenizer": data["pre_tokenizer"], "texts": texts}, file)
        file.write("\n")


if __name__ == "__main__":
    main()
