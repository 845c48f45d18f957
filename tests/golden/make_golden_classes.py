#!/usr/bin/env python3
"""Random classes of characters as patterns of a pre-tokenizer, and the ids that the package `tokenizers` gives:
classes.json.

    alphabet   the tokens, by id: a letter for each byte; a space stands before each word
    cases      [pattern, behavior, invert, text, [id, ...]]

    pip install tokenizers==0.23.3
"""

import json
import os
import random

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

FOLDER = os.path.dirname(os.path.abspath(__file__))
ITEMS = r"""\p{L} \P{L} \p{Lu} \P{Lu} \w \W \s \S \d \D \h \H \p{^N} \p{Mn} \P{Mn} \p{Han} \P{Han} \p{C} \P{C} \p{Cn} a b-f
- \- \] x 0-9 é 一-龥 \u00e9 \r\n \t + * ^ . \\ / _ \p{Alphabetic} \p{Uppercase_Letter} \p{Punctuation} \p{S} \p{latin}
\p{White_Space}""".split() + [" "]
LETTERS = list("aAbfgxz09-+*^]\\/._ \t\r\n'é’“„ßſK²½Ⅷ中文カ가ा्́ǅª_") + [
    "\U00010ec2", "\U0001e4d0", "\u0897", "\U00031350", "\u00ad", "\ufeff", "\U000e0001", "\u1d79", "\u0378", "\u2028", "\u180e"]
BEHAVIORS = ["isolated", "removed", "contiguous", "merged_with_next"]


def random_class(rng):
    items = "".join(rng.choice(ITEMS) for _ in range(rng.randint(1, 4)))
    return "[" + ("^" if rng.random() < 0.4 else "") + items + "]" + rng.choice(["", "+", "*", "?", "{1,3}"])


def main():
    rng, alphabet, cases = random.Random(7), sorted(pre_tokenizers.ByteLevel.alphabet()), []
    model = models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[])
    while len(cases) < 200:
        pattern = "|".join(random_class(rng) for _ in range(rng.randint(1, 2)))
        try:
            behavior, invert = rng.choice(BEHAVIORS), rng.random() < 0.2
            split = pre_tokenizers.Split(Regex(pattern), behavior, invert=invert)
        except Exception:  # a range such as z-a
            continue
        tokenizer = Tokenizer(model)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)])
        text = "".join(rng.choice(LETTERS) for _ in range(16))
        cases.append([pattern, behavior.title().replace("_With_", "With"), invert, text, tokenizer.encode(text).ids])
    with open(os.path.join(FOLDER, "classes.json"), "w") as file:
        json.dump({"alphabet": alphabet, "cases": cases}, file)
        file.write("\n")


if __name__ == "__main__":
    main()
