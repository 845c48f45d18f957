#!/usr/bin/env python3
"""Small tokenizers of the usual kinds, and the ids that the package `tokenizers` gives to a list of texts.

Writes tokenizer_NAME.json, as such files are published, and tokenizers.json with

    texts     strings; {"bytes": [...]} stands for bytes that are no UTF-8
    cases     {"file": NAME, "set": {...}, "ids": [[...]], "text": [...], "plain": [...]}

A case is the file with the fields of "set" in place of its own; a text's ids, what they decode to, and what they decode to
without special tokens (null where that is the same).
"""

import json
import os
from collections import Counter

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

FOLDER = os.path.dirname(os.path.abspath(__file__))

SENTENCES = """
The lamp on the desk was lit, and she'd counted 128 pages before noon. They're sure it'll rain; we've seen it, I'm told.
THEY'RE SURE IT'LL RAIN; WE'VE SEEN IT, I'M TOLD. Don't, won't, can't: he's, she's, it's.
Über den Hügeln lag früher Schnee; die Straße nach Köln war am 3.12.2024 gesperrt, größtenteils wegen Glätte.
Το πλοίο έφυγε νωρίς το πρωί και η θάλασσα ήταν ήσυχη. Η δασκάλα έγραψε τρεις λέξεις στον πίνακα.
Вечером мы шли вдоль реки и считали лодки. Ёлка стояла у окна, а поезд пришёл в 19:45.
ذهب الولد إلى السوق واشترى خبزا وتفاحا. كَتَبَ المُعَلِّمُ ثلاث كلمات ١٢٣ على اللوح.
הילדה קראה ספר קטן ליד החלון. שָׁלוֹם לכולם, השעה עכשיו חמש.
सुबह हम नदी के किनारे चले और नावें गिनीं। बच्चे ने तीन किताबें पढ़ीं १२३।
ตอนเช้าเราเดินไปตลาดและซื้อผลไม้สามอย่าง น้ำในแม่น้ำใสมาก
早上我们沿着河走，数了三条船。老师在黑板上写了四个字：天地日月。
朝、川に沿って歩きながら船を数えました。カタカナとひらがな、そして漢字。
아침에 우리는 강을 따라 걸으며 배를 세었다. 선생님이 세 단어를 썼다.
Chiều nay trời mưa to, đường phố vắng người. Žluťoučký kůň běží; çok güzel bir gün, naïve café.
def add(a, b):
    return a + b  # 1 + 2 == 3
for (int i = 0; i < 1024; i++) { total += x[i] * 0.5f; }
if (a != b && c <= d || !e) { printf("%d\\n", a); }
{"key": [1, 22, 333, 4444, 55555], "url": "https://example.org/a/b?c=d&e=f#g"}
"""

TEXTS = [
    "",
    " ",
    "a",
    "Hello world",
    " leading and trailing  ",
    "two  spaces   three    four",
    "tabs\tand\t\tmore \t mixed\r\nCRLF\r\n\r\n\n\nnewlines \n  \n end\n",
    "non\u00a0breaking\u00a0 \u00a0spaces\u2003em\u3000ideographic\u200bzero\u180emongolian\u0085next\u2028line",
    "don't DON'T Don\u2019t we'll WE'LL I'm I'M they're THEY'RE 's 'S '\u017f it'd x've 'tis ''s",
    "1 12 123 1234 12345 3.14159 1,000,000 1e-5 0x1F ½ ² Ⅷ ١٢٣ १२३ ４５",
    "x=1;y+=2;z<<=3; a->b::c(d){e[f]}//g /*h*/ #!/bin/sh $HOME ~`@^|\\ \"q\" 'r' <b>t</b> snake_case camelCase",
    "😀 😃😄 👩\u200d👩\u200d👧\u200d👦 🏳️\u200d🌈 🇩🇪🇫🇷 👍🏽 ☃️ ™ © → ∑ 𝕬𝖇 𝟘𝟙",
    "e\u0301 e\u0301\u0323 \u0301 a\u0308\u0304 \u1e9b\u0323 \u212b \u2126 \u0344 \ufb01 \u1100\u1161\u11a8 \uac00\u11a8 \u0958 \U0002f800 q\u0307\u0323",
    "中文English混合текст123",
    "a" * 70 + " " + "ab" * 60 + " " + "=" * 90,
    "▁ ▁▁a b▁c",
    "<s>in<unk> the </s> text<0x41> <|endoftext|><|im_start|>user\n <|im_end|> <|endoftext",
    "word1<mask> <mask>word  <mask>  x<mask>x  <pad>  мир мирy yмир мир\u0301 <b>!<B> <bb> [SEP]",
    {"bytes": list(b"ok \xff\xfe\xc3( \xe2\x82 \xf0\x9f\x98 \xed\xa0\x80 \xc0\xaf end\xe2")},
    SENTENCES,
]

