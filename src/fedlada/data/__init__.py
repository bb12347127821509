"""Data sets: samples, sources, augmentation, and data given by client."""

from fedlada.data.augment import Augmentation
from fedlada.data.cifar import load_cifar
from fedlada.data.digits import load_digits
from fedlada.data.given import columns
from fedlada.data.idx import load_idx
from fedlada.data.image_folder import load_image_folder, load_tiny_imagenet
from fedlada.data.images import Images
from fedlada.data.leaf import load_leaf
from fedlada.data.npz import load_npz
from fedlada.data.plays import load_shakespeare
from fedlada.data.samples import ArraySamples, DatasetSamples, Samples, as_samples
from fedlada.data.source import Source
from fedlada.data.sources import load_dataset
from fedlada.data.text import load_docstrings
from fedlada.federation.batches import LocalWork
from fedlada.federation.partition import IID, ByKey, Dirichlet, Given, Pachinko, Partition, Pathological

__all__ = [
    "IID",
    "ArraySamples",
    "Augmentation",
    "ByKey",
    "DatasetSamples",
    "Dirichlet",
    "Given",
    "Images",
    "LocalWork",
    "Pachinko",
    "Partition",
    "Pathological",
    "Samples",
    "Source",
    "as_samples",
    "columns",
    "load_cifar",
    "load_dataset",
    "load_digits",
    "load_docstrings",
    "load_idx",
    "load_image_folder",
    "load_leaf",
    "load_npz",
    "load_shakespeare",
    "load_tiny_imagenet",
]
