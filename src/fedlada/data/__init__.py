"""Samples, how they are divided among clients, and in which batches a client sees them."""

from fedlada.data.batches import LocalWork
from fedlada.data.cifar import load_cifar
from fedlada.data.digits import load_digits
from fedlada.data.idx import load_idx
from fedlada.data.images import Images
from fedlada.data.partition import IID, ByKey, Dirichlet, Given, Partition, Pathological
from fedlada.data.samples import ArraySamples, DatasetSamples, Samples, as_samples

__all__ = [
    "IID",
    "ArraySamples",
    "ByKey",
    "DatasetSamples",
    "Dirichlet",
    "Given",
    "Images",
    "LocalWork",
    "Partition",
    "Pathological",
    "Samples",
    "as_samples",
    "load_cifar",
    "load_digits",
    "load_idx",
]
