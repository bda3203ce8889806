#!/usr/bin/env python3
"""Remakes outer_nesterov.json, which the merging of federated rounds is compared with, by torch's SGD.

    make_outer_nesterov.py FILE        needs torch 2.15

Three rounds of the outer step on two small tensors: the gradient is what the mean of the results moved away from the
global adapter. In the second round one of five results goes far too far and is left out; in the third there are only
two, of which none is.
"""
import json
import statistics
import sys

import torch

SHAPES = {"a": (3, 4), "b": (5,)}
OUTER_LR, MOMENTUM, FACTOR, FEWEST = 1.0, 0.5, 5.0, 3
SCALES = [[0.1, 0.12, 0.09, 0.11], [0.1, 0.08, 5.0, 0.12, 0.09], [0.1, 3.0]]


def as_lists(tensors):
    return {name: tensor.tolist() for name, tensor in tensors.items()}


def norm(local, start):
    return torch.cat([(local[name] - start[name]).flatten() for name in SHAPES]).norm().item()


def main():
    random = torch.Generator().manual_seed(7)
    weights = {name: torch.nn.Parameter(torch.randn(shape, generator=random)) for name, shape in SHAPES.items()}
    optimizer = torch.optim.SGD(weights.values(), lr=OUTER_LR, momentum=MOMENTUM, nesterov=True)
    first, rounds = as_lists(weights), []
    for scales in SCALES:
        start = {name: weight.detach().clone() for name, weight in weights.items()}
        local = [{name: start[name] + scale * torch.randn(SHAPES[name], generator=random) for name in SHAPES}
                 for scale in scales]
        norms = [norm(result, start) for result in local]
        limit = FACTOR * statistics.median(norms)
        kept = [i for i, length in enumerate(norms) if len(norms) < FEWEST or length <= limit]
        for name, weight in weights.items():
            weight.grad = start[name] - torch.stack([local[i][name] for i in kept]).mean(0)
        optimizer.step()
        momentum = {name: optimizer.state[weight]["momentum_buffer"] for name, weight in weights.items()}
        rounds.append({"local": [as_lists(result) for result in local], "delta_norms": norms, "kept": kept,
                       "global_after": as_lists(weights), "momentum_after": as_lists(momentum)})
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump({"outer_lr": OUTER_LR, "momentum": MOMENTUM, "global_start": first, "rounds": rounds}, file)
        file.write("\n")


if __name__ == "__main__":
    main()
