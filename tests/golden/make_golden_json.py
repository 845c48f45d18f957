"""Makes json_lines.txt: lines, and what Python's json.loads makes of each. Needs nothing but Python 3.

    python3 tests/golden/make_golden_json.py

A line of the file: the bytes of a line in hexadecimal, a space, and "=" with the bytes of its "text", "!" where json.loads
or the text refuses it, or "-" for an empty line. The lines are some written by hand and random changes of them.
"""

import json
import os
import random
import sys

MARK = b"\xef\xbb\xbf"  # a byte-order mark
COUNTS = {"=": 600, "!": 900, "-": 10}  # changed lines of each verdict

SEEDS = [
    b'{"text": "one", "score": NaN}',
    b'{"text": "one", "score": -Infinity, "other": Infinity}',
    b'{"text": "one", "id": 123456789012345678901234567890, "x": 1e999, "y": -1e-999}',
    b'{"text": "one", "id": ' + b"9" * 400 + b"}",
    b'{"a": [1, 2.5e-3, {"text": "x"}], "text": "caf\xc3\xa9 \\u00e9 \\ud83d\\ude00 \xf0\x9f\x98\x80"}',
    b'{"text": "a", "text": "b\\n\\"\\/\\\\\\b\\f\\r\\t"}',
    b'{"te\\u0078t": "\\ud800", "x": -Infinity}',
    b'{"x": "\\ud800\\udc00\\ud800", "text": "\\udc00"}',
    b' { "text" : "" , "n" : -0.0E+10 , "z" : [ ] , "o" : { } } \r',
    b'[{"text": "x"}]',
    b'"text"',
    b"",
    b" \t\r",
    MARK + b'{"text": "after a mark"}',
    MARK,
    MARK + MARK + b'{"text": "after two"}',
    b'{"text": null}',
    b'{"text": 5}',
    b'{"text": ["x"]}',
    b'{"body": "x"}',
    b'{"\\u0000": 1, "text": "\\u0000"}',
    b'{"text": "\xed\xa0\x80"}',
    b'{"x": "\xed\xa0\x80", "text": "y"}',
    b'{"text": "\\ud83d\\u0041"}',
    b'{"text": "\\ud83d\\ud83d\\ude00"}',
    b'{"a": tru, "text": "x"}',
    b'{"n": -, "text": "1"}',
    b'{"n": 01, "text": "1"}',
    b'{"n": 1., "text": "1"}',
    b'{"n": .5, "text": "1"}',
    b'{"n": +1, "text": "1"}',
    b'{"text": "a\tb"}',
    b'{"text": "\x7f"}',
    b'{"text": "\xc0\x80"}',
    b'{"text": "\xf4\x90\x80\x80"}',
    b'{"x": "caf\xe9", "text": "y"}',
    b'{"text": "x",}',
    b"{'text': 'x'}",
    b'{"text": "x"} {"text": "y"}',
    b'{"text": "x"',
    b'{"text": "x',
    b'{"n": [-Infinity, Infinity, NaN, -NaN], "text": "x"}',
    b'{"d": ' + b"[" * 300 + b"]" * 300 + b', "text": "deep"}',
    b'{"d": ' + b'{"a":' * 300 + b"1" + b"}" * 300 + b', "text": "deep"}',
]
PIECES = [bytes([c]) for c in b'{}[]",:\\ue0123456789dDaAfF-+.EeNIntrue \t\r\xed\xa0\x80\xc3\xa9\x00\x1f/bx'] + [
    b"\\ud8", b"\\u", b"NaN", b"Infinity", b"null", b'"text":', b"true", b"false",
]


def verdict(line):
    """The file is UTF-8 with a mark or without; halves of surrogate pairs pass as in json.loads of bytes."""
    if line.startswith(MARK):
        line = line[3:]
    if not line.strip(b" \t\r\n"):
        return "-"
    try:
        value = json.loads(line.decode("utf-8", "surrogatepass"))
    except ValueError:
        return "!"
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        return "!"
    try:
        return "=" + value["text"].encode("utf-8").hex()
    except UnicodeEncodeError:
        return "!"


def changed(line):
    line = bytearray(line)
    for _ in range(random.choice([1, 1, 1, 2, 3, 6])):
        at = random.randrange(len(line) + 1)
        kind = random.randrange(4)
        if kind == 0:
            line[at:at] = random.choice(PIECES)
        elif kind == 1:
            line[at : at + 1] = random.choice(PIECES)
        elif kind == 2:
            del line[at : at + random.choice([1, 1, 2, 5])]
        else:
            first = random.randrange(len(line) + 1)
            line[at:at] = line[first : first + 20]
    return bytes(line).replace(b"\n", b" ")


def main():
    random.seed(1)
    sys.setrecursionlimit(10000)
    short = [line for line in SEEDS if len(line) < 200]
    lines, left = SEEDS[:], dict(COUNTS)
    while any(left.values()):
        line = changed(random.choice(short))
        kind = verdict(line)[0]
        if left[kind] > 0 and line not in lines:
            left[kind] -= 1
            lines.append(line)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "json_lines.txt")
    with open(path, "w", encoding="ascii") as out:
        for line in lines:
            out.write(f"{line.hex()} {verdict(line)}\n")
    print(f"{path}: {len(lines)} lines, of Python {sys.version.split()[0]}")


main()
