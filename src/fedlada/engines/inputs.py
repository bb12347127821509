"""Integer inputs: how a model takes them, found on two samples before the first round.

Token indices go to an embedding as they are, and a model that converts bytes to floats itself gets bytes. If a model
refuses them, they are read as on the command line: byte arrays shaped like images are images, all else is floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fedlada.data.by_client import pooled
from fedlada.data.given import Collate
from fedlada.data.images import Images, ImageSamples, are_images, channel_statistics, channels_first
from fedlada.data.samples import ArraySamples, ChosenOnDevice, Samples, as_samples
from fedlada.engines.quiet import quiet_recurrent
from fedlada.federation.randomness import the_same_randomness
from fedlada.models.call import call
from fedlada.models.flat import private_copy

ALIKE = "both as bytes, both as floats, or fedlada.data.Images"
"""A way out for test data in floats where the training images are bytes."""


@dataclass(frozen=True)
class Inputs:
    """One way of reading integers: unchanged, converted to another dtype, or as images."""

    dtype: torch.dtype | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    """Of each channel in 0..1, where they are images."""
    crop_size: int | None = None
    standardize: str = "channels"
    """As in `Images`."""

    def of(self, samples: Samples, *, way_out: str = ALIKE) -> Samples:
        """The samples, read this way; `way_out` ends the sentence that refuses floats where images are bytes."""
        if self.mean:
            return self._images(samples, way_out)
        return samples if self.dtype is None else samples.with_inputs(self.dtype)

    def read(
        self,
        data: Any,
        device: torch.device,
        dtype: torch.dtype,
        collate: Collate | None = None,
        *,
        way_out: str = ALIKE,
    ) -> Samples:
        """Data as `simulate` takes them, those of clients together, as samples that are read this way."""
        samples = as_samples(pooled(data, one_by_one=collate is not None), device, dtype, collate)
        return self.of(samples, way_out=way_out)

    def to_json(self) -> dict[str, Any]:
        """How images are scaled, as plain values; empty if they are not."""
        plain = {"mean": list(self.mean), "std": list(self.std)}
        return {**plain, "crop_size": self.crop_size, "standardize": self.standardize} if self.mean else {}

    @classmethod
    def from_json(cls, values: Any) -> Inputs:
        """The way of reading that `to_json` described."""
        mean, std = (tuple(map(float, values.get(name, ()))) for name in ("mean", "std"))
        size = values.get("crop_size")
        return cls(None, mean, std, None if size is None else int(size), str(values.get("standardize", "channels")))

    def _images(self, samples: Samples, way_out: str) -> Samples:
        if not _holds_images(samples):
            x, _ = samples.batch(np.arange(1))
            if isinstance(x, Tensor) and x.is_floating_point() and _image_samples(samples) is None:
                raise ValueError(
                    "the training images are bytes, and scaled by their mean and deviation, but those to evaluate on "
                    f"are floats: give {way_out}"
                )
            return samples  # others than those trained on: what does not fit is said when the model is tried
        assert isinstance(samples, ArraySamples)
        assert self.dtype is not None
        images = Images(
            channels_first(samples.held()[0].cpu().numpy()),
            samples.labels(),
            self.mean,
            self.std,
            crop_size=self.crop_size,
            class_names=samples.class_names,
            standardize=self.standardize,
        )
        return images.samples(samples.y.device, self.dtype)


AS_GIVEN = Inputs()


def as_trained(samples: Samples, inputs: Inputs) -> Inputs:
    """How data like the training samples are read after a run: `Images` have their own mean and deviation."""
    images = _image_samples(samples)
    if images is None:
        return inputs
    return Inputs(images.dtype, images.mean, images.std, images.crop_size, images.standardize)


def inputs_for(
    network: nn.Module,
    samples: Samples,
    device: torch.device,
    dtype: torch.dtype,
    *,
    scaled: bool = True,
    way_out: str = "",
) -> Inputs:
    """The first way of reading the samples that the model takes; as they are where it is not for their type.

    `scaled` says whether these are all training images, whose mean and deviation images are scaled by; `way_out` ends
    the sentence that refuses images.
    """
    few = _few(samples)
    with the_same_randomness():  # reading a user's data set may draw random numbers
        x, _ = few.batch(np.arange(len(few)))
    if all(not isinstance(one, Tensor) or one.is_floating_point() for one in tree_leaves(x)):
        return AS_GIVEN
    module = private_copy(network, device, dtype).eval()
    with torch.no_grad(), the_same_randomness(), quiet_recurrent(module):
        for way in (AS_GIVEN, Inputs(torch.int64)):  # an embedding takes no bytes
            if _refusal(module, way.of(few)) is None:
                return way
        is_image = isinstance(x, Tensor) and are_images(x)
        way = _scaled(samples) if is_image and scaled else AS_GIVEN if is_image else Inputs(dtype)
        why = _refusal(module, way.of(few))
    if is_image and why is not None:
        nor_scaled = f", nor scaled ({why})" if way.mean else ""
        raise ValueError(
            f"the model takes no images in bytes of shape {tuple(x.shape[1:])}{nor_scaled}: "
            "give floats such as x / 255 in the shape that it takes, or fedlada.data.Images with mean and std"
            f"{way_out}"
        )
    return AS_GIVEN if why is not None else way


def _scaled(samples: Samples) -> Inputs:
    """By the mean and deviation of all images; those of a data set are not read for that."""
    if not _holds_images(samples):
        return AS_GIVEN
    assert isinstance(samples, ArraySamples)
    return Inputs(samples.dtype, *channel_statistics(channels_first(samples.held()[0].cpu().numpy())))


def _image_samples(samples: Samples) -> ImageSamples | None:
    """The images that these samples are, or are a subset of."""
    while isinstance(samples, ChosenOnDevice):
        samples = samples.samples
    return samples if isinstance(samples, ImageSamples) else None


def _holds_images(samples: Samples) -> bool:
    if not isinstance(samples, ArraySamples) or _image_samples(samples) is not None:
        return False
    return isinstance(samples.x, Tensor) and are_images(samples.x)


def _few(samples: Samples) -> Samples:
    """The first two samples, whose inputs may be read in any way without reading all of them so."""
    if not isinstance(samples, ArraySamples) or _image_samples(samples) is not None:
        return samples.chosen(np.arange(min(2, len(samples))))
    return ArraySamples(*samples.held(2), samples.y.device, samples.dtype)


def _refusal(module: nn.Module, samples: Samples) -> Exception | None:
    x, _ = samples.batch(np.arange(len(samples)))
    try:
        call(module, x)
    except Exception as error:  # a user's model can raise anything
        return error
    return None
