#!/usr/bin/env python3
"""weights/llama31.gguf once more, in three parts (weights/llama31-0000N-of-00003.gguf), as the package gguf splits
files.

    pip install gguf==0.19.0
"""

import os
import pathlib

import gguf

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "weights")


def main():
    reader = gguf.GGUFReader(os.path.join(HERE, "llama31.gguf"))
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(None, architecture, split_max_tensors=(len(reader.tensors) + 2) // 3)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kinds = field.types
            writer.add_key_value(name, field.contents(), kinds[0], kinds[-1] if len(kinds) > 1 else None)
    for t in reader.tensors:
        writer.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
    writer.write_header_to_file(pathlib.Path(HERE, "llama31.gguf"))
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
