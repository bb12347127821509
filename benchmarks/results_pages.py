"""The tables and pictures of the pages on results, made of the archives in `benchmarks/results`.

    python benchmarks/results_pages.py            write every marked region and every picture
    python benchmarks/results_pages.py --check    say what differs; the exit code is 1 then

A page has a table between `<!-- made: NAME -->` and `<!-- end -->`. A picture has the digest of its data in its last
line, so that the check need not draw it. No GPU and no data set are needed.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import finals
import readings
import result_tables
import scoreboard
import search
from many_runs import Kept
from result_pictures import digest_in, draw, every
from server_table import server_table
from simulator_table import seconds_table, simulator_table

from fedlada.workbench.report.table import Table

DOCS = Path(__file__).parents[1] / "docs"
PAGES = (DOCS / "results.md", *sorted((DOCS / "results").glob("*.md")))
PICTURES = DOCS / "images" / "results"
OTHERS: tuple[tuple[Kept, Callable[[], str]], ...] = (
    *((kept, partial(search.tables, kept.archive, dataset)) for dataset, kept in search.KEPT.items()),
    *((kept, partial(finals.tables, kept.archive, dataset)) for dataset, kept in finals.KEPT.items()),
    (readings.KEPT, partial(readings.tables, readings.KEPT.archive)),
)
"""Pages of scripts that also make runs."""
REGION = re.compile(r"(<!-- made: ([\w.-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

TABLES: dict[str, Callable[[], Table]] = {
    "summary": result_tables.summary,
    "cifar10-paper": partial(scoreboard.told_of, "cifar10"),
    "cifar100-paper": partial(scoreboard.told_of, "cifar100"),
    "tinyimagenet-paper": partial(scoreboard.told_of, "tinyimagenet"),
    "cifar10-values": partial(result_tables.earlier_values, "cifar10"),
    "cifar10-earlier": partial(result_tables.earlier_table, "cifar10", (300, 600)),
    "cifar100-values": partial(result_tables.earlier_values, "cifar100"),
    "cifar100-earlier": partial(result_tables.earlier_table, "cifar100", (300, 600)),
    "tinyimagenet-values": partial(result_tables.earlier_values, "tinyimagenet"),
    "tinyimagenet-earlier": partial(result_tables.earlier_table, "tinyimagenet", (300, 400)),
    "fashion": result_tables.fashion,
    "counts": scoreboard.counts,
    **{name: partial(scoreboard.table_of, name) for name in scoreboard.EVERY},
    "figures": scoreboard.figures,
    "strengths": result_tables.strengths,
    "coins": result_tables.coins,
    "one-alone": result_tables.one_alone,
    "varied": result_tables.varied,
    "placement": result_tables.placement,
    "bytes-finals": result_tables.final_bytes,
    "bytes-cifar10": partial(result_tables.coded, "cifar10"),
    "bytes-cifar100": partial(result_tables.coded, "cifar100"),
    "bytes-tinyimagenet": partial(result_tables.coded, "tinyimagenet"),
    "codes-cifar10": partial(result_tables.quantized, "cifar10", "final", (0.70, 0.75)),
    "codes-fashion": partial(result_tables.quantized, "fashion-mnist", "final", (0.85, 0.87)),
    "codes-tried": partial(result_tables.quantized, "fashion-mnist", "codes", (0.85,)),
    "effort": result_tables.effort,
    "authors": result_tables.authors,
    "simulator-0.6": partial(simulator_table, 0.6),
    "simulator-0.1": partial(simulator_table, 0.1),
    "simulator-seconds": seconds_table,
    "server-cifar10": partial(server_table, "cifar10"),
    "server-cifar100": partial(server_table, "cifar100"),
    "pools": result_tables.pools,
    "precisions": result_tables.precisions,
    "repeated": result_tables.repeated,
}


def filled(text: str) -> str:
    """The page with each of its regions as the archives have it."""
    return REGION.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]().to_markdown()}\n{found[4]}", text)


def differing_tables() -> list[str]:
    """Pages whose tables are not what the archives give."""
    found = [f"{page.relative_to(DOCS)}: a table differs" for page in PAGES if filled(text := _read(page)) != text]
    unused = TABLES.keys() - {region[1] for region in REGION.findall("".join(map(_read, PAGES)))}
    return found + [f"the table {name} is on no page" for name in sorted(unused)]


def differing_others() -> list[str]:
    """Pages of the other scripts whose tables are not what the archives give."""
    return [f"{kept.page.relative_to(DOCS)} differs" for kept, tables in OTHERS if not kept.holds(tables())]


def differing_pictures() -> list[str]:
    """Pictures that were drawn from other data than the archives', or that no page shows."""
    pictures = {picture.name: picture.digest for picture in every()}
    drawn = {path.stem: digest_in(path) for path in PICTURES.glob("*.svg")}
    found = [f"images/results/{name}.svg differs" for name in pictures if drawn.get(name) != pictures[name]]
    found += [f"images/results/{name}.svg belongs to nothing" for name in sorted(drawn.keys() - pictures.keys())]
    shown = "".join(map(_read, PAGES))
    return found + [f"{name}.svg is on no page" for name in pictures if f"images/results/{name}.svg" not in shown]


def write() -> None:
    for kept, tables in OTHERS:
        kept.write(tables())
    for page in PAGES:
        page.write_text(filled(_read(page)), encoding="utf-8")
    for picture in every():
        path = PICTURES / f"{picture.name}.svg"
        if digest_in(path) != picture.digest:
            draw(picture, path)
            print(f"drew {path.name}")


def _read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    if not parser.parse_args().check:
        write()
    found = differing_tables() + differing_others() + differing_pictures()
    print("\n".join(found) or "pages and pictures are what the archives give")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
