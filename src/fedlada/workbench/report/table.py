"""A table as data: printed, written as Markdown, CSV or LaTeX, and shown on a page."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

NEVER = "∞"
"""The cell of a target that was not reached."""


@dataclass(frozen=True)
class Table:
    """A table of text, to be printed, written and shown on a page."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    """Sentences below it."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"a row of the table {self.title!r} has {len(row)} cells for {len(self.columns)} columns"
                )

    def to_markdown(self) -> str:
        """The table for a document; a full stop follows its title."""
        head, *rows = ([_markdown(cell) for cell in line] for line in (self.columns, *self.rows))
        lines = [head, ["---"] * len(head), *rows]
        stop = "" if self.title.endswith((".", "?", "!")) else "."
        title = f"**{_markdown(self.title)}**{stop}\n\n" if self.title else ""
        notes = "".join(f"\n{_markdown(note)}\n" for note in self.notes)
        return title + "".join("| " + " | ".join(line) + " |\n" for line in lines) + notes

    def _repr_html_(self) -> str:
        """The table in a notebook."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self.rows)
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        title = f"<caption>{escape(self.title)}</caption>" if self.title else ""
        return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"

    def to_csv(self) -> str:
        """The cells for a spreadsheet, without title and notes."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerows([self.columns, *self.rows])
        return out.getvalue()

    def to_latex(self) -> str:
        """The table for a paper (needs the package booktabs); every text is escaped."""
        alignment = "".join("r" if self.is_numeric(number) else "l" for number in range(len(self.columns)))
        lines = [r"\begin{table}", r"  \centering"]
        if self.title:
            lines.append(rf"  \caption{{{_latex(self.title)}}}")
        lines += [rf"  \begin{{tabular}}{{{alignment}}}", r"    \toprule", _latex_row(self.columns), r"    \midrule"]
        lines += [_latex_row(row) for row in self.rows]
        lines += [r"    \bottomrule", r"  \end{tabular}"]
        lines += [rf"  \par\smallskip\footnotesize {_latex(note)}" for note in self.notes]
        return "\n".join([*lines, r"\end{table}", ""])

    def is_numeric(self, column: int) -> bool:
        """Whether a column holds numbers, so that it is set to the right."""
        return are_numbers(row[column] for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """The table as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Table:
        """The stored table; refuses anything else."""
        try:
            columns, notes = _texts(values["columns"]), _texts(values.get("notes", ()))
            return cls(as_text(values["title"]), columns, tuple(_texts(row) for row in values["rows"]), notes)
        except (KeyError, TypeError, AttributeError):
            raise ValueError("a stored table needs a title, columns and rows of text") from None


def are_numbers(cells: Iterable[str]) -> bool:
    """Whether cells begin like numbers; empty ones may stand among them."""
    return all(cell[:1] in "0123456789-−+∞" for cell in cells)


def spread(values: Sequence[float], form: str) -> str:
    """Mean and, for more than one value, standard deviation; empty without values."""
    if not values:
        return ""
    deviation = f" ± {statistics.stdev(values):{form}}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):{form}}{deviation}"


def as_text(value: Any) -> str:
    """A text as a file has it, or an error."""
    if not isinstance(value, str):
        raise TypeError
    return value


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, (list, tuple)):
        raise TypeError
    return tuple(as_text(value) for value in values)


def _markdown(text: str) -> str:
    """Text that Markdown takes for text: no cell ends early, nothing becomes HTML."""
    escaped = "".join("\\" + letter if letter in "\\|*`[" else letter for letter in text)
    return " ".join(escaped.replace("&", "&amp;").replace("<", "&lt;").split())


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "∞": r"$\infty$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": r"$-$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "→": r"$\to$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "η": r"$\eta$",
    "μ": r"$\mu$",
    "τ": r"$\tau$",
    "ε": r"$\varepsilon$",
    **{letter: "\\" + letter for letter in "&%$#_{}"},
}


def _latex(text: str) -> str:
    return " ".join("".join(_LATEX.get(letter, letter) for letter in text).split())


def _latex_row(cells: Iterable[str]) -> str:
    return "    " + " & ".join(_latex(cell) for cell in cells) + r" \\"
