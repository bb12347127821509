"""Plays as XML: who speaks, what counts as text, how it is divided, and files that are not to be read."""

from __future__ import annotations

from xml.sax.saxutils import escape

import numpy as np
import pytest

from fedlada.data import load_dataset, load_shakespeare
from fedlada.data.held_out import held_out_ends
from fedlada.data.plays import FILES, FOLDER, plain, read_play
from plays_by_hand import write_plays

PLAY = """<?xml version="1.0" encoding="UTF-8"?>
<play variant="ps" unique="test"><titleStmt><title type="common">A Play</title></titleStmt>
<castList><castItem><role short="A.">Anna</role></castItem></castList>
<act num="1"><acttitle>Act 1</acttitle><scene actnum="1" num="1"><scenetitle>Scene 1</scenetitle>
<stage><dir>Enter Anna.</dir></stage>{speeches}</scene></act></play>
"""
MIXED = """
<sp><speaker long="Anna">A.</speaker><l gn="1">Who&#8217;s
   there, <foreign xml:lang="fr">caf&#233;</foreign>?</l><stage><dir>He knocks.</dir></stage>
<l gn="2">One<stage><dir>aside</dir></stage> two&#8212;three&#8288;.</l></sp>
<sp><speaker long="Ben&#8217;s Man">B.</speaker><l>&#8220;No.&#8221;</l></sp>
<sp><speaker long="Anna">A.</speaker><l></l><l>Good night.</l></sp>
"""


def speech(role, text, length=20):
    lines = "".join(f"<l>{escape(text[start : start + length])}</l>" for start in range(0, len(text), length))
    return f'<sp><speaker long="{role}">X.</speaker>{lines}</sp>'


def words(num, start=0):
    """Numbers that do not repeat: five digits, which become a line with its newline after four of them."""
    return " ".join(f"{number:04}" for number in range(start, start + num))


def write(folder, plays):
    folder.mkdir(parents=True, exist_ok=True)
    for name, speeches in plays.items():
        (folder / name).write_text(PLAY.format(speeches=speeches), encoding="utf-8")
    return folder


def text_of(codes):
    return "".join(map(chr, codes))


def two_plays(folder):
    talk = speech("Anna", words(100)) + speech("Ben", words(400, 1000)) + speech("Page", "Short.")
    more = speech("Anna", words(200, 3000)) + speech("Anna", words(100, 4000))
    return write(folder, {"ps_one.xml": talk + speech("Anna", words(200, 100)), "ps_two.xml": more})


def test_what_is_spoken(tmp_path):
    write(tmp_path, {"ps_one.xml": MIXED})
    assert read_play(tmp_path / "ps_one.xml") == {
        "Anna": "Who's there, cafe?\nOne two--three.\nGood night.\n",
        "Ben's Man": '"No."\n',
    }
    assert plain(" Ça\u00a0\u2060va …\n\u2018oui\u2019 – Ω ") == "Ca va ... 'oui' - ?"


