"""Image folders and TinyImageNet: decoded once, and every way in which they can be wrong has its sentence."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from command_line import warm
from fedlada.data import load_dataset, load_image_folder, load_tiny_imagenet
from fedlada.data.image_file import is_grey, read_image
from fedlada.data.image_folder import SUFFIXES

RANDOM = np.random.default_rng(0)


def write_image(path, size=(8, 8), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = {"RGB": (3,), "L": (), "RGBA": (4,)}[mode]
    pixels = RANDOM.integers(0, 256, (size[1], size[0], *channels), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


@pytest.fixture
def folder(tmp_path):
    written = {
        f"{split}/{name}/{number}.png": write_image(tmp_path / split / name / f"{number}.png")
        for split, count in (("train", 4), ("test", 2))
        for name in ("cat", "dog")
        for number in range(count)
    }
    return tmp_path, written


@pytest.fixture
def tiny(tmp_path):
    root = tmp_path / "tiny-imagenet-200"
    names = ["n03", "n01", "n02"]
    for name in names:
        for number in range(3):
            mode = "L" if (name, number) == ("n02", 1) else "RGB"
            write_image(root / "train" / name / "images" / f"{name}_{number}.JPEG", (64, 64), mode)
    for number in range(4):
        write_image(root / "val" / "images" / f"val_{number}.JPEG", (64, 64))
    lines = [f"val_{number}.JPEG\t{names[number % 3]}\t0\t0\t10\t10" for number in range(4)]
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    (root / "wnids.txt").write_text("\n".join(names) + "\n")
    return tmp_path


def test_an_image_folder(folder):
    root, written = folder
    train, test, names = load_image_folder(root)
    assert names == ["cat", "dog"]
    assert (len(train.labels), len(test.labels)) == (8, 4)
    assert train.labels.tolist() == [0] * 4 + [1] * 4
    for number in range(4):
        assert (train.images[4 + number] == np.moveaxis(written[f"train/dog/{number}.png"], 2, 0)).all()
    again, _, _ = load_image_folder(root)
    assert (again.images == train.images).all()
    assert isinstance(again.images, np.memmap)
    assert not again.images.flags.writeable


def test_files_that_are_left_out_are_counted_once(folder):
    root, _ = folder
    write_image(root / "train/cat/more/deeper/a.png")
    write_image(root / "test/dog/more/b.jpg")
    (root / "train/dog/drawing.svg").write_text("<svg/>")
    (root / "train/dog/notes.txt").write_text("no picture")
    (root / "train/dog/.hidden.svg").write_text("")
    said = []
    train, _, _ = load_image_folder(str(root), say=said.append)
    assert len(train.labels) == 8
    assert said == [
        f"{root}: left out are 2 images in folders inside the classes and 1 files of unread types, "
        f"such as {root}/test/dog/more/b.jpg"
    ]
    load_image_folder(root, say=said.append)
    assert len(said) == 1


def test_nothing_is_said_where_nothing_is_left_out(folder, capsys):
    load_image_folder(folder[0])
    assert capsys.readouterr().err == ""
    (folder[0] / "train/dog/drawing.svg").write_text("<svg/>")
    write_image(folder[0] / "train/dog/new.png")
    load_image_folder(folder[0])
    assert capsys.readouterr().err.startswith(f"fedlada: {folder[0]}: left out are 1 files of unread types, such as ")


def test_all_damaged_files_are_named_at_once(folder):
    root, _ = folder
    files = sorted((root / "train").rglob("*.png"))
    whole = files[0].read_bytes()
    for file in files[:5]:
        file.write_bytes(b"no image")
    with pytest.raises(
        ValueError, match=r"cat/0.png is not .*; .*cat/1.png is .*; .*cat/2.png is .*; and 2 more files$"
    ):
        load_image_folder(root)
    for file in files[:2]:
        file.write_bytes(whole[:-30])  # the header can be read, the rest cannot
    for file in files[2:5]:
        file.write_bytes(whole)
    with pytest.raises(ValueError, match=r"cat/0.png is damaged: .*; .*cat/1.png is damaged: [^;]*$"):
        load_image_folder(root)
    for file in files[:2]:
        file.write_bytes(whole)
    assert len(load_image_folder(root)[0].labels) == 8


def test_the_names_of_the_classes_stay(folder):
    source = load_dataset("folder", folder[0])
    assert source.class_names == source.train.class_names == source.test.class_names == ("cat", "dog")
    assert source.holding_out(0.5).train.class_names == ("cat", "dog")


def test_class_folders_alone_give_a_fixed_test_set(tmp_path):
    for name in ("a", "b"):
        for number in range(6):
            write_image(tmp_path / name / f"{number}.png")
    train, test, _ = load_image_folder(tmp_path)
    assert (len(train.labels), len(test.labels)) == (10, 2)
    assert sorted(np.concatenate([train.labels, test.labels])) == [0] * 6 + [1] * 6


def test_images_of_many_sizes_and_modes(tmp_path):
    for split in ("train", "val"):
        write_image(tmp_path / split / "a" / "0.png", (20, 10))
        write_image(tmp_path / split / "a" / "1.png", (9, 30), "L")
        write_image(tmp_path / split / "a" / "2.png", (16, 16), "RGBA")
    with pytest.raises(ValueError, match=r"1.png has 9x30 pixels where 20x10 are expected: give image_size"):
        load_image_folder(tmp_path)
    train, _, _ = load_image_folder(tmp_path, image_size=8)
    assert train.images.shape == (3, 3, 8, 8)
    assert (train.images[1, 0] == train.images[1, 1]).all()  # grey became colour
    source = load_dataset("folder", tmp_path, image_size=8, augment="crop")
    assert source.input_shape == (3, 8, 8)
    assert source.train.augmentation.padding == 1
    with pytest.raises(ValueError, match="image_size is for image folders"):
        load_dataset("cifar10", tmp_path, image_size=8)


def test_tiny_imagenet(tiny):
    train, test, names = load_tiny_imagenet(tiny)
    assert names == ["n01", "n02", "n03"]  # numbered in the order of their names
    assert train.images.shape == (9, 3, 64, 64)
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert test.labels.tolist() == [2, 0, 1, 2]
    assert (train.images[4, 0] == train.images[4, 2]).all()  # the greyscale one
    source = load_dataset("tinyimagenet", tiny / "tiny-imagenet-200", augment="authors")
    assert (source.num_classes, source.input_shape) == (3, (3, 64, 64))
    assert (source.train.mean, source.train.augmentation.padding) == ((0.5, 0.5, 0.5), 8)
    assert source.test.augmentation is None


def remove(path):
    for inside in sorted(path.rglob("*"), reverse=True):
        inside.rmdir() if inside.is_dir() else inside.unlink()
    path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda r: remove(r / "wnids.txt"), r"there is no .*wnids.txt: fedlada data fetch tinyimagenet"),
        (lambda r: (r / "wnids.txt").write_bytes(b"n01\xff\xfe\x00"), r"wnids.txt is damaged: it is not a text"),
        (lambda r: (r / "wnids.txt").write_text("\n"), r"wnids.txt names no classes"),
        (lambda r: (r / "val/val_annotations.txt").write_bytes(b"\xff\xfe"), r"val_annotations.txt is damaged"),
        (lambda r: remove(r / "train" / "n02"), r"has no folder for the class n02, .* \(1 of 3 are missing\)"),
        (lambda r: remove(r / "train" / "n02" / "images"), r"there is no folder .*n02/images"),
        (lambda r: [remove(f) for f in (r / "train/n02/images").iterdir()], "the class 'n02' is empty"),
        (lambda r: (r / "train" / "n99").mkdir(), "has a folder 'n99', which is not one of the 3 classes"),
        (lambda r: remove(r / "val" / "val_annotations.txt"), r"there is no .*val_annotations.txt"),
        (lambda r: remove(r / "val" / "images"), r"line 1: there is no .*val_0.JPEG"),
        (lambda r: remove(r / "val/images/val_2.JPEG"), r"line 3: there is no .*val_2.JPEG"),
        (lambda r: (r / "val/val_annotations.txt").write_text("val_0.JPEG\tn77\t0"), r"line 1: 'n77' is not a class"),
        (lambda r: (r / "val/val_annotations.txt").write_text(""), r"val_annotations.txt names no images"),
        (lambda r: cut(r / "train/n01/images/n01_1.JPEG"), r"n01_1.JPEG is damaged"),
        (lambda r: (r / "train/n01/images/n01_1.JPEG").write_text("x"), r"n01_1.JPEG is not an image that can be read"),
        (lambda r: write_image(r / "train/n01/images/n01_1.JPEG", (32, 64)), r"has 32x64 pixels where 64x64"),
    ],
)
def test_what_is_wrong_with_tiny_imagenet_is_named(tiny, change, sentence):
    change(tiny / "tiny-imagenet-200")
    with pytest.raises(ValueError, match=sentence):
        load_tiny_imagenet(tiny)


def cut(path):
    path.write_bytes(path.read_bytes()[:-200])


def test_what_is_wrong_with_a_folder_is_named(folder):
    root, _ = folder
    with pytest.raises(ValueError, match="there is no folder"):
        load_image_folder(root / "nowhere")
    with pytest.raises(ValueError, match="has no class folders"):
        load_image_folder(root / "train" / "cat")
    remove(root / "test" / "dog")
    with pytest.raises(ValueError, match=r"there is no folder .*test/dog: the class 'dog' is missing"):
        load_image_folder(root)
    remove(root / "test")
    with pytest.raises(ValueError, match="has a folder train, but neither test nor val beside it"):
        load_image_folder(root)


def test_the_cache_follows_the_files_and_notices_damage(folder):
    root, _ = folder
    before, _, _ = load_image_folder(root)
    first = np.array(before.images)
    cache = root / ".fedlada-cache" / "train"
    built = json.loads((cache / "meta.json").read_text())["checksums"]
    for damage in (flip_a_byte, cut, lambda path: path.unlink()):
        damage(cache / "images.npy")
        assert (load_image_folder(root)[0].images == first).all()
        assert json.loads((cache / "meta.json").read_text())["checksums"] == built
    (cache / "meta.json").write_text("{")
    assert (load_image_folder(root)[0].images == first).all()
    changed = write_image(root / "train" / "cat" / "0.png")
    os.utime(root / "train" / "cat" / "0.png", (0, 0))
    assert (load_image_folder(root)[0].images[0] == np.moveaxis(changed, 2, 0)).all()
    assert {path.name for path in cache.parent.iterdir()} == {"train", "test", "train.lock", "test.lock"}


def flip_a_byte(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


LOAD = """
import sys
from pathlib import Path
from fedlada.data import load_image_folder
calls = []
train, test, _ = load_image_folder(Path(sys.argv[1]), progress=lambda *told: calls.append(told))
print(len(calls), train.images.sum(), test.images.sum())
"""
SIZED = LOAD.replace("progress=", "image_size=64, progress=")


@pytest.mark.slow
def test_two_processes_build_one_cache(folder, tmp_path_factory):
    root, _ = folder
    (program := tmp_path_factory.mktemp("program") / "load.py").write_text(LOAD)
    both = warm([str(root)], program=program, environments=[{}, {}])
    assert both.returncode == 0, both.stderr
    answers = [line.split() for line in both.stdout.splitlines()]
    assert len(answers) == 2
    assert answers[0][1:] == answers[1][1:]
    # Each split was decoded by one of them alone: the other waited and read what was there.
    assert sum(int(answer[0]) for answer in answers) == 2


def test_a_folder_that_cannot_be_written_is_cached_elsewhere(folder, tmp_path_factory, monkeypatch):
    root, _ = folder
    elsewhere = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(elsewhere))
    (root / ".fedlada-cache").write_text("a file where the cache would be")
    train, _, _ = load_image_folder(root)
    assert len(train.labels) == 8
    assert list(elsewhere.glob("fedlada/*/train/images.npy"))


def test_both_splits_have_one_shape(tmp_path):
    """Grey only if every image is, and as large as the first one for training."""
    for split, modes in (("train", "LL"), ("test", ("L", "RGB"))):
        for number, mode in enumerate(modes):
            write_image(tmp_path / "mixed" / split / "a" / f"{number}.png", mode=mode)
    train, test, _ = load_image_folder(tmp_path / "mixed")
    assert train.images.shape == test.images.shape == (2, 3, 8, 8)
    (tmp_path / "mixed" / "test" / "a" / "1.png").unlink()  # now all are grey, and the training cache follows
    train, test, _ = load_image_folder(tmp_path / "mixed")
    assert (train.images.shape, test.images.shape) == ((2, 1, 8, 8), (1, 1, 8, 8))
    write_image(tmp_path / "sizes" / "train" / "a" / "0.png", (8, 8))
    write_image(tmp_path / "sizes" / "test" / "a" / "0.png", (9, 8))
    with pytest.raises(ValueError, match=r"test/a/0.png has 9x8 pixels where 8x8 are expected"):
        load_image_folder(tmp_path / "sizes")


def test_a_whole_cache_opens_without_opening_an_image(folder):
    root, _ = folder
    before, _, _ = load_image_folder(root)
    for path in root.glob("t*/*/*.png"):  # other bytes under the same name, size and time
        state = path.stat()
        path.write_bytes(b"x" * state.st_size)
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert (load_image_folder(root)[0].images == before.images).all()


def test_however_the_folder_is_spelled_the_cache_is_the_same(folder, monkeypatch):
    root, _ = folder
    told = []
    load_image_folder(root, progress=lambda *one: told.append(one))
    (root.parent / "link").symlink_to(root)
    monkeypatch.chdir(root)
    for spelled in (".", "train/..", f"../{root.name}", root.parent / "link"):
        load_image_folder(Path(spelled), progress=lambda *one: told.append(one))
    assert len(told) == 2  # each split was decoded once


def test_scaling_keeps_the_shorter_side_and_the_middle(tmp_path):
    """Left half black, right half white, twice as wide as high: the middle keeps the edge in its middle."""
    pixels = np.zeros((16, 32), dtype=np.uint8)
    pixels[:, 16:] = 255
    pixels[:, :4] = pixels[:, -4:] = 128  # lies outside the middle: a plain resize would keep it
    Image.fromarray(pixels).save(tmp_path / "a.png")
    (scaled,) = read_image(str(tmp_path / "a.png"), (1, 8, 8), 8)
    assert scaled[:, :3].max() == 0
    assert scaled[:, 5:].min() == 255


def test_deep_grey_values_are_scaled_and_boundless_ones_refused(tmp_path):
    deep = (np.arange(64, dtype=np.uint16) * 1024).reshape(8, 8)
    for name, big in (("a.png", False), ("b.tif", False), ("c.tif", True)):
        Image.fromarray(deep.astype(">u2") if big else deep).save(tmp_path / name)
        assert is_grey(str(tmp_path / name))
        assert (read_image(str(tmp_path / name), (1, 8, 8)) == deep >> 8).all()
        assert (read_image(str(tmp_path / name), (3, 8, 8))[2] == deep >> 8).all()
    for kind, mode in ((np.int32, "I"), (np.float32, "F")):
        Image.fromarray(deep.astype(kind)).save(tmp_path / "wide.tif")
        with pytest.raises(ValueError, match=rf"wide.tif holds .* \(Pillow's mode {mode}\): save it with 8 or 16"):
            read_image(str(tmp_path / "wide.tif"), (3, 8, 8))


def test_images_are_turned_as_viewers_show_them(tmp_path):
    pixels = RANDOM.integers(0, 256, (4, 6, 3), dtype=np.uint8)
    turned = Image.Exif()
    turned[0x0112] = 6  # the camera lay on its side
    for split in ("train", "test"):
        (tmp_path / split / "a").mkdir(parents=True)
        Image.fromarray(pixels).save(tmp_path / split / "a" / "0.png", exif=turned)
    train, _, _ = load_image_folder(tmp_path)
    assert (train.images[0] == np.moveaxis(np.rot90(pixels, -1), 2, 0)).all()


def test_a_transparent_pixel_counts_with_its_colour(tmp_path):
    pixels = write_image(tmp_path / "a.png", mode="RGBA")
    assert (read_image(str(tmp_path / "a.png"), (3, 8, 8)) == np.moveaxis(pixels[:, :, :3], 2, 0)).all()


def png(*chunks):
    def chunk(name, body):
        return len(body).to_bytes(4, "big") + name + body + zlib.crc32(name + body).to_bytes(4, "big")

    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*one) for one in chunks)


HEADER = (b"IHDR", (8).to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0]))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("checksum.png", png(HEADER)[:-1] + b"\x00"),  # a SyntaxError of Pillow's
        ("data.png", png(HEADER, (b"IDAT", b"not compressed"), (b"IEND", b""))),
        ("short.png", png((b"IHDR", b"\x00" * 4))),
        ("bomb.png", png((b"IHDR", (10**6).to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])), (b"IEND", b""))),
        ("letters.ppm", b"P6\n8 8x\n255\n" + b"\0" * 192),  # a ValueError
        ("long.ppm", b"P3\n8 8\n255\n" + b"300 " * 192),
        ("short.ppm", b"P6\n8 8\n255\n" + b"\0" * 20),
        ("tags.tif", b"II*\x00\x08\x00\x00\x00\xff\xff" + b"\x01" * 40),
        ("header.bmp", b"BM" + b"\x00" * 60),
        ("empty.jpg", b""),
        ("blocks.gif", b"GIF89a\x08\x00\x08\x00\x00\x00\x00,\x00\x00\x00\x00\x08\x00\x08\x00\x00\x02\x05"),
    ],
)
def test_whatever_pillow_raises_names_the_file(folder, name, content):
    root, _ = folder
    (root / "train" / "cat" / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name} is (not an image that can be read|damaged)"):
        load_image_folder(root)
    assert not list((root / ".fedlada-cache").glob(".*"))


POSTSCRIPT = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 8 8
%%EndComments
showpage
"""


