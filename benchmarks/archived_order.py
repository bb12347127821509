"""The official CIFAR files in the order of the archived runs, so that a run repeats them.

    python benchmarks/archived_order.py data data-archived

Reads `cifar-10-batches-py` and `cifar-100-python` of the first folder, and writes their images to
the second: sorted by class and file name, then permuted by `numpy.random.RandomState(0).permutation`. They are compared
with the archived runs' own images before anything is written.
"""

from __future__ import annotations

import argparse
import hashlib
import pickle
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedlada.data.cifar import FILES, LABELS, read_pickle

DIGESTS = {
    ("cifar10", "train"): "5b298fa761241eccee6aee4a77a9d9ea54c42ec152992d33fd9f842b39917a88",
    ("cifar10", "test"): "43e915e63d28250b7a2198aabeaf78cb0abba750fb0db33c0246f029932ef4ec",
    ("cifar100", "train"): "8de5689aa562e3f399644a589adad5bdc9e3626e61166c49d3234c8ebcc2c5bc",
    ("cifar100", "test"): "fca87d15eb1f8a5528ba50e159e5234a4e83d086c826ad378d4c2610f8d60ad2",
}
"""SHA-256 of the archived runs' pixels and labels (int64)."""
META = {"cifar10": "batches.meta", "cifar100": "meta"}


class Wrong(Exception):
    """What was read is not what the archived runs had."""


def ordered(folder: Path, name: str, split: str) -> dict[bytes, Any]:
    """All of a split's images, labels and file names, in the archived order."""
    inside, splits = FILES[name]
    key, _ = LABELS[name]
    needed = (b"data", key, b"filenames")
    parts = []
    for file in splits[split]:
        part = read_pickle(folder / inside / file)
        if not isinstance(part, dict) or any(np.ndim(part.get(one)) == 0 for one in needed):  # absent, or no list
            raise Wrong(f"{folder / inside / file} lacks images, labels or file names, by which the images are sorted")
        if len({len(part[one]) for one in needed}) > 1:
            raise Wrong(f"{folder / inside / file} has not as many labels and file names as images")
        parts.append(part)
    keys = [one for one in (*needed, b"coarse_labels") if all(one in part for part in parts)]
    whole: dict[bytes, Any] = {one: np.concatenate([np.asarray(part[one]) for part in parts]) for one in keys}
    by_name = sorted(range(len(whole[key])), key=lambda one: (whole[key][one], whole[b"filenames"][one]))
    order = np.asarray(by_name)[np.random.RandomState(0).permutation(len(by_name))]
    return {one: values[order] for one, values in whole.items()}


def digest(images: dict[bytes, Any], name: str) -> str:
    pixels = np.ascontiguousarray(images[b"data"], np.uint8).tobytes()
    return hashlib.sha256(pixels + np.asarray(images[LABELS[name][0]], np.int64).tobytes()).hexdigest()


def write(source: Path, out: Path, name: str) -> None:
    """Both splits of one data set; nothing is left behind unless both are right and whole."""
    found = {split: ordered(source, name, split) for split in FILES[name][1]}
    for split, images in found.items():
        if digest(images, name) != DIGESTS[name, split]:
            raise Wrong(f"the {split} images of {name} in {source} are not those of the archived runs")
    inside, splits = FILES[name]
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out) as beside:
        place = Path(beside) / inside
        place.mkdir()
        for split, files in splits.items():
            for number, file in enumerate(files):
                size = len(found[split][b"data"]) // len(files)
                part = {one: values[number * size : (number + 1) * size] for one, values in found[split].items()}
                listed = {one: values if one == b"data" else values.tolist() for one, values in part.items()}
                (place / file).write_bytes(pickle.dumps(listed, protocol=4))
        meta = source / inside / META[name]
        if meta.exists():
            (place / META[name]).write_bytes(meta.read_bytes())
        place.rename(out / inside)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    names = [name for name, (inside, _) in FILES.items() if (given.source / inside).is_dir()]
    if not names:
        sys.exit(f"{given.source} has neither {' nor '.join(inside for inside, _ in FILES.values())}")
    for name in names:
        if (given.out / FILES[name][0]).exists():
            sys.exit(f"{given.out / FILES[name][0]} exists already")
        try:
            write(given.source, given.out, name)
        except (Wrong, ValueError, OSError) as error:
            sys.exit(str(error))
        print(f"wrote {given.out / FILES[name][0]}")


if __name__ == "__main__":
    main()
