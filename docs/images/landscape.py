"""The picture of what each setting does alone: `python docs/images/landscape.py SWEEP_FOLDER PICTURE.png`.

The folder is that of `fedlada sweep --each-alone`; its runs can come out of an archive (`--only-show --merge FILE`).
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt

folder, picture = (Path(word) for word in sys.argv[1:])
with (folder / "table.csv").open() as lines:
    rows = list(csv.DictReader(lines))
score = next(name for name in rows[0] if "accuracy" in name or "loss" in name)
axes = [name for name in rows[0] if name not in ("place", "rounds", score)]
if len(axes) < 2:
    raise SystemExit("a sweep of one name alone needs no such picture: its charts show it")
# Of what is varied alone, every other row has the usual value.
usual = {name: Counter(row[name] for row in rows).most_common(1)[0][0] for name in axes}
value_of = {}
unit, factor = (", %", 100) if score.endswith("accuracy") else ("", 1)
for row in rows:
    varied = [name for name in axes if row[name] != usual[name]]
    if row[score][:1].isdigit():  # a run that diverged has no score
        value_of[(varied[0], row[varied[0]]) if varied else ("", "")] = factor * float(row[score].split()[0])

figure, axis = plt.subplots(figsize=(6.4, 0.24 * len(rows) + 0.9), layout="constrained")
labels: list[str] = []
for name in axes:
    own = sorted((key for key in value_of if key[0] == name), key=lambda key: value_of[key])
    for _, value in own:
        gain = value_of[name, value] - value_of["", ""]
        colour = "tab:blue" if gain > 0 else "tab:red"
        axis.barh(len(labels), gain, left=value_of["", ""], color=colour, height=0.6)
        labels.append(f"{name} {value}  (usual: {usual[name]})")
axis.axvline(value_of["", ""], color="black", linewidth=1)
axis.set_yticks(range(len(labels)), labels, fontsize=8)
axis.invert_yaxis()
axis.set_xlabel(f"{score.replace('_', ' ')}{unit} (line: nothing varied)")
figure.savefig(picture, dpi=150)
