"""Makes gguf/blocks.json: blocks of random bytes of each quantised type, and what the Python package gguf reads in them.

    python make_gguf_blocks.py      # needs numpy and gguf; written with gguf 0.19.0
"""

import json
import pathlib

import gguf
import numpy as np

TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
# Where the block's half-precision scales lie: random bytes there would be infinities.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}

random = np.random.default_rng(7)
golden = {}
for name in TYPES:
    kind = gguf.GGMLQuantizationType[name]
    _, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (2, size), dtype=np.uint8)
    for block in blocks:
        for place in SCALES[name]:
            block[place:place + 2] = np.frombuffer(np.float16(random.normal()).tobytes(), np.uint8)
    values = gguf.quants.dequantize(blocks, kind)
    golden[name] = {"bytes": blocks.tobytes().hex(), "values": [float(f"{v:.9g}") for v in values.ravel()]}
out = pathlib.Path(__file__).parent / "gguf" / "blocks.json"
out.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
