"""Tunes methods on one of the paper's data sets before the protocol, then reproduces its tables with the best of each.

    python benchmarks/tune_paper.py tune  --dataset cifar100 --data-dir data --out runs/tuned --jobs 4 [--budget 25]
    python benchmarks/tune_paper.py final --dataset cifar100 --data-dir data --out runs/tuned --jobs 4 -- T6 --seeds 0,1

Twelve configurations a method (or `--configurations`), the printed one and the best known before among them (on
CIFAR-100 of the first map in `docs/results/commands.md`, elsewhere of CIFAR-100), the others drawn from a grid; a tenth
of the training data held out, seed 0. All go to round 100, the best two fifths to round 300. The score is the mean
validation accuracy over rounds 50, 100, ..., 300. FedLADA and FedCM have a second go around the best of the first, that
takes part again: on CIFAR-100 eight more configurations each, chosen by hand, elsewhere six, its neighbours. So this is
no equal search; `benchmarks/search.py` is. With `--by-hand` a few of each, as many of every method, all go to the end,
without a stage before it that would prefer an early rise.

A search that was stopped goes on, from checkpoints that are at most three minutes old. The test set is looked at in
`final` alone, which takes what `tune` found in the same folder.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tune_paper_values import BY_HAND, ELSEWHERE, GRIDS, HALVES, MAPPED, NEIGHBOURS, SECOND, Values

from fedlada.methods.recipes import hyper_parameters
from fedlada.paper import choices
from fedlada.paper.published import DATASETS
from fedlada.runs.files import write_json
from fedlada.runs.folder import discard_states
from fedlada.workbench.campaign.archive import adopt_archive
from fedlada.workbench.campaign.identity import data_facts
from fedlada.workbench.campaign.request import Request
from fedlada.workbench.campaign.run import Budget, Work, carry_out
from fedlada.workbench.campaign.store import RunStore
from fedlada.workbench.campaign.sweep import Candidate, Rung, Scored, Selection, sweep
from fedlada.workbench.cli import main as fedlada
from fedlada.workbench.experiment import Experiment
from fedlada.workbench.report.table import Table
from fedlada.workbench.words import in_words

NUM_CONFIGURATIONS, ROUNDS, EVAL_EVERY = 12, 300, 50
SELECTION = Selection("validation_accuracy", "mean")


def configurations(method: str, dataset: str, number: int = NUM_CONFIGURATIONS) -> list[Values]:
    """The known ones, and as many others of the grid as are missing, the same ones every time."""
    grid = GRIDS[method] if dataset == "cifar100" else ELSEWHERE.get(method, GRIDS[method])
    every: list[Values] = []
    for values in itertools.product(*grid.values()):
        every.append({})
        for name, value in zip(grid, values, strict=True):  # several names together have a tuple of values
            every[-1].update({name: value} if isinstance(name, str) else zip(name, value, strict=True))
    known: list[Values] = []
    for before in (choices.values_of("paper", dataset, dataset, method), _known_before(method, dataset)):
        full = {"lr": before.lr, **hyper_parameters(method), **before.hyper}
        restricted = {name: full[name] for name in every[0]}
        known += [restricted] if restricted not in known else []
    others = [values for values in every if values not in known]
    return known + random.Random(method).sample(others, number - len(known))


def _known_before(method: str, dataset: str) -> choices.Values:
    """The best of the first map on CIFAR-100; elsewhere the best on CIFAR-100."""
    if dataset != "cifar100":
        return choices.values_of("earlier", "cifar100", "cifar100", method)
    if method not in MAPPED:
        return choices.values_of("paper", dataset, dataset, method)
    hyper = {name: value for name, value in MAPPED[method].items() if name != "lr"}
    return choices.Values(MAPPED[method]["lr"], hyper=hyper)


def candidates(method: str, configurations: Sequence[Values], given: argparse.Namespace) -> list[Candidate]:
    """A method's configurations as runs on held-out data; what they do not say is as printed, whatever is used now."""
    printed = {**hyper_parameters(method), **choices.values_of("paper", given.dataset, given.dataset, method).hyper}
    found = []
    for values in configurations:
        experiment = Experiment(
            method=method,
            dataset=given.dataset,
            data_dir=given.data_dir,
            device=given.device,
            refill=True,
            validation=0.1,
            lr=values["lr"],
            hyper={**printed, **{name: value for name, value in values.items() if name != "lr"}},
            rounds=given.rounds,
            eval_every=given.eval_every,
            checkpoint_every=10**6,
            checkpoint_minutes=3.0,
        )
        found.append(Candidate(values, (experiment,)))
    return found


