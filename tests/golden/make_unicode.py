#!/usr/bin/env python3
"""What the package `tokenizers` knows of Unicode beyond the libraries of Debian 12, and the ids that it gives.

Writes engine/tokenizer/unicode.c: the code points that PCRE2 10.42 (Unicode 14) must be given by their numbers, and
those that the normalizers of `tokenizers` leave alone. The package has several versions of Unicode inside: Oniguruma's
for patterns, those of Rust crates for the others. So nothing is taken from a table: each property is asked of the package
itself, for every code point.

Writes unicode.json:

    first, last   the code points that the sums cover, and how many of them each sum covers
    cases         {"name", "normalizer", "pre_tokenizer", "text", "sums": [CRC-32C, ...]}

A sum is that of the ids (u16) of one text: `text` once for each code point in place of "@". The tokenizer has a token
for each byte and puts a space before each word, so that the ids show where words begin.

    pip install tokenizers==0.23.3 unicodedata2==18.0.0
"""

import array
import ctypes
import json
import os
import subprocess

import tokenizers
import unicodedata2
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

FOLDER = os.path.dirname(os.path.abspath(__file__))
CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
TEXT = "".join(map(chr, CODES))

# ---- sets of code points ----


def ranges(codes):
    out = []
    for c in sorted(codes):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def theirs(pattern):
    """The code points that a class of characters matches in `tokenizers`."""
    found = set()
    for _, (start, end) in pre_tokenizers.Split(Regex(pattern), "removed", invert=True).pre_tokenize_str(TEXT):
        found.update(CODES[start:end])
    return found


