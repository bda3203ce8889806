"""The mean of adapters by numpy or torch: `merge_reference.py SIDE files|memory FOLDER THREADS RUNS`, for merge.py.

`files`: each run reads the files of FOLDER, takes the mean of every tensor and saves that, by the library's own means and
the quickest way that was found: one sum that is added to in place, files mapped by safetensors. `memory`: nothing but the
mean, of values that are in memory already, each adapter one flat array.
"""

import json
import pathlib
import sys
import time

SIDES = ("numpy", "torch")


class Numpy:
    def __init__(self, threads):
        import numpy
        import safetensors
        from safetensors.numpy import save_file

        self.numpy, self.save, self.open = numpy, save_file, safetensors.safe_open
        self.versions = {"numpy": numpy.__version__, "safetensors": safetensors.__version__}

    def read(self, path):
        with self.open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}

    def flat(self, tensors):
        return self.numpy.concatenate([x.ravel() for x in tensors.values()])

    def add(self, total, x):
        self.numpy.add(total, x, out=total)

    def divide(self, total, count):
        self.numpy.divide(total, self.numpy.float32(count), out=total)


class Torch:
    def __init__(self, threads):
        import torch
        from safetensors.torch import load_file, save_file

        torch.set_num_threads(threads)
        self.torch, self.save, self.read = torch, save_file, load_file
        self.versions = {"torch": torch.__version__}

    def flat(self, tensors):
        return self.torch.cat([x.ravel() for x in tensors.values()])

    def add(self, total, x):
        total.add_(x)

    def divide(self, total, count):
        total.div_(count)


def mean_of_files(library, paths, out):
    totals = {name: x * 1 for name, x in library.read(paths[0]).items()}
    for path in paths[1:]:
        for name, x in library.read(path).items():
            library.add(totals[name], x)
    for total in totals.values():
        library.divide(total, len(paths))
    library.save(totals, out, metadata={"format": "pt"})


def mean_of_values(library, values):
    total = values[0] * 1
    for x in values[1:]:
        library.add(total, x)
    library.divide(total, len(values))


def main():
    side, source, folder, threads, runs = sys.argv[1:]
    folder = pathlib.Path(folder)
    library = {"numpy": Numpy, "torch": Torch}[side](int(threads))
    paths = sorted(folder.glob("update-*.safetensors"))
    values = [library.flat(library.read(path)) for path in paths] if source == "memory" else []
    seconds = []
    for _ in range(int(runs)):
        begun = time.perf_counter()
        if values:
            mean_of_values(library, values)
        else:
            mean_of_files(library, paths, folder / f"{side}.safetensors")
        seconds.append(time.perf_counter() - begun)
    print(json.dumps({"seconds": seconds, "versions": library.versions}))


if __name__ == "__main__":
    main()
