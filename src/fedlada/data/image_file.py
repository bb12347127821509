"""One image file, decoded by Pillow; errors name the file."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fedlada.data.images import Bytes
from fedlada.data.limits import Unfit
from fedlada.methods.extras import missing

Found = TypeVar("Found")

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Formats that Pillow may open, whatever a file's name: it would hand others to programs such as Ghostscript."""
MOST_PIXELS = 80_000_000
"""Limit for one image, before and after scaling; slightly above it Pillow itself warns of decompression bombs."""
GREY = ("1", "L", "LA", "La")
REFUSED = {"I": "whole numbers of 32 bits", "F": "floating-point numbers"}
"""Pillow's modes without a range that could be brought to bytes; it would cut them off at 255."""


class Faults:
    """Faults of many files, reported together."""

    SHOWN = 3

    def __init__(self) -> None:
        self.found: list[ValueError] = []

    def none_in(self, read: Callable[..., Found], file: str, *how: Any) -> Found | None:
        """The value that a function reads from a file; None if the file is faulty, which is recorded."""
        try:
            return read(file, *how)
        except ValueError as error:
            self.found.append(error)
            return None

    def refuse(self) -> None:
        """Name the first few files at fault, and how many there are."""
        if not self.found:
            return
        more = len(self.found) - self.SHOWN
        words = "; ".join(str(error) for error in self.found[: self.SHOWN])
        raise ValueError(f"{words}; and {more} more files" if more > 0 else words) from None


def read_image(file: str, shape: tuple[int, ...], image_size: int | None = None) -> Bytes:
    """One image as bytes `[C, H, W]`, as viewers show it; greyscale becomes colour where colour is wanted."""
    with _opened(file) as image:
        if image_size is not None:
            _check_scaled(file, image.size, image_size)
        plain = _bytes(file, _upright(image), "L" if shape[0] == 1 else "RGB")
    if image_size is not None:
        plain = _scaled(plain, image_size)
    if plain.size != (shape[2], shape[1]):
        raise ValueError(
            f"{file} has {plain.size[0]}x{plain.size[1]} pixels where {shape[2]}x{shape[1]} are expected: "
            "give image_size (--image-size) to bring an image folder to one size"
        )
    pixels: Any = np.asarray(plain, dtype=np.uint8)
    return pixels[None] if shape[0] == 1 else np.moveaxis(pixels, 2, 0)


def upright_size(file: str) -> tuple[int, int]:
    """Width and height after EXIF rotation."""
    with _opened(file) as image:
        return _upright(image).size


def is_grey(file: str) -> bool:
    """Whether it is greyscale, by its header alone."""
    with _opened(file) as image:
        return image.mode in GREY or _has_16_bits(image)


@contextmanager
def _opened(file: str) -> Iterator[Image]:
    """The open file. Pillow's plugins can raise any error, without the name of the file."""
    try:
        from PIL import Image
    except ImportError:
        raise missing("image files need pillow", "images") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # large images are refused below
            image = Image.open(file, formats=FORMATS)
    except Exception as error:
        raise ValueError(f"{file} is not an image that can be read: {error}") from None
    with image:
        try:
            width, height = image.size
            if width * height > MOST_PIXELS:
                raise Unfit(f"{file} has {width}x{height} pixels: at most {MOST_PIXELS:,} are read")
            yield image
        except Unfit:
            raise
        except Exception as error:
            raise ValueError(f"{file} is damaged: {error}") from None


def _upright(image: Image) -> Image:
    """Rotate the image by its EXIF orientation."""
    from PIL import ImageOps

    ImageOps.exif_transpose(image, in_place=True)
    return image


def _bytes(file: str, image: Image, mode: str) -> Image:
    import PIL.Image

    if _has_16_bits(image):
        image = PIL.Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    elif image.mode in REFUSED:
        raise Unfit(f"{file} holds {REFUSED[image.mode]} (Pillow's mode {image.mode}): save it with 8 or 16 bits")
    # An alpha channel is dropped: a transparent pixel has the colour that is stored for it.
    return image.convert(mode)


def _has_16_bits(image: Image) -> bool:
    """Grey values up to 65535; older versions of Pillow open a PNG with such values as 32 bits."""
    return image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG")


def _scaled_size(sides: tuple[int, int], size: int) -> tuple[int, int]:
    """Width and height after the shorter side is scaled to `size`."""
    factor = size / min(sides)
    width, height = (max(size, round(side * factor)) for side in sides)
    return width, height


def _check_scaled(file: str, sides: tuple[int, int], size: int) -> None:
    width, height = _scaled_size(sides, size)
    if width * height > MOST_PIXELS:
        raise Unfit(
            f"{file} has {sides[0]}x{sides[1]} pixels and would have {width}x{height} with image_size {size}: "
            f"at most {MOST_PIXELS:,} are read"
        )


def _scaled(image: Image, size: int) -> Image:
    """Scale the shorter side to `size`, then crop the centre."""
    width, height = _scaled_size(image.size, size)
    left, top = (width - size) // 2, (height - size) // 2
    return image.resize((width, height)).crop((left, top, left + size, top + size))
