"""Downloads: resumable, verified by checksum, and unpacked safely."""

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
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

from fedlada.data.archives import OFFICIAL, Archive, Official
from fedlada.data.image_folder import Progress
from fedlada.methods.validation import one_of

CHUNK = 256 * 1024
TIMEOUT_S = 30
FEW_FILES = 6
"""As many are named in a sentence."""


class CannotFetch(OSError):
    """The archive could not be downloaded, or is not the official one."""


class _Broken(Exception):
    """The network failed; `goes_on` tells whether the partial download can be resumed."""

    def __init__(self, reason: object, goes_on: bool) -> None:
        super().__init__(reason)
        self.goes_on = goes_on


def fetch(name: str, data_dir: Path, *, progress: Progress | None = None, official: Official | None = None) -> Path:
    """Download an official data set into a folder and return its path; existing files are not fetched again."""
    one_of("name", name, tuple(OFFICIAL))
    official = official or OFFICIAL[name]
    target = data_dir / official.folder
    if _is_there(official, target):
        return target
    with _alone(data_dir, official):
        if not _is_there(official, target):  # another process may have fetched it meanwhile
            _bring(official, data_dir, progress)
    return target


def _is_there(official: Official, target: Path) -> bool:
    """Whether the data set is complete; an incomplete folder is an error and never replaced."""
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target} is not a folder: the data set would lie there")
    if not target.is_dir() or not any(target.iterdir()):
        return False
    if official.unpacks:
        missing = [file for file in official.holds if not (target / file).exists()]
        if missing:
            raise CannotFetch(
                f"{target} has no {missing[0]}: remove that folder, then the same command downloads it again"
            )
        return True
    paths = [(target / archive.file, archive) for archive in official.archives]
    if not all(path.exists() for path, _ in paths):
        return False
    for path, archive in paths:
        _check(path, archive)
    return True


def _bring(official: Official, data_dir: Path, progress: Progress | None) -> None:
    target = data_dir / official.folder
    inside = data_dir if official.unpacks else target
    missing = [archive.file for archive in official.archives if not (inside / archive.file).exists()]
    for archive in official.archives:
        path = download(archive, inside, progress=progress, by_hand=missing)
        if official.unpacks:
            unpack(path, target)
            if archive.file in missing:  # an existing archive belongs to the user
                path.unlink()


@contextmanager
def _alone(data_dir: Path, official: Official) -> Iterator[None]:
    """Lock the download to one process; folders made for it are removed if they stay empty."""
    from filelock import FileLock  # not needed to simulate on arrays

    parts = Path(official.folder).parts
    folders = list(accumulate(() if official.unpacks else parts, Path.joinpath, initial=data_dir))
    made = [folder for folder in folders if not folder.exists()]
    lock = data_dir / f".{parts[0]}.lock"
    try:
        folders[-1].mkdir(parents=True, exist_ok=True)
        held = FileLock(lock)
        held.acquire()
    except OSError as error:
        raise ValueError(f"the folder {folders[-1]} cannot be made or written: {error.strerror or error}") from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)  # waiting processes open it by its name and find a new one
        held.release()
        for folder in reversed(made):
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def download(
    archive: Archive, folder: Path, *, progress: Progress | None = None, by_hand: Sequence[str] | None = None
) -> Path:
    """Download the archive into that folder, verified by its digest; a partial download is resumed.

    `by_hand` are the files to name for a manual download, if there are several.
    """
    path = folder / archive.file
    part = folder / f"{archive.file}.part"
    if path.exists():
        _check(path, archive)
        return path
    hint = f"put {_listed(by_hand or [archive.file])} into {folder} by hand and run the same command again"
    try:
        _receive(archive, part, progress)
    except urllib.error.HTTPError as error:
        raise CannotFetch(f"{archive.url} answers {error.code} {error.reason}: {hint}") from None
    except _Broken as error:
        have = part.stat().st_size if part.exists() else 0
        kept = f"; {have} bytes are kept, the same command resumes the download" if have and error.goes_on else ""
        raise CannotFetch(f"{archive.url} cannot be reached ({error}){kept}: {hint}") from None
    except OSError as error:
        raise CannotFetch(f"{part} cannot be written: {error.strerror or error}") from None
    found = _digest(part)
    if found != archive.sha256:
        part.unlink()  # wrong bytes must not be resumed
        raise CannotFetch(
            f"what {archive.url} gave is not the official {archive.file}: its SHA-256 is {found}, not "
            f"{archive.sha256}; it is not kept, the same command fetches it again"
        )
    os.replace(part, path)
    return path