def test_roles_are_clients_and_their_texts_end_is_the_test(tmp_path):
    files = ("ps_one.xml", "ps_two.xml")
    train, test, names = load_shakespeare(two_plays(tmp_path), files)
    assert names == ["one: Anna", "one: Ben", "two: Anna"]  # the page speaks too little
    spoken = [
        read_play(tmp_path / file)[role]
        for file, role in (("ps_one.xml", "Anna"), ("ps_one.xml", "Ben"), ("ps_two.xml", "Anna"))
    ]
    for split, spacing, fifths in ((train, 10, 4), (test, 40, 1)):
        num = [-(-(round(fifths * len(text) / 5) - 80) // spacing) for text in spoken]
        assert split.x.shape == (sum(num), 80)
        assert np.bincount(split.client).tolist() == num
        for x, y, client in zip(split.x, split.y, split.client, strict=True):
            assert text_of([*x, y]) in spoken[client]
        first, second = (text_of(split.x[number]) for number in (0, 1))
        assert second.startswith(first[spacing:])
    # The texts are numbers that rise: nothing of a test window was in a training window.
    for client in (0, 1, 2):
        trained, tested = (
            {int(word) for x in split.x[split.client == client] for word in text_of(x).split() if len(word) == 4}
            for split in (train, test)
        )
        assert min(tested) > max(trained)


@pytest.mark.parametrize("place", [FOLDER, "playshakespeare_editions", "."])
def test_the_folder_of_fetch_or_of_a_clone(tmp_path, place):
    two_plays(tmp_path / place)
    assert len(load_shakespeare(tmp_path, ("ps_one.xml", "ps_two.xml"))[2]) == 3


def test_the_data_set_by_its_name(tmp_path):
    source = load_dataset("shakespeare", write_plays(tmp_path))
    assert source.is_text
    assert (source.num_classes, source.input_shape, len(source.client_names)) == (128, (80,), 39)
    assert source.client_names[6] == "hamlet: Anna"
    assert source.test_client.max() == 38


def test_held_out_text_shares_no_character_with_training_text(tmp_path):
    source = load_dataset("shakespeare", write_plays(tmp_path))
    held = source.holding_out(0.2)
    kept = np.bincount(held.client)
    assert (kept == kept[0]).all()
    num = np.bincount(source.client)[0]
    assert kept[0] == num - round(0.2 * num) - 8
    x, y = held.validation
    assert len(y) == 39 * -(-round(0.2 * num) // 4)
    for client in (0, 38):
        text = read_play(tmp_path / FOLDER / FILES[client])["Anna"]
        own = held.train[0][held.client == client]
        begins = [text.find(text_of(one)) for one in x[client * len(y) // 39 : (client + 1) * len(y) // 39]]
        last = text.find(text_of(own[-1]))
        assert last + 80 < begins[0] <= last + 90  # the character after it is its target
        assert np.diff(begins).tolist() == [40] * (len(begins) - 1)
        assert begins[-1] + 80 < len(text) - len(text) // 5
    assert held.test is source.test


def test_every_client_keeps_the_beginning_of_its_windows():
    rest, held = held_out_ends(np.repeat([4, 9], [20, 3]), 0.25, overlap=2, every=3)
    assert (rest.tolist(), held.tolist()) == ([*range(13)], [15, 18, 22])


BOMB = '<!DOCTYPE play [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (PLAY.replace("<play", f"{BOMB}<play", 1).format(speeches=speech("Anna", "x")), "has a document type"),
        ('<!DOCTYPE play SYSTEM "file:///etc/passwd"><play/>', "has a document type, which could define entities"),
        (PLAY.format(speeches=speech("Anna", "x"))[:-30], "is damaged or no XML: unclosed token"),
        ("", "is damaged or no XML"),
        ("<poem><l>Shall I compare</l></poem>", "holds no speeches: it is no play of PlayShakespeare.com"),
        ("<play><sp><l>nobody says this</l></sp></play>", "holds no speeches"),
    ],
)
def test_other_files_are_named(tmp_path, content, said):
    (tmp_path / "ps_one.xml").write_text(content)
    with pytest.raises(ValueError, match=rf"ps_one.xml {said}"):
        read_play(tmp_path / "ps_one.xml")


def test_what_is_missing_or_too_large(tmp_path):
    with pytest.raises(
        ValueError, match=r"there are no plays in .*: fedlada data fetch shakespeare --data-dir .* brings"
    ):
        load_dataset("shakespeare", tmp_path)
    write(tmp_path, {"ps_one.xml": speech("Anna", words(300))})
    with pytest.raises(ValueError, match=r"there is no play .*ps_two.xml: fedlada data fetch shakespeare brings it"):
        load_shakespeare(tmp_path, ("ps_one.xml", "ps_two.xml"))
    with pytest.raises(ValueError, match="has fewer than two roles that speak at least 1000 characters"):
        load_shakespeare(tmp_path, ("ps_one.xml",))
    with (tmp_path / "ps_two.xml").open("wb") as file:
        file.truncate(20_000_001)
    with pytest.raises(ValueError, match=r"ps_two.xml has 20000001 bytes: at most 20000000 are read"):
        read_play(tmp_path / "ps_two.xml")
    (tmp_path / "ps_three.xml").mkdir()
    with pytest.raises(ValueError, match=r"ps_three.xml cannot be read: Is a directory"):
        read_play(tmp_path / "ps_three.xml")
    with pytest.raises(ValueError, match="shakespeare has no images in bytes to augment"):
        load_dataset("shakespeare", tmp_path, augment="crop")
