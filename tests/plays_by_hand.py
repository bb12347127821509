"""Small plays in the folders and under the names of the edition that is fetched."""

from __future__ import annotations

from fedlada.data.plays import FILES, FOLDER


def write_plays(folder, role="Anna"):
    """One role in each play, with 2,000 characters to say; returns the folder."""
    place = folder / FOLDER
    place.mkdir(parents=True)
    for number, file in enumerate(FILES):
        lines = "".join(f"<l>Line {one:02} of the play {number:02}, and what is to come.</l>" for one in range(44))
        speech = f'<sp><speaker long="{role}">X.</speaker>{lines}</sp>'
        (place / file).write_text(f"<play><act><scene>{speech}</scene></act></play>", encoding="utf-8")
    return folder
