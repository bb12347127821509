"""A batch of images as one kernel: gathered, flipped, cropped and normalised as `fedlada.data.images` does it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedlada.data.augment import COLUMN_BITS, CROP_BIT, CROPS, FLIP_BIT, ROW_BITS, Augmentation
from fedlada.data.images import ImageSamples
from fedlada.data.samples import ChosenOnDevice, Samples
from fedlada.engines.stacked.triton_launch import launch

BLOCK = 1024


@triton.jit(do_not_specialize=("height", "width", "out_height", "out_width", "offsets_h", "offsets_w", "padding"))
def _fetch(
    images, rows, draws, scale, shift, x, height, width, out_height, out_width, offsets_h, offsets_w, padding,
    FLIP_BIT: tl.constexpr, CROP_BIT: tl.constexpr, ROW_BITS: tl.constexpr, COLUMN_BITS: tl.constexpr,
    FLIPS: tl.constexpr, ALWAYS: tl.constexpr, NEVER: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = place < out_height * out_width
    word = tl.load(draws + sample)
    row = (height - out_height) // 2
    column = (width - out_width) // 2
    if not NEVER:
        crops = ALWAYS or ((word >> CROP_BIT) & 1) != 0
        row = tl.where(crops, (((word >> ROW_BITS) & 0xFFFFFF) * offsets_h >> 24).to(tl.int32) - padding, row)
        column = tl.where(crops, (((word >> COLUMN_BITS) & 0xFFFFFF) * offsets_w >> 24).to(tl.int32) - padding, column)
    h = place // out_width + row
    w = place % out_width + column
    inside = known & (h >= 0) & (h < height) & (w >= 0) & (w < width)
    if FLIPS:
        w = tl.where(((word >> FLIP_BIT) & 1) != 0, width - 1 - w, w)
    images += tl.load(rows + sample) * (CHANNELS * height * width)
    x += sample.to(tl.int64) * (CHANNELS * out_height * out_width)
    for channel in tl.static_range(CHANNELS):
        value = tl.load(images + channel * height * width + h * width + w, mask=inside, other=0).to(tl.float32)
        value = value * tl.load(scale + channel) + tl.load(shift + channel)
        tl.store(
            x + channel * out_height * out_width + place,
            tl.where(inside, value, 0.0).to(x.dtype.element_ty),
            mask=known,
        )


def supports(samples: Samples) -> bool:
    """Whether these are images of at most four channels, augmented on the device and normalised by channel."""
    if type(samples) is ChosenOnDevice:
        return supports(samples.samples)
    return (
        type(samples) is ImageSamples
        and type(samples.augmentation) is Augmentation
        and not samples.by_image
        and samples.scale.dtype == torch.float32
        and samples.x.is_contiguous()
        and samples.x.shape[1] <= 4
    )


def fetch(samples: Samples, rows: Tensor, draws: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The same as `samples.take`, in that type."""
    if isinstance(samples, ChosenOnDevice):
        return fetch(samples.samples, samples.places.index_select(0, rows), draws, dtype)
    assert isinstance(samples, ImageSamples)
    augmentation = samples.augmentation
    assert augmentation is not None
    channels, height, width = samples.x.shape[1:]
    out_height, out_width = (height, width) if samples.crop_size is None else (samples.crop_size,) * 2
    x = torch.empty((len(rows), channels, out_height, out_width), device=samples.x.device, dtype=dtype)
    offsets = (2 * augmentation.padding + size - out + 1 for size, out in ((height, out_height), (width, out_width)))
    launch(
        _fetch, (len(rows), triton.cdiv(out_height * out_width, BLOCK)), samples.x, rows, draws, samples.scale,
        samples.shift, x, height, width, out_height, out_width, *offsets, augmentation.padding, outputs=(x,),
        FLIP_BIT=FLIP_BIT, CROP_BIT=CROP_BIT, ROW_BITS=ROW_BITS, COLUMN_BITS=COLUMN_BITS, FLIPS=augmentation.flip,
        ALWAYS=augmentation.crop == CROPS[1], NEVER=augmentation.crop == CROPS[2], CHANNELS=channels, BLOCK=BLOCK,
        enable_fp_fusion=False,
    )  # fmt: skip
    return x, samples.y.index_select(0, rows)
