"""README and documentation are short and plain: words are counted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
LONGEST_SENTENCE = 30
README_WORDS = 700


LIST_ITEM = r" *(?:[-*+]|\d+\.) "


def paragraphs(text: str, *, tables: bool = True) -> list[str]:
    """The prose of a page, list items and table cells apart; no code, headings, pictures, comments or link targets."""
    text = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = without_indented_code(text)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"(`+).*?\1", "code", text, flags=re.DOTALL)
    text = re.sub(r"^ *(#|:::|!!!|\?\?\?|<|\|[ :|-]*$).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^ *\|.*$", lambda row: row[0].replace("|", "\n\n") if tables else "", text, flags=re.MULTILINE)
    text = re.sub(rf"^{LIST_ITEM}", "\n", text, flags=re.MULTILINE)
    return [block.replace("**", "").strip() for block in re.split(r"\n\s*\n", text) if block.strip()]


def without_indented_code(text: str) -> str:
    """Text indented by four spaces is code, unless it belongs to a list item or to an admonition."""
    kept, indented_is_text = [], False
    for line in text.splitlines():
        if line[:1].strip() or re.match(LIST_ITEM, line):
            indented_is_text = re.match(rf"{LIST_ITEM}|!!!|\?\?\?", line) is not None
        if indented_is_text or not line.startswith("    "):
            kept.append(line)
    return "\n".join(kept)


def words(text: str) -> list[str]:
    return [word for word in text.split() if re.search(r"\w", word)]


def sentences(text: str) -> list[str]:
    return [one for block in paragraphs(text) for one in re.split(r"(?<=[.?!])[)\"]?\s+", block)]


def test_the_counter_counts():
    text = (
        "# No\n\nOne `a b`, [two words](x.md).\nThree!\n\n```\nno\n```\n\n    no code\n\n- four\n- five **six**. Seven?"
    )
    assert [len(words(one)) for one in sentences(text)] == [4, 1, 1, 2, 1]


@pytest.mark.parametrize(
    "text",
    [
        "| a | one two |\n|---|---|\n| x | {} |\n",
        "- x\n    - y\n        - {}\n",
        "1. x\n\n    {}\n",
        "!!! note\n    {}\n",
        "**Bold.** {}\n",
        "- **Bold lead.** {}\n",
    ],
    ids=["table cell", "nested item", "second paragraph of an item", "admonition", "bold lead-in", "bold in an item"],
)
def test_no_sentence_hides(text: str):
    assert max(len(words(one)) for one in sentences(text.format("word " * 40))) == 40


def test_the_readme_is_read_in_minutes():
    prose = paragraphs((ROOT / "README.md").read_text(), tables=False)
    count = sum(len(words(block)) for block in prose)
    assert count <= README_WORDS, f"README.md has {count} words of prose"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_are_short(page: Path):
    too_long = [one for one in sentences(page.read_text()) if len(words(one)) > LONGEST_SENTENCE]
    assert not too_long, f"{len(too_long)} sentences over {LONGEST_SENTENCE} words: {too_long}"


def test_docstrings_begin_with_a_verb_or_a_noun():
    begins = re.compile(r'"""What\b')
    found = [path for path in (ROOT / "src").rglob("*.py") if begins.search(path.read_text())]
    assert not found