def take_over(given: argparse.Namespace, store: RunStore, every: Sequence[Candidate]) -> None:
    """The runs of the archive that these configurations need."""
    if given.merge is not None:
        adopt_archive(store, given.merge, requests_of(every, given))


def requests_of(every: Sequence[Candidate], given: argparse.Namespace) -> list[Request]:
    return [run for one in every for run in one.requests(given.rounds)]


def search(method: str, values: Sequence[Values], given: argparse.Namespace, work: Work) -> list[Scored]:
    """Successive halving in one go, or in two halves of the configurations; the best first."""
    every, store = candidates(method, values, given), RunStore(given.out / "runs")
    take_over(given, store, every)
    size = len(every) // 2 if method in HALVES else len(every)
    scored: list[Scored] = []
    for part in (every[:size], every[size:]):
        if not part:
            continue
        third = given.eval_every * round(given.rounds / 3 / given.eval_every)
        steps = [Rung(third, math.ceil(0.4 * len(part))), Rung(given.rounds, len(part))]
        own = sweep(part, steps, SELECTION, lambda requests: carry_out(requests, store, work))
        if all(outcome.is_settled for one in own for outcome in one.outcomes):
            for one in own:
                discard_states(one.outcomes[0].folder)
        scored += own
    return best_first(scored)


def try_by_hand(methods: Sequence[str], given: argparse.Namespace, work: Work) -> dict[str, list[Scored]]:
    """What was chosen by hand, of all methods at once: method by method a GPU would wait for the last run of each."""
    by_method = {name: candidates(name, BY_HAND[given.dataset, name], given) for name in methods}
    everything, store = [one for own in by_method.values() for one in own], RunStore(given.out / "runs")
    take_over(given, store, everything)
    # None of them goes further than this, so none needs its checkpoints any more.
    outcomes = carry_out(requests_of(everything, given), store, replace(work, discard=True))
    for why in sorted({outcome.why for outcome in outcomes if outcome.why and not outcome.is_settled}):
        print(f"failed: {why}", flush=True)
    last, shown = [Rung(given.rounds, len(everything))], replace(work, only_show=True)
    return {
        name: best_first(sweep(own, last, SELECTION, lambda requests: carry_out(requests, store, shown)))
        for name, own in by_method.items()
    }


def best_first(scored: Sequence[Scored]) -> list[Scored]:
    return sorted(scored, key=lambda one: (-one.rounds, SELECTION.rank(one.score)))


def tune(method: str, given: argparse.Namespace, work: Work) -> list[Scored]:
    """The search, and the second one where there is one."""
    first = configurations(method, given.dataset, given.configurations)
    scored = search(method, first, given, work)
    if not is_complete(scored, given.rounds):
        return scored
    best = scored[0].candidate.values
    second = SECOND.get((given.dataset, method)) or neighbours(method, best)
    if not (new := [values for values in second if values not in first]):
        return scored
    # The best of the first takes part at the second's first stage alone if it is not among the best there.
    again, *others = sorted(search(method, [best, *new], given, work), key=lambda one: one.candidate.values != best)
    return best_first([max(again, scored[0], key=lambda one: one.rounds), *others, *scored[1:]])


def neighbours(method: str, values: Values) -> list[Values]:
    """The same values but for one, which is larger or smaller."""
    factors = NEIGHBOURS.get(method, {})
    # Rounded, so that a neighbour that is in the grid as well is recognized.
    scaled = [(name, float(f"{values[name] * by:.4g}")) for name, f in factors.items() for by in (f, 1 / f)]
    return [{**values, name: value} for name, value in scaled]


def is_complete(scored: Sequence[Scored], rounds: int) -> bool:
    """Whether every run got as far as it was asked to, and the best went to the end."""
    settled = all(outcome.is_settled for one in scored for outcome in one.outcomes)
    return settled and scored[0].rounds == rounds and scored[0].score.mean is not None


def report(method: str, scored: Sequence[Scored], *, by_hand: bool) -> Table:
    rows = tuple((in_words(one.candidate.values), one.score.text(4, without="-"), str(one.rounds)) for one in scored)
    title = f"{method}{', chosen by hand' if by_hand else ''}: mean validation accuracy"
    return Table(title, ("values", "score", "rounds"), rows, ())