GPT4_STYLE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def lines():
    return [line + "\n" for line in SENTENCES.split("\n")]


def byte_level(pre_tokenizer, normalizer=None, ignore_merges=False, specials=("<|endoftext|>",)):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=1000, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(lines(), trainer)
    tokenizer.add_special_tokens(list(specials))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def split(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


def template(tokenizer, bos, eos=None):
    parts = ([bos] if bos else []) + ["$A"] + ([eos] if eos else [])
    specials = [(name, tokenizer.token_to_id(name)) for name in (bos, eos) if name]
    return processors.TemplateProcessing(single=" ".join(parts), special_tokens=specials)


def llama2():
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    names = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % byte for byte in range(256)]
    counts = Counter("▁" + SENTENCES.replace(" ", "▁"))
    alphabet = sorted(counts, key=lambda c: (-counts[c], c))[:200]
    trainer = trainers.BpeTrainer(vocab_size=1000, initial_alphabet=alphabet, limit_alphabet=len(alphabet),
                                  special_tokens=names, show_progress=False)
    tokenizer.train_from_iterator(lines(), trainer)
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = data["added_tokens"][:3]
    data["pre_tokenizer"] = None
    data["normalizer"] = LLAMA2_NORMALIZER
    data["decoder"] = LLAMA2_DECODER
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.post_processor = template(tokenizer, "<s>")
    return tokenizer


LLAMA2_NORMALIZER = {"type": "Sequence", "normalizers": [
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
]}
LLAMA2_DECODER = {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0},
]}


def files():
    llama3 = byte_level(split(GPT4_STYLE % r"\p{N}{1,3}"), ignore_merges=True,
                        specials=("<|begin_of_text|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    llama3.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False), template(llama3, "<|begin_of_text|>", "<|im_end|>")])
    return {
        "gpt2": byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)),
        "llama3": llama3,
        "qwen2": byte_level(split(GPT4_STYLE % r"\p{N}"), normalizers.NFC(),
                            specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>")),
        "smollm2": byte_level(
            pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                     pre_tokenizers.ByteLevel(add_prefix_space=False)]),
            specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>")),
        "llama2": llama2(),
    }