def _listed(files: Sequence[str]) -> str:
    """The files by name; of very many the first ones."""
    return ", ".join(files) if len(files) <= FEW_FILES else f"{', '.join(files[:3])} and {len(files) - 3} more"


def _receive(archive: Archive, part: Path, progress: Progress | None) -> None:
    have = part.stat().st_size if part.exists() else 0
    if have >= archive.num_bytes:
        return
    request = urllib.request.Request(archive.url, headers={"User-Agent": "fedlada"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with _answer(request) as answer:
        goes_on = not have or answer.status == 206
        if not goes_on:  # the server sends all of it, whatever was asked for
            have = 0
        with part.open("ab" if have else "wb") as file:
            for chunk in _chunks(answer, goes_on):
                file.write(chunk)
                have += len(chunk)
                if have > archive.num_bytes:
                    break  # not the requested bytes; the digest will differ
                if progress is not None:
                    progress(f"fetching {archive.file}", have, archive.num_bytes)
    if have < archive.num_bytes:
        raise _Broken(f"the connection ended after {have} of {archive.num_bytes} bytes", goes_on)


def _answer(request: urllib.request.Request) -> Any:
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(getattr(error, "reason", None) or error, goes_on=True) from None


def _chunks(answer: Any, goes_on: bool) -> Iterator[bytes]:
    """The received chunks; errors here come from the network, errors while writing do not."""
    while True:
        try:
            chunk: bytes = answer.read(CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise _Broken(error, goes_on) from None
        if not chunk:
            return
        yield chunk


def _check(path: Path, archive: Archive) -> None:
    found = _digest(path)
    if found != archive.sha256:
        raise CannotFetch(
            f"{path} is not the official {archive.file}: its SHA-256 is {found}, not {archive.sha256}; "
            "remove it and fetch it again"
        )


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CannotFetch(f"{path} cannot be read: {error.strerror or error}") from None


def unpack(archive: Path, target: Path) -> None:
    """Unpack into the folder `target`, which the archive must hold; nothing may be written anywhere else."""
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        if archive.suffix == ".zip":
            _unpack_zip(archive, work)
        else:
            _unpack_tar(archive, work)
        if not (work / target.name).is_dir():
            raise CannotFetch(f"{archive} holds no folder {target.name}: it is not the official archive")
        if target.is_dir():
            target.rmdir()  # only an empty one can be replaced
        os.replace(work / target.name, target)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise CannotFetch(f"{archive} cannot be unpacked: {error}") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _unpack_zip(archive: Path, work: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        for entry in file.infolist():
            _check_name(archive, entry.filename)  # zipfile would silently change one that leaves
        file.extractall(work)


def _unpack_tar(archive: Path, work: Path) -> None:
    """tarfile's own filters came with Python 3.11.4, and Debian 12 has 3.11.2."""
    with tarfile.open(archive) as file:
        for entry in file:
            _check_name(archive, entry.name)
            if not entry.isreg() and not entry.isdir():
                raise CannotFetch(f"{archive} holds {entry.name!r}, which is neither a file nor a folder")
            target = work / entry.name
            (target if entry.isdir() else target.parent).mkdir(parents=True, exist_ok=True)
            if content := file.extractfile(entry):
                with content, target.open("wb") as out:
                    shutil.copyfileobj(content, out)


def _check_name(archive: Path, name: str) -> None:
    if Path(name).is_absolute() or ".." in Path(name).parts or "\\" in name:
        raise CannotFetch(f"{archive} holds {name!r}, which would leave its folder")
