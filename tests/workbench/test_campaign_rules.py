"""How far a run goes, what makes two runs the same, how seeds become a cell, who is cut in a sweep."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedlada.data import as_samples
from fedlada.data.augment import Augmentation
from fedlada.data.images import Images
from fedlada.data.source import Source
from fedlada.engines.stacked.choice import choose_network
from fedlada.engines.stacked.networks import LayeredNetwork
from fedlada.methods.local import AMSGrad
from fedlada.methods.recipes import hyper_parameters
from fedlada.models import MODELS, TEXT_MODELS
from fedlada.models.flat import FlatModel
from fedlada.training.history import History
from fedlada.training.suggested import TUNED
from fedlada.training.target import declared
from fedlada.workbench.campaign import identity
from fedlada.workbench.campaign.curves import outcome_curves
from fedlada.workbench.campaign.identity import ADDED_LATER, DECIDES_NOTHING, digest, whole_length
from fedlada.workbench.campaign.over_seeds import OverSeeds, best, best_round, final, over_seeds, rounds_to
from fedlada.workbench.campaign.request import DIVERGED, DONE, UNFINISHED, Goal, Milestone, Outcome, Request
from fedlada.workbench.campaign.run import Shard
from fedlada.workbench.campaign.sweep import Candidate, Rung, Scored, Selection, rungs
from fedlada.workbench.cli.sweep import axes_of, candidates_of, sweep_command
from fedlada.workbench.experiment import Experiment
from fedlada.workbench.progress import Course, Estimate
from fedlada.workbench.report.landscape import landscape, line_name
from run_records import history

TINY = Experiment(model="mlp", num_clients=20, cohort_size=2, batch_size=40, local_epochs=1, rounds=4, device="cpu")


def outcome(status, *accuracies):
    return Outcome(Request("run", "group", TINY, Goal(2)), history(*accuracies), status, Path("nowhere"))


def test_a_milestone_is_the_first_evaluation_at_or_above():
    run = history(0.1, None, 0.5, 0.4, 0.5)
    assert Milestone("test_accuracy", 0.5).round_in(run) == 3
    assert Milestone("test_accuracy", 0.51).round_in(run) is None
    # Means of two evaluations: 0.3 in round 3, 0.45 in rounds 4 and 5.
    assert Milestone("test_accuracy", 0.45, smooth=2).round_in(run) == 4
    assert Milestone("test_accuracy", 0.1, smooth=5).round_in(run) is None


def test_a_milestone_of_a_loss_is_reached_from_above():
    run = History([{"round": round, "test_loss": loss} for round, loss in enumerate((0.9, 0.6, 0.4), start=1)])
    assert Milestone("test_loss", 0.6).round_in(run) == 2
    assert Milestone("test_loss", 0.5, smooth=2).round_in(run) == 3
    assert Milestone("test_loss", 0.3).round_in(run) is None


def test_a_milestone_asks_once_which_way_is_better():
    """It is looked for after every round, in all rounds so far."""

    def questions(run):
        before = sum(declared.cache_info()[:2])
        assert Milestone("test_accuracy", 0.5).round_in(run) is None
        return sum(declared.cache_info()[:2]) - before

    assert questions(history(*[0.1] * 50)) == questions(history(0.1))


def test_a_goal_ends_with_its_last_milestone_or_its_rounds():
    run = history(0.1, 0.3, 0.5, 0.6)
    both = (Milestone("test_accuracy", 0.3), Milestone("test_accuracy", 0.5))
    assert Goal(4, both).end_in(run) == 3
    assert Goal(2, both).end_in(run) == 2  # what is reached later is not within these rounds
    assert Goal(9, both).end_in(run) == 3
    assert Goal(9, (Milestone("test_accuracy", 0.9),)).end_in(run) is None
    assert Goal(4).end_in(run) == 4
    assert Goal(5).end_in(run) is None


def test_the_digest_knows_every_field_that_decides():
    same, other = digest(TINY), {}
    free = {
        "rounds": 9,
        "target": 0.5,
        "checkpoint_every": 3,
        "checkpoint_minutes": 1.0,
        "keep": 1,
        "tensorboard": True,
    }
    for name, value in free.items():
        assert digest(replace(TINY, **{name: value})) == same, name
    assert digest(replace(TINY, target=0.5, stop_at_target=True)) == same
    decides = {
        "method": "fedavg",
        "hyper": {"alpha": 0.7},
        "validation": 0.1,
        "num_clients": 21,
        "cohort_size": 3,
        "cohorts": "bernoulli",
        "partition": "iid",
        "concentration": 0.7,
        "fine_concentration": 3.0,
        "refill": True,
        "size_spread": 0.5,
        "batch_size": 20,
        "local_epochs": 2,
        "local_steps": 3,
        "lr": 0.5,
        "lr_decay": 0.9,
        "warmup": 4,
        "threads": 2,
        "eval_batch_size": 7,
        "debias": True,
        "weights": "examples",
        "dropout": 0.1,
        "stragglers": 0.1,
        "eval_every": 2,
        "eval_train_every": 2,
        "seed": 1,
        "engine": "stacked",
        "precision": "float32",
        "ordered": True,
        "messages": "lean",
        "combiner": "median",
        "attack": "sign-flip:0.3",
        "dtype": "float64",
        "model": "cnn-gn",
        "classes_per_client": 3,
        "client_test": 0.2,
    }
    for name, value in decides.items():
        other[name] = digest(replace(TINY, **{name: value}))
    assert len({same, *other.values()}) == 1 + len(other)
    private = replace(TINY, combiner="private:1", noise_multiplier=5.0)
    noise = {"noise_multiplier": 6.0, "target_epsilon": 50.0, "target_delta": 1e-5, "noise_cohort": 9}
    several = [digest(replace(private, **{name: value})) for name, value in noise.items()]
    several.append(digest(replace(private, noise_cohort=9, noise_population=100)))
    assert len({digest(private), *several}) == 1 + len(several)
    tested = replace(TINY, client_test=0.2)
    personal = {"personal_steps": 2, "personal": "0.*"}
    several = [digest(replace(tested, **{name: value})) for name, value in personal.items()]
    several.append(digest(replace(tested, personal_steps=2, personal_every=3)))
    assert len({digest(tested), *several}) == 1 + len(several)
    assert {name: getattr(Experiment(), name) for name in ADDED_LATER} == ADDED_LATER
    # Of a field added later somebody must say on which side it is.
    data = {"dataset", "data_dir", "image_size", "crop_size", "standardize", "augment", "device"}
    elsewhere = {*noise, "noise_population", *personal, "personal_every", *data}
    assert {one.name for one in fields(Experiment)} <= set(decides) | DECIDES_NOTHING | elsewhere


def test_the_digest_knows_the_data_and_not_where_they_lie(tmp_path):
    x, y = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32), np.arange(40) % 2
    digests = []
    for name, shift in (("a", 0), ("b", 0), ("c", 1)):
        data = {"x_train": x + shift, "y_train": y, "x_test": x, "y_test": y}
        np.savez(tmp_path / f"{name}.npz", **data)
        digests.append(digest(replace(TINY, dataset="npz", data_dir=str(tmp_path / f"{name}.npz"))))
    assert digests[0] == digests[1] != digests[2]


def test_the_digest_knows_how_images_are_standardized(monkeypatch):
    """Runs older than the setting were standardized by channels, and keep their names."""
    facts = identity.data_facts(TINY)
    monkeypatch.setattr(identity, "data_facts", lambda _: facts)
    channels, image = (replace(TINY, dataset="cifar10", standardize=one) for one in ("channels", "image"))
    assert digest(channels) != digest(image)
    monkeypatch.setattr(identity, "ADDED_LATER", {})
    assert identity._digest.__wrapped__(json.dumps(channels.to_json())) != digest(channels)


def test_the_digest_knows_what_a_measurement_means(monkeypatch):
    before = digest(TINY)
    monkeypatch.setattr(identity, "MEASURES", identity.MEASURES + 1)
    assert identity._digest.__wrapped__(json.dumps(TINY.to_json())) != before


def test_on_a_gpu_the_digest_knows_lengths_at_which_kernels_change(monkeypatch):
    """For every model the compiled update, for those that may go through vmap the compiled gradient."""
    monkeypatch.setattr(identity, "WORTH_COMPILING", 10)
    monkeypatch.setattr(identity, "WORTH_COMPILING_GRADIENTS", 100)

    def kinds(model):
        runs = [
            replace(TINY, model=model, rounds=rounds, local_epochs=None, local_steps=1, device="cuda")
            for rounds in (5, 50, 60, 500, 600)
        ]
        return [identity._digest.__wrapped__(json.dumps(one.to_json())) for one in runs]

    short, long, also_long, very_long, also_very_long = kinds("mlp")
    assert short != long == also_long == very_long == also_very_long
    own = replace(TINY, rounds=500, local_epochs=None, local_steps=1, device="cuda", engine="sequential")
    alone = identity._digest.__wrapped__(json.dumps(own.to_json()))
    monkeypatch.setattr(identity, "_is_layered", lambda _: False)
    short, long, also_long, very_long, also_very_long = kinds("mlp")
    assert short != long == also_long != very_long == also_very_long != short
    assert identity._digest.__wrapped__(json.dumps(own.to_json())) == alone  # nothing is compiled there


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if name not in TEXT_MODELS])
def test_models_for_images_are_stacked_layer_by_layer(name):
    assert identity._is_layered(replace(TINY, model=name))
    cpu = torch.device("cpu")
    x = np.random.default_rng(0).standard_normal((12, 3, 32, 32)).astype(np.float32)
    samples = as_samples((x, np.arange(12) % 3), cpu, torch.float32)
    flat = FlatModel(MODELS[name](3, input_shape=(3, 32, 32)), cpu, torch.float32)
    network, _ = choose_network(flat, samples, F.cross_entropy, torch.float32)
    assert isinstance(network, LayeredNetwork)


def test_models_for_text_and_own_ones_may_go_through_vmap():
    for name in TEXT_MODELS:
        assert not identity._is_layered(Experiment(model=name, dataset="docstrings"))
    assert not identity._is_layered(replace(TINY, model="package.module:make"))


def test_a_run_ends_where_everything_is_evaluated_anyway():
    assert whole_length(replace(TINY, rounds=10, eval_every=4, eval_train_every=6)) == 12
    with pytest.raises(ValueError, match="rounds must be a multiple of eval_every, which is 4"):
        Request("run", "group", replace(TINY, rounds=10, eval_every=4), Goal(10))


def test_no_seed_is_hidden_in_a_cell():
    assert OverSeeds((2.0, 4.0), 2).text() == "3.0 ± 1.4"
    assert OverSeeds((2.0,), 1).text() == "2.0"
    assert OverSeeds((), 2).text() == "∞"
    assert OverSeeds((2.0, 4.0), 3).text() == "∞ (2 of 3: 3.0 ± 1.4)"
    assert OverSeeds((2.0,), 3, num_diverged=1, num_unfinished=1).text() == "… (1 of 3: 2.0; 1 diverged; 1 unfinished)"
    assert OverSeeds((), 2, num_diverged=2).text() == "diverged"
    assert OverSeeds((80.0,), 2, num_diverged=1).text(without="-") == "- (1 of 2: 80.0; 1 diverged)"
    assert OverSeeds((), 2, num_unfinished=2).text() == "unfinished"
    assert [OverSeeds((2.0,), 2).mean, OverSeeds((2.0, 4.0), 2).mean] == [None, 3.0]


def test_what_is_not_done_has_no_end_but_what_it_reached():
    done, cut, lost = outcome(DONE, 0.5, 0.4), outcome(UNFINISHED, 0.6), outcome(DIVERGED, 0.2)
    reached = over_seeds([done, cut, lost], rounds_to(Milestone("test_accuracy", 0.5)))
    assert (reached.values, reached.num_diverged, reached.num_unfinished) == ((1, 1), 1, 0)
    last = over_seeds([done, cut, lost], final("test_accuracy"))
    assert (last.values, last.num_diverged, last.num_unfinished) == ((0.4,), 1, 1)
    assert over_seeds([done], best("test_accuracy")).values == (0.5,)
    assert over_seeds([done], best_round("test_accuracy")).values == (1,)
    assert over_seeds([done], final("test_accuracy", smooth=2)).values == (0.45,)


def test_shards_are_equal_disjoint_and_whole():
    names = [f"{number:02x}" for number in (7, 3, 9, 1, 5, 3)]
    shares = [Shard(number, 2).share(names) for number in (1, 2)]
    assert shares[0] | shares[1] == set(names)
    assert shares[0] & shares[1] == set()
    assert sorted(map(len, shares)) == [2, 3]
    for wrong in ("3/2", "0/2", "2", "a/b", "1/0"):
        with pytest.raises(ValueError, match="shard must be"):
            Shard.parse(wrong)


def test_halving_gives_more_rounds_to_fewer():
    assert rungs(9, 27, None, 1) == [Rung(27, 9)]
    assert rungs(9, 27, 3, 1) == [Rung(3, 3), Rung(9, 1), Rung(27, 1)]
    assert rungs(4, 27, 3, 1) == [Rung(3, 2), Rung(9, 1), Rung(27, 1)]
    assert rungs(9, 6, 3, 2) == [Rung(2, 3), Rung(6, 3)]  # no rung is shorter than an evaluation
    assert rungs(1, 27, 3, 1) == [Rung(27, 1)]
    assert rungs(3, 6, 3, 4) == [Rung(6, 3)]  # the training data are evaluated in round 4 alone


def test_selection_never_looks_at_the_test_set():
    with pytest.raises(ValueError, match="must not be chosen on the test set"):
        Selection("test_accuracy")
    loss, accuracy = Selection("validation_loss"), Selection()
    low, high = OverSeeds((1.0,), 1), OverSeeds((2.0,), 1)
    assert loss.rank(low) < loss.rank(high) < loss.rank(OverSeeds((), 1))
    assert accuracy.rank(high) < accuracy.rank(low) < accuracy.rank(OverSeeds((2.0,), 2))


def test_a_score_is_that_of_evaluated_rounds():
    """What archives have no more must not decide; where nothing was evaluated, every round counts."""
    rows = [{"round": number, "train_loss": loss} for number, loss in enumerate((1.0, 8.0, 3.0, 5.0), start=1)]
    for evaluated, scores in (((), (5.0, 1.0, 4.25)), ((2, 4), (5.0, 5.0, 6.5))):
        own = History([{**row, "validation_loss": 0.5 if row["round"] in evaluated else None} for row in rows])
        run = Outcome(Request("run", "group", TINY, Goal(4)), own, DONE, Path("nowhere"))
        assert tuple(Selection("train_loss", by).of(run) for by in ("last", "best", "mean")) == scores


def test_a_validation_split_is_held_out_of_the_training_data():
    x = np.arange(20, dtype=np.uint8)[:, None, None, None] * np.ones((1, 1, 8, 8), dtype=np.uint8)
    images = Images(x, np.arange(20), (0.5,), (0.5,), Augmentation(padding=1, crop="always"))
    source = Source(images, images, 20, (1, 8, 8), client=np.arange(20) % 4)
    split = source.holding_out(0.25)
    kept, held = split.train.y.tolist(), split.validation.y.tolist()
    assert sorted(kept + held) == list(range(20))
    assert len(held) == 5
    assert split.train.x[:, 0, 0, 0].tolist() == kept
    assert split.client.tolist() == [label % 4 for label in kept]
    assert split.train.augmentation is not None
    assert split.validation.augmentation is None
    assert split.test is images
    assert source.holding_out(0.25).validation.y.tolist() == held
    with pytest.raises(ValueError, match="leaves no training data"):
        source.holding_out(0.99)
    with pytest.raises(ValueError, match=r"validation must be in \[0, 1\), got 1"):
        replace(TINY, validation=1.0)


def test_a_seed_that_was_not_measured_is_not_one_that_never_arrived():
    milestone = Milestone("test_accuracy", 0.9)
    measured, other = outcome(DONE, 0.95), replace(outcome(DONE, 0.5), history=History([{"round": 1}]))
    assert over_seeds([measured, other], rounds_to(milestone)).text() == "∞ (1 of 2: 1.0; 1 not measured)"
    assert over_seeds([other], rounds_to(milestone)).text() == "-"
    assert over_seeds([replace(other, status=UNFINISHED)], rounds_to(milestone)).text() == "unfinished"


def candidates(*arguments):
    """What a sweep would try: its values, and what the runs really have of them."""
    flags = dict(sweep_command.make_context("sweep", [*arguments, "--each-alone"]).params)
    del flags["out"]
    found = candidates_of(axes_of(flags.pop("grid")), flags.pop("seeds"), flags)
    runs = [one.experiments[0].resolved() for one in found]
    return [tuple(one.values.values()) for one in found], [
        (r.hyper["clip_norm"], r.local_epochs, r.local_steps) for r in runs
    ]


def test_what_is_varied_alone_stands_beside_what_was_given(tmp_path):
    data = ["--dataset", "tinyimagenet", "--data-dir", "nowhere", "--alpha", "0.05"]  # where clipping is usual
    shown, run = candidates(*data, "--clip-norm", "none", "--set", "clip_norm=1,5", "--set", "alpha=0.1")
    assert shown == [("none", 0.05), (1.0, 0.05), (5.0, 0.05), ("none", 0.1)]
    assert [clip for clip, *_ in run] == [None, 1.0, 5.0, None]
    config = tmp_path / "c.json"
    config.write_text(json.dumps({"method": "fedlada", "dataset": "digits", "local_steps": 3}))
    shown, run = candidates("--config", str(config), "--set", "local_epochs=1,2", "--set", "lr=0.3")
    assert [(epochs if steps is None else steps) for _, epochs, steps in run] == [3, 1, 2, 3]
    assert [values[0] for values in shown] == ["none", 1, 2, "none"]
    shown, run = candidates("--set", "local_epochs=1", "--set", "local_steps=7")
    assert [steps for *_, steps in run] == [None, None, 7]


def test_a_sample_is_of_combinations():
    with pytest.raises(ValueError, match="--sample draws from combinations"):
        candidates("--set", "alpha=0.1,0.2", "--sample", "1")


def scored(mean, **values):
    return Scored(Candidate(values, ()), 5, [], OverSeeds((mean,), 1))


def test_what_was_varied_alone_is_drawn_alone():
    usual = {"lr": 0.1, "alpha": 0.3, "v_start": "zero"}
    tried = [({}, 0.5), ({"lr": 1.0}, 0.6), ({"lr": 2.0}, 0.2), ({"alpha": 0.9}, 0.4), ({"v_start": "server"}, 0.7)]
    some = [scored(mean, **{**usual, **varied}) for varied, mean in tried]
    names = ["nothing varied", "lr 1", "lr 2", "alpha 0.9", "v_start server"]
    assert [line_name(one, some, usual) for one in some] == names
    by_lr, by_alpha = landscape(some, Selection(), usual)[1:]
    assert (by_lr.series[0].x, by_lr.series[0].y) == ((0.1, 1.0, 2.0), (0.5, 0.6, 0.2))  # not 0.7, which is v_start's
    assert (by_alpha.series[0].x, by_alpha.series[0].y) == ((0.3, 0.9), (0.5, 0.4))


def test_what_switches_another_off_is_drawn_too():
    usual = {"local_epochs": 5, "local_steps": "none"}
    some = [scored(0.5, **usual), scored(0.6, local_epochs=1, local_steps="none")]
    some += [scored(0.1 * steps, local_epochs="none", local_steps=steps) for steps in (1, 2)]
    by_epochs, by_steps = landscape(some, Selection(), usual)[1:]
    assert (by_epochs.series[0].x, by_steps.series[0].x) == ((1.0, 5.0), (1.0, 2.0))
    assert len(landscape(some[:3], Selection(), usual)) == 2  # a single number of steps is no line


def test_a_line_is_named_by_what_tells_it_from_the_others():
    some = [scored(0.5, lr=lr, clip_norm=10.0) for lr in (0.1, 0.2)]
    assert [line_name(one, some, None) for one in some] == ["lr 0.1", "lr 0.2"]
    assert line_name(some[0], some[:1], None) == "lr 0.1, clip_norm 10"


def test_a_sweeps_landscape_shows_the_best_of_each_value():
    tried = [(0.1, 0.3, 0.5), (0.1, 0.9, 0.6), (1.0, 0.3, 0.7), (1.0, 0.9, 0.4)]
    some = [scored(mean, lr=lr, alpha=alpha, v_start="zero") for lr, alpha, mean in tried]
    some.append(Scored(Candidate({"lr": 9.0, "alpha": 0.3, "v_start": "zero"}, ()), 5, [], OverSeeds((), 1)))
    by_lr, by_alpha, by_both = landscape(some, Selection())[1:]  # words are no axis, what has no score no point
    assert by_lr.series[0].x == (0.1, 0.1, 1.0, 1.0)
    assert (by_lr.series[1].x, by_lr.series[1].y) == ((0.1, 1.0), (0.6, 0.7))
    assert by_alpha.series[1].y == (0.7, 0.6)
    assert {line.name: line.y for line in by_both.series} == {"alpha 0.3": (0.5, 0.7), "alpha 0.9": (0.6, 0.4)}
    losses = landscape(some, Selection("validation_loss"))
    assert losses[1].series[1].y == (0.5, 0.4)
    apart = [scored(0.1 * n, mu=n) for n in (1, 2)] + [scored(0.1 * n, alpha=n) for n in (1, 2)]
    assert len(landscape(apart, Selection())) == 3  # no configuration has both
    many = landscape([scored(0.1, a=a, b=b) for a in range(1, 9) for b in range(1, 8)], Selection())[-1]
    assert (len(many.series), many.note) == (6, "Not drawn: b 7.")
    assert len(landscape([scored(0.1, a=n, b=n, c=n, d=n) for n in (1, 2)], Selection())) == 5  # no pairs of so many


def test_time_left_is_told_when_it_can_be(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    estimate = Estimate([Course("resumed", 200), Course("new", 200)])
    estimate.update(0, 100, finished=False)  # of an earlier session
    now[0] = 60.0
    estimate.update(0, 101, finished=False)
    assert estimate.seconds_left() is None  # a minute went into the start
    now[0] = 70.0
    estimate.update(0, 150, finished=False)
    assert estimate.seconds_left() == pytest.approx(70 * 250 / 50)


def test_seeds_without_a_value_are_named_below_a_chart():
    chart = outcome_curves(
        "c", {"a": [outcome(DONE, 0.5), outcome(UNFINISHED)], "b": [outcome(DONE, 0.5)]}, "test_accuracy"
    )
    assert chart.series[0].y == (0.5,)
    assert chart.note == "Without a value: 1 of 2 seeds of a."


def test_a_stored_run_names_every_hyper_parameter(monkeypatch):
    """Suggested values change from version to version, and a run that goes on must not change with them."""

    def power(experiment):
        return next(part.power for part in experiment.build_method().local if isinstance(part, AMSGrad))

    monkeypatch.setitem(TUNED, ("digits", "fedlada"), (0.01, {"power": 0.125}))
    said, plain = Experiment(method="fedlada", hyper={"power": 0.5}), Experiment(method="fedlada")
    assert (power(said), power(plain), power(Experiment.from_json({"method": "fedlada"}))) == (0.5, 0.125, 0.125)
    for one in (said, plain):
        stored = json.loads(json.dumps(one.to_json()))
        assert stored["hyper"].keys() == hyper_parameters("fedlada").keys()
        read = Experiment.from_json(stored)
        assert read.resolved() == one.resolved()
        assert read.to_json() == stored
        assert power(read) == power(one)
    assert digest(said) != digest(plain)
    del stored["hyper"]["power"]
    with pytest.raises(ValueError, match="the configuration does not name power: add its value to hyper, or start"):
        Experiment.from_json(stored)