@pytest.mark.parametrize("name", ["drawing.png", "drawing.jpg"])
def test_postscript_under_another_name_is_never_run(folder, name, tmp_path_factory, monkeypatch):
    """Pillow hands it to Ghostscript where that is installed: here a program that says that it was called."""
    root, _ = folder
    programs = tmp_path_factory.mktemp("bin")
    (programs / "gs").write_text(f"#!/bin/sh\ntouch {programs}/called\nexit 1\n")
    (programs / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)  # it remembers what it found
    (root / "train" / "cat" / name).write_bytes(POSTSCRIPT)
    with pytest.raises(ValueError, match=rf"{name} is not an image that can be read"):
        load_image_folder(root)
    assert not (programs / "called").exists()


def test_every_documented_format_is_read_and_no_other(tmp_path):
    image = Image.fromarray(RANDOM.integers(0, 256, (8, 8, 3), dtype=np.uint8))
    for suffix in SUFFIXES:
        file = str(tmp_path / f"image{suffix}")
        image.convert("L" if suffix == ".pgm" else "RGB").save(file)
        assert read_image(file, (3, 8, 8)).shape == (3, 8, 8)
    documents = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text()
    assert all(f"`{suffix}`" in documents for suffix in SUFFIXES)
    for format in ("ICO", "TGA", "PCX", "SGI"):
        image.save(tmp_path / "other.png", format=format)
        with pytest.raises(ValueError, match="is not an image that can be read"):
            read_image(str(tmp_path / "other.png"), (3, 8, 8))