def alone(pre_tokenizer):
    """The code points that a pre-tokenizer cuts from a letter before and after."""
    found = set()
    for _, (start, end) in pre_tokenizer.pre_tokenize_str("a" + "a".join(map(chr, CODES)) + "a"):
        if end - start == 1 and start % 2 == 1:
            found.add(CODES[start // 2])
    return found


def words():
    """The code points beside which a token with single_word is not found."""
    tokenizer = Tokenizer(models.BPE(vocab={"Q": 0}, merges=[]))
    tokenizer.add_tokens([AddedToken("QQ", single_word=True, normalized=False)])
    found = set()
    for at in range(0, len(CODES), 1 << 16):
        part = CODES[at : at + (1 << 16)]
        for c, encoding in zip(part, tokenizer.encode_batch(["QQ" + chr(c) for c in part])):
            if 1 not in encoding.ids:
                found.add(c)
    return found


class Pcre2:
    """The same for PCRE2."""

    def __init__(self):
        self.lib = ctypes.CDLL("libpcre2-8.so.0")
        for name in ("pcre2_compile_8", "pcre2_match_data_create_from_pattern_8", "pcre2_get_ovector_pointer_8"):
            getattr(self.lib, name).restype = ctypes.c_void_p
        version = ctypes.create_string_buffer(32)
        self.lib.pcre2_config_8(10, version)
        assert version.value == b"14.0.0", "PCRE2 of another Unicode than Debian 12's: %s" % version.value
        self.text = TEXT.encode()
        self.index, at = {}, 0
        for i, c in enumerate(CODES):
            self.index[at] = i
            at += 1 if c < 0x80 else 2 if c < 0x800 else 3 if c < 0x10000 else 4
        self.index[at] = len(CODES)

    def match(self, pattern):
        lib, error, offset = self.lib, ctypes.c_int(), ctypes.c_size_t()
        data = pattern.encode()
        code = lib.pcre2_compile_8(data, ctypes.c_size_t(len(data)), ctypes.c_uint32(0x000A0000), ctypes.byref(error),
                                   ctypes.byref(offset), None)
        assert code, pattern
        result = ctypes.c_void_p(lib.pcre2_match_data_create_from_pattern_8(ctypes.c_void_p(code), None))
        at, found = 0, set()
        while lib.pcre2_match_8(ctypes.c_void_p(code), self.text, ctypes.c_size_t(len(self.text)), ctypes.c_size_t(at),
                                ctypes.c_uint32(0), result, None) > 0:
            span = ctypes.cast(lib.pcre2_get_ovector_pointer_8(result), ctypes.POINTER(ctypes.c_size_t))
            found.update(CODES[self.index[span[0]] : self.index[span[1]]])
            at = span[1]
        return found


# ---- properties ----

CATEGORIES = """
L=letter Lu=uppercaseletter Ll=lowercaseletter Lt=titlecaseletter Lm=modifierletter Lo=otherletter
M=mark Mn=nonspacingmark Mc=spacingmark Me=enclosingmark
N=number Nd=decimalnumber Nl=letternumber No=othernumber
P=punctuation Pc=connectorpunctuation Pd=dashpunctuation Ps=openpunctuation Pe=closepunctuation Pi=initialpunctuation
Pf=finalpunctuation Po=otherpunctuation
S=symbol Sm=mathsymbol Sc=currencysymbol Sk=modifiersymbol So=othersymbol
Z=separator Zs=spaceseparator Zl=lineseparator Zp=paragraphseparator
Cc=control Cf=format Co=privateuse Alphabetic=alpha Uppercase=upper Lowercase=lower Ideographic White_Space=space
"""
SCRIPTS = """
Arabic=arab Cyrillic=cyrl Devanagari=deva Han=hani Hiragana=hira Katakana=kana Latin=latn Greek=grek Hebrew=hebr Thai
Hangul=hang Bengali=beng Tamil=taml Telugu=telu Kannada=knda Khmer=khmr Lao=laoo Myanmar=mymr Bopomofo=bopo Common=zyyy
Armenian=armn Georgian=geor Gujarati=gujr Gurmukhi=guru Malayalam=mlym Sinhala=sinh Tibetan=tibt Ethiopic=ethi
Mongolian=mong
"""


def content(base, wanted, known):
    """The content of a class of PCRE2 that matches `wanted`: `base` and more, or everything by its number."""
    if not known <= wanted:
        base, known = "", set()
    return base + "".join("\\x{%x}" % a if a == b else "\\x{%x}-\\x{%x}" % (a, b) for a, b in ranges(wanted - known))


def properties(pcre2):
    rows, sets = {}, {}
    for words_of, form in ((CATEGORIES, "\\p{%s}"), (SCRIPTS, "\\p{sc:%s}")):
        for pair in words_of.split():
            name, _, other = pair.partition("=")
            base = form % name
            sets[name] = theirs("\\p{%s}+" % name)
            rows[name.lower().replace("_", "")] = content(base, sets[name], pcre2.match("[%s]+" % base))
            if other:
                assert theirs("\\p{%s}+" % other) == sets[name]
                rows[other] = rows[name.lower().replace("_", "")]
    assigned = set(CODES) - theirs("\\p{Cn}+")
    rows["assigned"] = content("\\P{Cn}", assigned, pcre2.match("\\P{Cn}+"))
    visible = set().union(*(sets[name] for name in "LMNPSZ"))
    assert set(CODES) - visible == theirs("\\p{C}+")
    rows["any but other"] = content("\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Z}", visible,
                                    pcre2.match("[\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Z}]+"))
    letters = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
    known = pcre2.match("[%s]+" % letters)
    rows["\\w"] = content(letters, theirs("\\w+"), known)
    rows["[\\w]"] = content(letters, theirs("[\\w]+"), known)  # which lacks digits of Latin-1 such as U+00B2
    rows["single word"] = content(letters, words(), known)
    rows["Digits"] = content("\\p{N}", alone(pre_tokenizers.Digits(individual_digits=True)), pcre2.match("\\p{N}+"))
    rows["Punctuation"] = content("", alone(pre_tokenizers.Punctuation("isolated")), set())
    return rows


# ---- normal forms ----


def left_alone():
    """The code points that the normalizers of `tokenizers` treat as unknown, where a newer Unicode says otherwise."""
    forms = {"NFC": normalizers.NFC(), "NFD": normalizers.NFD(), "NFKC": normalizers.NFKC(), "NFKD": normalizers.NFKD()}
    found = set()
    for name, form in forms.items():
        for pattern in ("%s", "%s\u0334", "\u0345%s", "a\u0301%s", "%s\u0301\u0323"):
            for c in CODES:
                text = pattern % chr(c)
                if form.normalize_str(text) != unicodedata2.normalize(name, text):
                    found.add(c)
    for c in CODES:
        parts = unicodedata2.decomposition(chr(c)).split()
        if len(parts) == 2 and "<" not in parts[0]:
            text = "".join(chr(int(part, 16)) for part in parts)
            if normalizers.NFC().normalize_str(text) != unicodedata2.normalize("NFC", text):
                found.add(ord(text[0]))
    return found


# ---- the table ----

HEAD = """/* Written by tests/golden/make_unicode.py: do not edit. tokenizer_internal.h says what it is.
 * The reference: `tokenizers` %s. The base: PCRE2 of Unicode 14. */
#include "tokenizer/internal.h"

#include <stddef.h>

/* clang-format off */
"""


def literal(text):
    """A C string over as many lines as it needs."""
    lines, line = [], ""
    for piece in text.replace("\\", "\\\\").replace("\\\\x", "\x00\\\\x").replace("\\\\p", "\x00\\\\p").split("\x00"):
        if len(line) + len(piece) > 110:
            lines.append(line)
            line = ""
        line += piece
    return "\n     ".join('"%s"' % part for part in lines + [line])


def table():
    rows, alone_ = properties(Pcre2()), ranges(left_alone())
    out = HEAD % tokenizers.__version__
    names = {}
    for name, text in sorted(rows.items()):
        names.setdefault(text, []).append(name)
    out += "const mx_property mx_properties[] = {\n"
    for name, text in sorted(rows.items()):
        first = names[text][0]
        if name == first:
            out += '    {"%s",\n     %s},\n' % (name.replace("\\", "\\\\"), literal(text))
        else:
            out += '    {"%s", "=%s"},\n' % (name, first)
    out += "    {NULL, NULL}};\n\nconst int32_t mx_not_normalized[][2] = {\n"
    line = "   "
    for a, b in alone_:
        pair = " {0x%x, 0x%x}," % (a, b)
        if len(line) + len(pair) > 118:
            out += line + "\n"
            line = "   "
        line += pair
    out += line + "\n    {-1, -1}};\n"
    with open(os.path.join(FOLDER, "..", "..", "engine", "tokenizer", "unicode.c"), "w") as file:
        file.write(out)


# ---- the ids ----

GPT4 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200 = (r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+%s|" + r"[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*%s|"
        + r"%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
DEEPSEEK_V3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
    r"""\s*[\r\n]+|\s+(?!\S)|\s+"""
)


def split(pattern, behavior="isolated"):
    return pre_tokenizers.Split(Regex(pattern), behavior)


CASES = {
    "GPT-2": (None, [pre_tokenizers.ByteLevel(add_prefix_space=False)]),
    "Llama 3": (None, [split(GPT4 % r"\p{N}{1,3}")]),
    "Qwen 2": (normalizers.NFC(), [split(GPT4 % r"\p{N}")]),
    "o200k": (None, [split(O200 % (SUFFIX, SUFFIX, r"\p{N}{1,3}"))]),
    "tekken": (None, [split(O200 % ("", "", r"\p{N}"))]),
    "DeepSeek V3": (None, [split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"), split(DEEPSEEK_V3)]),
    "Falcon": (None, [pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
                      split("[0-9][0-9][0-9]")]),
    "Digits": (normalizers.NFKC(), [pre_tokenizers.Digits(individual_digits=True)]),
    "sets": (normalizers.NFKD(), [split(r"\w+|\p{Han}|\d"), split(r"[\W\p{Lt}]|[^\P{L}\p{Lu}]+")]),
    "marks": (normalizers.NFC(), [split(r"\p{Mn}|\P{C}+")]),
    "NFD": (normalizers.NFD(), [split(r"\p{Mc}|\p{Me}|\p{Sc}")]),
}
TEXT_OF = {"marks": "a@\u0323\u0301@ \u0345@", "NFD": "@\u0334 \u0345@"}
STEP = 4096
AREAS = [[0, 0x32FFF], [0xE0000, 0xE0FFF]]


def crc32c_table():
    out = []
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
        out.append(i)
    return out


TABLE = crc32c_table()


def crc32c(data):
    crc, look = 0xFFFFFFFF, TABLE
    for byte in data:
        crc = crc >> 8 ^ look[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def sums(tokenizer, text):
    out = []
    for first, last in AREAS:
        for start in range(first, last + 1, STEP):
            codes = [chr(c) for c in range(start, start + STEP) if not 0xD800 <= c < 0xE000]
            ids = tokenizer.encode("".join(text.replace("@", c) for c in codes)).ids if codes else []
            out.append(crc32c(array.array("H", ids).tobytes()))
    return out


def golden():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[])
    cases = []
    for name, (normalizer, steps) in CASES.items():
        tokenizer = Tokenizer(model)
        if normalizer:
            tokenizer.normalizer = normalizer
        steps = [s for s in steps if not isinstance(s, pre_tokenizers.ByteLevel)] or None, steps
        plain = [split(GPT2) if isinstance(s, pre_tokenizers.ByteLevel) else s for s in steps[1]]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            plain + [pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)])
        text = TEXT_OF.get(name, "a1 @X's X@ 1")
        stored = json.loads(tokenizer.to_str())
        cases.append({"name": name, "normalizer": stored["normalizer"], "pre_tokenizer": stored["pre_tokenizer"],
                      "text": text, "sums": sums(tokenizer, text)})
    with open(os.path.join(FOLDER, "unicode.json"), "w") as file:
        json.dump({"areas": AREAS, "step": STEP, "alphabet": alphabet, "cases": cases}, file)
        file.write("\n")


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

if __name__ == "__main__":
    table()
    golden()
