"""Downloads: resumed where they stopped, checked before they get their name, unpacked without leaving their folder."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

from fedlada.data.archives import OFFICIAL, Archive, Official
from fedlada.data.image_folder import Progress
from fedlada.validation import one_of

CHUNK = 256 * 1024
TIMEOUT_S = 30


class CannotFetch(OSError):
    """The archive could not be had, or is not the official one."""


def fetch(name: str, data_dir: Path, *, progress: Progress | None = None, official: Official | None = None) -> Path:
    """Bring an official data set into a folder and return where it lies; what is there already is not fetched again."""
    one_of("name", name, tuple(OFFICIAL))
    official = official or OFFICIAL[name]
    target = data_dir / official.folder
    inside = data_dir if official.unpacks else target
    if official.unpacks and target.is_dir():
        return target
    try:
        inside.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"the folder {inside} cannot be made: {error.strerror}") from None
    for archive in official.archives:
        path = download(archive, inside, progress=progress)
        if official.unpacks:
            unpack(path, target)
            path.unlink()
    return target


def download(archive: Archive, folder: Path, *, progress: Progress | None = None) -> Path:
    """The archive in that folder, with the official digest or not at all; a part that is there is gone on with."""
    path = folder / archive.file
    part = folder / f"{archive.file}.part"
    if path.exists():
        _check(path, archive)
        return path
    try:
        _receive(archive, part, progress)
    except urllib.error.HTTPError as error:
        raise CannotFetch(f"{archive.url} answers {error.code} {error.reason}: {_by_hand(archive, folder)}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        kept = f"; {part.stat().st_size} bytes are kept, the same command goes on" if part.exists() else ""
        raise CannotFetch(f"{archive.url} cannot be reached ({reason}){kept}: {_by_hand(archive, folder)}") from None
    try:
        _check(part, archive)
    except CannotFetch:
        part.unlink()  # going on with wrong bytes would never end well
        raise
    os.replace(part, path)
    return path


def _receive(archive: Archive, part: Path, progress: Progress | None) -> None:
    have = part.stat().st_size if part.exists() else 0
    if have >= archive.num_bytes:
        return
    request = urllib.request.Request(archive.url, headers={"User-Agent": "fedlada"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        if answer.status != 206:  # the server sends all of it, whatever was asked for
            have = 0
        with part.open("ab" if have else "wb") as file:
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                have += len(chunk)
                if have > archive.num_bytes:
                    break  # not what was asked for; the digest says so
                if progress is not None:
                    progress(f"fetching {archive.file}", have, archive.num_bytes)
    if have < archive.num_bytes:
        raise OSError(f"the connection ended after {have} of {archive.num_bytes} bytes")


def _check(path: Path, archive: Archive) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != archive.sha256:
        raise CannotFetch(
            f"{path} is not the official {archive.file}: its SHA-256 is {found}, not {archive.sha256}; "
            "remove it and fetch it again"
        )


def _by_hand(archive: Archive, folder: Path) -> str:
    return f"put {archive.file} into {folder} by hand and run the same command again"


def unpack(archive: Path, target: Path) -> None:
    """Unpack into the folder `target`, which the archive must hold; nothing may be written anywhere else."""
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        (_unpack_zip if archive.suffix == ".zip" else _unpack_tar)(archive, work)
        if not (work / target.name).is_dir():
            raise CannotFetch(f"{archive} holds no folder {target.name}: it is not the official archive")
        os.replace(work / target.name, target)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise CannotFetch(f"{archive} cannot be unpacked: {error}") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _unpack_tar(archive: Path, work: Path) -> None:
    with tarfile.open(archive) as file:
        file.extractall(work, filter="data")  # refuses absolute paths, "..", links that leave, devices


def _unpack_zip(archive: Path, work: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        for entry in file.infolist():
            # zipfile would quietly bend such a name; what is odd is refused instead.
            if Path(entry.filename).is_absolute() or ".." in Path(entry.filename).parts or "\\" in entry.filename:
                raise CannotFetch(f"{archive} holds {entry.filename!r}, which would leave its folder")
        file.extractall(work)
