"""Reads and writes safetensors with the standard library: names, types, shapes, and the values of F32 and I32."""

import array
import json
import math
import struct

TYPES = {"F32": "f", "I32": "i"}


def read(body):
    """Tensors by name: (dtype, shape, values as an array). ValueError or KeyError where that is no such file."""
    try:
        (length,) = struct.unpack_from("<Q", body)
    except struct.error as error:
        raise ValueError("no length of a header") from error
    header = json.loads(body[8:8 + length])
    header.pop("__metadata__", None)
    data = body[8 + length:]
    tensors, total = {}, 0
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        values = array.array(TYPES[entry["dtype"]])
        if end - start != values.itemsize * math.prod(entry["shape"]) or not 0 <= start <= end <= len(data):
            raise ValueError(f"{name}: a place that does not fit")
        values.frombytes(data[start:end])
        total += end - start
        tensors[name] = (entry["dtype"], entry["shape"], values)
    if total != len(data):
        raise ValueError("the data is not what the header says")
    return tensors


def names(path):
    """The names of a file's tensors."""
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(length))
    header.pop("__metadata__", None)
    return set(header)


def write(tensors):
    """The bytes of a file with these tensors."""
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        body = values.tobytes()
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(body)]}
        data += body
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def row(values):
    """A row of 32-bit whole numbers."""
    return ("I32", [len(values)], array.array("i", values))


def mean(bodies):
    """A file like each of these, with the means of their values."""
    read_bodies = [read(body) for body in bodies]
    means = {}
    for name, (dtype, shape, _) in read_bodies[0].items():
        columns = zip(*(tensors[name][2] for tensors in read_bodies))
        means[name] = (dtype, shape, array.array("f", [sum(column) / len(bodies) for column in columns]))
    return write(means)
