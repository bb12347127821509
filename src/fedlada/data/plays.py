"""Shakespeare's plays as XML, in the edition of PlayShakespeare.com: each role is a client.

The task is LEAF's: predict the character that follows 80 others of a role's speeches. Stage directions, titles and the
names of the speakers are left out. The texts are licensed under the GFDL 1.3: they are fetched and not shipped.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.parsers import expat

import numpy as np

from fedlada.data.archives import OFFICIAL
from fedlada.data.text import TextSplit, joined
from fedlada.federation.randomness import Ints

WINDOW = 80
TRAIN_SPACING, TEST_SPACING = 10, 40
"""Characters from the start of one window to the next."""
SHORTEST = 1000
"""Characters that a role must speak to make a client."""
TEST_SHARE = 5
"""The last fifth of a role's text is its test set."""
LARGEST = 20 * 10**6
"""Bytes of a file that is read; the longest play has half a million."""
FOLDER = OFFICIAL["shakespeare"].folder
FILES = tuple(archive.file for archive in OFFICIAL["shakespeare"].archives)

TYPED = {0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"', 0x2013: "-", 0x2014: "--", 0x2026: "...", 0xA0: " "}
PLAIN: dict[int, str | None] = {**TYPED, **dict.fromkeys([0x2060, 0x200B, 0xFEFF, 0xAD])}
"""Typographic characters as they are typed, without the invisible ones.

Accents are dropped from letters, and what is left becomes a question mark.
"""


def load_shakespeare(folder: str | Path, files: Sequence[str] = FILES) -> tuple[TextSplit, TextSplit, list[str]]:
    """(train, test, roles) of the plays in a folder, such as "hamlet: Ophelia"; no window crosses into the test."""
    place = found_in(Path(folder))
    names: list[str] = []
    train: list[Ints] = []
    test: list[Ints] = []
    for file in files:
        for role, text in read_play(place / file).items():
            codes = np.frombuffer(text.encode("ascii"), dtype=np.uint8).astype(np.int64)
            if len(codes) < SHORTEST:
                continue
            cut = len(codes) - len(codes) // TEST_SHARE
            names.append(f"{file.removeprefix('ps_').removesuffix('.xml')}: {role}")
            train.append(_windows(codes[:cut], TRAIN_SPACING))
            test.append(_windows(codes[cut:], TEST_SPACING))
    if len(names) < 2:
        raise ValueError(f"{place} has fewer than two roles that speak at least {SHORTEST} characters")
    return joined(train), joined(test), names


def found_in(folder: Path) -> Path:
    """The folder with the plays: as `fedlada data fetch` makes it, a clone of the repository, or the folder itself."""
    places = (folder / FOLDER, folder / Path(FOLDER).name, folder)
    for place in places:
        if any(place.glob("ps_*.xml")):
            return place
    raise ValueError(
        f"there are no plays in {places[0]}: fedlada data fetch shakespeare --data-dir {folder} brings them"
    )


def read_play(path: Path) -> dict[str, str]:
    """The text of each role of a play, in plain ASCII; lines end with a newline."""
    reader = _Reader(path)
    try:
        if (size := path.stat().st_size) > LARGEST:
            raise ValueError(f"{path} has {size} bytes: at most {LARGEST} are read")
        with path.open("rb") as file:
            reader.parser.ParseFile(file)
    except FileNotFoundError:
        raise ValueError(f"there is no play {path}: fedlada data fetch shakespeare brings it") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    except expat.ExpatError as error:
        raise ValueError(f"{path} is damaged or no XML: {error}") from None
    if not reader.spoken:
        raise ValueError(f"{path} holds no speeches: it is no play of PlayShakespeare.com")
    return {role: "".join(lines) for role, lines in reader.spoken.items()}


class _Reader:
    """Collects the lines of `<sp><speaker long="Ophelia"/><l>...</l></sp>`; no file may declare entities."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spoken: dict[str, list[str]] = {}
        self.role: str | None = None
        self.line: list[str] | None = None
        self.silent = 0
        """Depth inside a stage direction that interrupts a line."""
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        # Before any of its entities is read, so that none is ever expanded.
        self.parser.StartDoctypeDeclHandler = self._refuse
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text

    def _refuse(self, *_: Any) -> None:
        raise ValueError(f"{self.path} has a document type, which could define entities: the plays have none")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if self.silent or name == "stage":
            self.silent += 1
        elif name == "sp":
            self.role = None
        elif name == "speaker":
            self.role = plain(attributes.get("long", "")) or None
        elif name == "l" and self.role is not None:
            self.line = []

    def _end(self, name: str) -> None:
        if self.silent:
            self.silent -= 1
        elif name == "sp":
            self.role = None
        elif name == "l" and self.line is not None and self.role is not None:
            if text := plain("".join(self.line)):
                self.spoken.setdefault(self.role, []).append(f"{text}\n")
            self.line = None

    def _text(self, text: str) -> None:
        if self.line is not None and not self.silent:
            self.line.append(text)


def plain(text: str) -> str:
    """One line of ASCII."""
    typed = " ".join((text if text.isascii() else text.translate(PLAIN)).split())
    if typed.isascii():
        return typed
    letters = unicodedata.normalize("NFKD", typed)
    kept = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return kept.encode("ascii", errors="replace").decode("ascii")


def _windows(codes: Ints, spacing: int) -> Ints:
    """Windows of 80 characters and the one that follows, `[N, 81]`, as a view."""
    return np.lib.stride_tricks.sliding_window_view(codes, WINDOW + 1)[::spacing]