def tune_all(methods: Sequence[str], given: argparse.Namespace) -> None:
    """Searches for each method, shows what was found and remembers the best for `final`."""
    given.out.mkdir(parents=True, exist_ok=True)
    for method in methods:
        best_file(given, method).unlink(missing_ok=True)  # of an earlier search: this one may be stopped
    work = Work(jobs=given.jobs, budget=Budget(given.budget), quiet=True)
    by_hand = try_by_hand(methods, given, work) if given.by_hand else {}
    for method in methods:
        if work.budget.is_spent and not by_hand:
            print("the time is over: the same command goes on", flush=True)
            return
        scored = by_hand.get(method) or tune(method, given, work)
        table = report(method, scored, by_hand=given.by_hand)
        (given.out / f"{method}.md").write_text(table.to_markdown(), encoding="utf-8")
        if is_complete(scored, given.rounds):
            best = scored[0].candidate.values
            print(f"{json.dumps([given.dataset, method, best])}  {scored[0].score.mean:.4f}", flush=True)
            write_json(best_file(given, method), best)
        else:
            print(f"{method}: the search has not ended, the same command goes on", flush=True)


def best_file(given: argparse.Namespace, method: str) -> Path:
    return Path(given.out) / f"{given.dataset}-{method}-best.json"


def read_best(given: argparse.Namespace, method: str) -> Values:
    file = best_file(given, method)
    if not file.is_file():
        raise ValueError(f"the search for {method} has not ended in {given.out}: run `tune` first")
    try:
        best = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        best = None
    if not isinstance(best, dict) or "lr" not in best:
        raise ValueError(f"{file} is damaged: run `tune` again")
    return best


def final(best: Mapping[str, Values], given: argparse.Namespace, asked: Sequence[str]) -> None:
    """`fedlada reproduce` with the best of each method, whatever the library's own presets say."""
    for method, values in best.items():
        print(f"{method}: {in_words(values)}", flush=True)
        hyper = {name: value for name, value in values.items() if name != "lr"}
        choices.OURS[given.dataset, method] = (values["lr"], hyper)
    place = ("--datasets", given.dataset, "--data-dir", given.data_dir, "--device", given.device)
    kept = ("--cache", str(given.out / "runs"), "--discard-checkpoints", "--quiet", "--jobs", str(given.jobs))
    merged = () if given.merge is None else ("--merge", str(given.merge))
    out = (*merged, "--methods", given.methods, "--out", str(given.out / f"final-{asked[0]}"))
    sys.argv = ["fedlada", "reproduce", *asked, "--scale", "full", "--preset", "earlier", *place, *kept, *out]
    fedlada()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("tune", "final"))
    parser.add_argument("--dataset", required=True, choices=DATASETS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--methods", default=",".join(GRIDS))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of the search")
    parser.add_argument("--eval-every", type=int, default=EVAL_EVERY, help="in the search")
    parser.add_argument("--configurations", type=int, default=NUM_CONFIGURATIONS, help="of each method")
    parser.add_argument("--by-hand", action="store_true", help="a few of each, chosen by hand, all to the end")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--merge", type=Path, help="an archive of `fedlada pack`: its runs are not run again")
    parser.add_argument("--budget", type=float, help="minutes, after which all is saved")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    given, asked = parser.parse_args(words[:cut]), words[cut + 1 :]
    methods = given.methods.split(",")
    if unknown := [method for method in methods if method not in GRIDS]:
        parser.error(f"no grid for {unknown[0]}: there are {', '.join(GRIDS)}")
    there = [method for dataset, method in BY_HAND if dataset == given.dataset]
    if given.by_hand and (missing := [method for method in methods if method not in there]):
        named = ", ".join(there) or "none"
        parser.error(f"--by-hand has nothing for {missing[0]} on {given.dataset}: there are {named}")
    if not 2 <= given.configurations <= 24:
        parser.error("--configurations must be from 2 to 24: there are no more in every grid")
    if not 2 <= 2 * given.eval_every <= given.rounds:
        parser.error("--rounds must be at least twice --eval-every, and that at least 1")
    if given.stage == "final" and not asked:
        parser.error("final needs what `fedlada reproduce` is asked for, after --")
    try:
        if given.merge is not None and not given.merge.is_file():
            raise ValueError(f"there is no archive {given.merge}")
        data_facts(candidates(methods[0], [{"lr": 0.1}], given)[0].experiments[0])
        best = {method: read_best(given, method) for method in methods} if given.stage == "final" else {}
    except ValueError as error:
        parser.error(str(error))
    if given.stage == "tune":
        tune_all(methods, given)
    else:
        final(best, given, asked)


if __name__ == "__main__":
    main()
