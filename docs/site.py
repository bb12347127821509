"""Hooks of the documentation's build: links to files of the repository, and pages that the navigation leaves out.

A page links to a file outside `docs` by its path in the checkout, such as `../benchmarks/results/runs.json`. So links
work in an editor and on a code host. The site gets a copy of every such file under `repository/`.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<=\]\()(\.\./[^)#\s]+)")
log = logging.getLogger("mkdocs.plugins.site")


def on_config(config: Any) -> Any:
    """Name headings as code hosts do, so that one link serves both."""
    config.mdx_configs["toc"]["slugify"] = heading_name
    return config


def heading_name(title: str, separator: str) -> str:
    """The anchor of a heading: lower case, without marks, each space a hyphen."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", separator)


def outside(page: Path, link: str) -> Path | None:
    """The file or folder of the repository that a link of a page means, if it is not in `docs`."""
    target = (page.parent / link).resolve()
    return None if target.is_relative_to(DOCS) or not target.is_relative_to(ROOT) else target


def on_files(files: Files, config: Any) -> Files:
    """Add the linked files to the site, and pages without a place to the navigation."""
    copies = set()
    for page in files.documentation_pages():
        source = DOCS / page.src_uri
        for link in LINK.findall(source.read_text(encoding="utf-8")):
            target = outside(source, link)
            if target and not target.exists():
                log.warning("%s links to %s, which is not in the repository", page.src_uri, link)
            elif target and target.is_file():
                copies.add(target)
    listed = str(config.nav)
    sections = {name: pages for entry in config.nav for name, pages in entry.items()}
    for page in files.documentation_pages():
        if f"'{page.src_uri}'" not in listed:
            place = "Results" if page.src_uri.startswith("results/") else "Reference"
            sections[place].append(page.src_uri)
    for path in sorted(copies):
        place = f"repository/{path.relative_to(ROOT)}"
        # A page of another folder has links of its own: it is shown as it is, not built.
        place = place.removesuffix(".md") + ".txt" if path.suffix == ".md" else place
        files.append(File.generated(config, place, content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links to files of the repository point at their copies; those to folders become plain text."""
    source = DOCS / page.file.src_uri
    up = "../" * page.file.src_uri.count("/")

    def place(match: re.Match[str]) -> str:
        target = outside(source, match["link"])
        if target is None:
            return match[0]
        if target.is_dir():
            return f"{match['text']} (`{target.relative_to(ROOT)}`)"
        path = f"{up}repository/{target.relative_to(ROOT)}"
        path = path.removesuffix(".md") + ".txt" if target.suffix == ".md" else path
        return f"[{match['text']}]({path})"

    return re.sub(r"\[(?P<text>[^\]]*)\]\((?P<link>\.\./[^)#\s]+)(#[^)\s]*)?\)", place, markdown)