def size_alone(width, height):
    """A PNG file with a header and nothing behind it: whoever decodes it finds it damaged."""
    return png((b"IHDR", width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])), (b"IDAT", b""))


@pytest.mark.parametrize("size", [(1, 2_000_000), (1, 200_000), (2_000_000, 1)])
def test_what_scaling_would_blow_up_is_refused_by_its_header(folder, size):
    root, _ = folder
    (root / "train" / "cat" / "thin.png").write_bytes(size_alone(*size))
    said = rf"thin.png has {size[0]}x{size[1]} pixels and would have \d+x\d+ with image_size 64: at most 80,000,000"
    with pytest.raises(ValueError, match=said):
        load_image_folder(root, image_size=64)


@pytest.mark.parametrize("size", [(10_000, 8_001), (10_000, 9_500), (20_000, 8_900)])
def test_an_image_of_too_many_pixels_is_refused_by_its_header(folder, size):
    root, _ = folder
    (root / "train" / "cat" / "0.png").write_bytes(size_alone(*size))
    with pytest.raises(ValueError, match=rf"0.png has {size[0]}x{size[1]} pixels: at most 80,000,000 are read"):
        load_image_folder(root)


def confined(script, folder, *arguments):
    """Run a script in a mount namespace of its own, where it may mount what it likes."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system lets nobody make a mount namespace")
    command = [unshare, "-rm", "sh", "-ec", script, "sh", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
"""


