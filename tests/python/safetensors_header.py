"""The names in a safetensors file, read with the standard library."""

import json
import struct


def tensor_names(path):
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(length))
    header.pop("__metadata__", None)
    return set(header)
