"""One self-contained HTML page for one run, a comparison or a reproduction."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedlada.plots.chart import Chart
from fedlada.runs.files import write_atomic
from fedlada.workbench.report.payload import rows_per_run, run_payload, share_labels
from fedlada.workbench.report.records import RunRecord
from fedlada.workbench.report.table import Table

__all__ = ["RunRecord", "render", "shared_payload", "write_page"]

SCRIPTS = ("elements.js", "statistics.js", "plot.js", "clients.js", "sections.js", "page.js")


def write_page(
    path: Path,
    *,
    title: str,
    runs: Sequence[RunRecord],
    tables: Sequence[Table] = (),
    charts: Sequence[Chart] = (),
    notes: Sequence[str] = (),
    command: str = "",
) -> None:
    """Write the page; nothing on it is fetched from anywhere."""
    room = rows_per_run(len(runs))
    shown = [run_payload(run, room) for run in runs]
    data = {**shared_payload(title, tables, charts, notes, command), "partitions": share_labels(shown), "runs": shown}
    # A file name need not be valid text.
    content = render(title, data).encode("utf-8", errors="replace")
    write_atomic(path, lambda beside: beside.write_bytes(content))


def shared_payload(
    title: str, tables: Sequence[Table], charts: Sequence[Chart], notes: Sequence[str], command: str
) -> dict[str, Any]:
    """The content of a page besides its runs."""
    return {
        "title": title,
        "tables": [
            {**table.to_json(), "numeric": [table.is_numeric(number) for number in range(len(table.columns))]}
            for table in tables
        ],
        "charts": [chart.to_json() for chart in charts],
        "notes": list(notes),
        "command": command,
    }


def render(title: str, data: dict[str, Any], *, live: bool = False) -> str:
    """The whole page as text; a live page requests data from its server, others request nothing."""
    assets = files("fedlada.workbench.report") / "assets"
    script = '"use strict";\n' + "".join((assets / name).read_text(encoding="utf-8") for name in SCRIPTS)
    script = f"(() => {{\n{script}}})();\n"
    style = (assets / "page.css").read_text(encoding="utf-8")
    parts = {
        "title": html.escape(title),
        "policy": content_policy(script, style, live=live),
        "style": style,
        "data": script_json(data),
        "script": script,
    }
    template = (assets / "page.html").read_text(encoding="utf-8")
    # One pass: text that looks like a placeholder is not filled again.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], template)


def content_policy(script: str, style: str, *, live: bool) -> str:
    """A browser runs this script and this style and nothing else, whatever a run is called."""
    asked = "self" if live else "none"
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        f"connect-src '{asked}'; base-uri 'none'; form-action 'none'"
    )


def script_json(data: Any) -> str:
    """JSON that can stand inside a script element: nothing in it can end the element or begin a comment."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