def added(content, id, **flags):
    token = {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": False}
    return {**token, **flags}


def pattern_split(behavior, pattern, invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def metaspace(scheme, split):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


def variants():
    """(file, fields): what the five files alone do not show."""
    byte_last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    behaviors = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
    for behavior in behaviors:
        for invert in (False, True):
            steps = [pattern_split(behavior, r"[a-m]|\d+|\s", invert), byte_last]
            yield "gpt2", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}
        yield "llama2", {"pre_tokenizer": pattern_split(behavior, "▁", kind="String")}
        steps = [{"type": "Punctuation", "behavior": behavior}, byte_last]
        yield "gpt2", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}
    patterns = [r"\w+|[^\w\s]+", r"\h+|\H", r"[\s\w]+?(?=[\S\d])", r"^.|.$", r"x*", r"(?<=[aeiou])\p{Ll}{,2}",
                r"[\u0041-\u005a\v]+|\S\W"]
    for pattern in patterns:
        steps = [pattern_split("Isolated", pattern), byte_last]
        yield "gpt2", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}
    for digits in (False, True):
        steps = [{"type": "Digits", "individual_digits": digits}, byte_last]
        yield "gpt2", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}
    yield "gpt2", {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}}
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        yield "gpt2", {"normalizer": {"type": form}}
    squeeze = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    yield "qwen2", {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFD"}, squeeze, {"type": "NFC"}]}}
    for scheme in ("always", "first", "never"):
        for split_too in (False, True):
            step = metaspace(scheme, split_too)
            yield "llama2", {"normalizer": None, "pre_tokenizer": step, "decoder": {**step}}
    yield "llama2", {"decoder": None}
    yield "llama2", {"decoder": {"type": "Sequence", "decoders": [
        {"type": "Strip", "content": "e", "start": 0, "stop": 1}, {"type": "Strip", "content": "▁", "start": 2, "stop": 0},
        {"type": "Replace", "pattern": {"String": "a"}, "content": "AA"}]}}
    yield "llama2", {"model": {"byte_fallback": False}}
    yield "llama2", {"model": {"byte_fallback": False, "fuse_unk": False}}
    yield "llama2", {"model": {"byte_fallback": False, "unk_token": None}}
    yield "llama2", {"model": {"ignore_merges": True}}
    yield "gpt2", {"model": {"ignore_merges": True}}
    flags = [
        added("<mask>", 1001, lstrip=True, special=True), added("<pad>", 1002, rstrip=True),
        added("мир", 1003, single_word=True, normalized=True), added("<b", 1004), added("<b>", 1005, normalized=True),
        added("[SEP]", 1006, lstrip=True, rstrip=True, single_word=True), added("He", 1007, normalized=True),
    ]
    for name in ("gpt2", "llama2", "qwen2"):
        yield name, {"added_tokens": [{**token, "id": token["id"] + (2 if name == "qwen2" else -1 if name == "llama2" else 0)}
                                      for token in flags]}


def text_of(item):
    return bytes(item["bytes"]).decode("utf-8", errors="replace") if isinstance(item, dict) else item


def replaced(data, fields):
    data = dict(data)
    for key, value in fields.items():
        if key == "model":
            data[key] = {**data[key], **value}
        elif key == "added_tokens":
            data[key] = data[key] + value
        else:
            data[key] = value
    return data


def case(name, data, fields):
    tokenizer = Tokenizer.from_str(json.dumps(replaced(data, fields)))
    out = {"file": name, "set": fields, "ids": [], "text": [], "plain": []}
    for item in TEXTS if not fields else TEXTS[:-1]:
        ids = tokenizer.encode(text_of(item), add_special_tokens=False).ids
        text, plain = tokenizer.decode(ids, skip_special_tokens=False), tokenizer.decode(ids, skip_special_tokens=True)
        out["ids"].append(ids)
        out["text"].append(text if text != item else None)
        out["plain"].append(plain if plain != text else None)
    return out


def main():
    cases, data = [], {}
    for name, tokenizer in files().items():
        data[name] = json.loads(tokenizer.to_str())
        with open(os.path.join(FOLDER, "tokenizer_%s.json" % name), "w", encoding="utf-8") as file:
            file.write(json.dumps(data[name], ensure_ascii=False, separators=(",", ":")) + "\n")
        cases.append(case(name, data[name], {}))
    cases += [case(name, data[name], fields) for name, fields in variants()]
    golden = {"texts": TEXTS, "cases": cases}
    with open(os.path.join(FOLDER, "tokenizers.json"), "w", encoding="utf-8") as file:
        file.write(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