@pytest.mark.slow
def test_a_full_disk_is_a_sentence_and_leaves_nothing(folder):
    root, _ = folder
    (root / ".fedlada-cache").mkdir()
    limited = [sys.executable, "-c", LIMITED + LOAD, str(root)]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "train cannot be written (File too large); the data set itself is untouched" in done.stderr
    assert [path.name for path in (root / ".fedlada-cache").iterdir()] == ["train.lock"]
    # A real disk of 64 KiB: 8 images of 12 KiB do not fit.
    script = 'mount -t tmpfs -o size=64k none "$1/.fedlada-cache"; shift; code=0; "$@" || code=$?; '
    script += 'ls -A "$4/.fedlada-cache"; exit $code'
    done = confined(script, root, sys.executable, "-c", SIZED, str(root))
    assert done.returncode == 1, done.stderr
    assert "train-64 cannot be written (No space left on device); the data set itself" in done.stderr
    assert done.stdout.split() == ["train-64.lock"]


@pytest.mark.slow
def test_a_cache_that_can_only_be_read_is_used(folder, tmp_path_factory):
    root, _ = folder
    load_image_folder(root)
    empty = tmp_path_factory.mktemp("empty")
    script = (
        'mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"; shift; XDG_CACHE_HOME="$1"; export XDG_CACHE_HOME; '
    )
    script += 'shift; "$@"'
    done = confined(script, root, str(empty), sys.executable, "-c", LOAD, str(root))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "0"  # nothing was decoded
    assert list(empty.iterdir()) == []


def test_what_killed_processes_left_is_removed(folder):
    root, _ = folder
    cache = root / ".fedlada-cache"
    for name in (".train-abc_1234", ".test-x1234567", ".train-64-abc_1234"):
        (cache / name).mkdir(parents=True)
        (cache / name / "images.npy").write_bytes(b"half")
    load_image_folder(root)
    # That of another size may be at work: its lock is another.
    assert {path.name for path in cache.glob(".*")} == {".train-64-abc_1234"}
