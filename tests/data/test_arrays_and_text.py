"""`.npz` files, and the text that every Python brings."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
import zlib
from dataclasses import replace

import numpy as np
import pytest

import fedlada
from fedlada.data import ByKey, load_dataset, load_docstrings, load_npz
from fedlada.models import text_transformer
from fedlada.workbench.experiment import Experiment
from fedlada.workbench.report.command import run_command

RANDOM = np.random.default_rng(0)


def splits(x, y, cut):
    return {"x_train": x[:cut], "y_train": y[:cut], "x_test": x[cut:], "y_test": y[cut:]}


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((12, 5, 6), (1, 5, 6)), ((12, 5, 6, 3), (3, 5, 6)), ((12, 3, 5, 6), (3, 5, 6)), ((12, 1, 5, 3), (1, 5, 3))],
)
def test_bytes_are_images_with_their_channels_first(tmp_path, shape, expected):
    x, y = RANDOM.integers(0, 256, shape, dtype=np.uint8), np.arange(12)[:, None] % 3
    np.savez(tmp_path / "data.npz", **splits(x, y, 9))
    source = load_dataset("npz", tmp_path / "data.npz", augment="crop")
    assert source.input_shape == expected
    assert source.num_classes == 3
    assert source.labels("test").tolist() == [0, 1, 2]
    if shape == (12, 5, 6, 3):
        assert (source.train.x[4] == np.moveaxis(x[4], 2, 0)).all()


def test_floats_stay_as_they_are_and_one_table_is_split(tmp_path):
    x, y = RANDOM.standard_normal((60, 4)), np.arange(60) % 2
    np.savez_compressed(tmp_path / "data.npz", x=x, y=y)
    (x_train, _), (x_test, _) = load_npz(tmp_path / "data.npz")
    assert (len(x_train), len(x_test)) == (50, 10)
    assert sorted(np.concatenate([x_train[:, 0], x_test[:, 0]])) == sorted(x[:, 0])
    again = load_npz(tmp_path / "data.npz")
    assert (again[1][0] == x_test).all()
    source = load_dataset("npz", tmp_path / "data.npz")
    assert source.input_shape == (4,)
    with pytest.raises(ValueError, match="npz has no images in bytes to augment"):
        load_dataset("npz", tmp_path / "data.npz", augment="crop")


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x_train": np.zeros((2, 3))}, r"has no array 'y_train': it needs .*; it has x_train"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(2, int)}, r"one row .* got shapes \(3, 2\) and \(2,\)"),
        ({"x": np.zeros((3, 2)), "y": np.zeros((3, 2, 2))}, r"one number, or one row of them, .* of float64"),
        (
            {"x": np.zeros((3, 2)), "y": np.array([[0, 2], [1, 0], [0, 0]])},
            "must hold zeros and ones: one for",
        ),
        (
            {"x": np.zeros((3, 2)), "y": np.zeros(3, int), "client": np.zeros(2, int)},
            r"client needs one name or whole number for each of the 3 samples, got shape \(2,\) of int64",
        ),
        ({"x": np.zeros((3, 2)), "y": np.zeros(3, int), "client": np.zeros(3)}, r"client needs one name .* of float64"),
        ({**splits(np.zeros((4, 2)), np.zeros(4, int), 2), "y_test": np.zeros(2)}, "y_train and y_test are not of one"),
        ({"x": np.zeros((3, 2)), "y": np.array([0, -1, 1])}, "y holds the label -1, and classes count from 0"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, "one row"),
        ({"x": np.array([object()]), "y": np.zeros(1, int)}, "x holds Python objects, which are never loaded"),
        ({"x": np.zeros((3, 2), np.longdouble), "y": np.zeros(3, int)}, r"x holds float128, .*: save it as float64"),
        (
            {**splits(np.zeros((4, 2)), np.zeros(4, int), 2), "x_test": np.zeros((2, 5))},
            r"x_train and x_test differ in shape",
        ),
        (
            {**splits(np.zeros((4, 1, 5, 5), np.uint8), np.zeros(4, int), 2), "x_test": np.zeros((2, 1, 5, 5))},
            r"one of x_train and x_test holds images in bytes: uint8 and float64",
        ),
        ({"x": np.zeros((1, 2)), "y": np.zeros(1, int)}, "holds one sample: at least one to train on and one to test"),
        ({"x": np.zeros((3, 0)), "y": np.zeros(3, int)}, r"x has no features: its shape is \(3, 0\)"),
        ({"x": np.zeros((3, 2)), "y": np.array([0, 1, 3])}, "the label 3 asks for 4 classes, more than its 3 samples"),
        ({"x": np.zeros((3, 2)), "y": np.array([0, 1, 2**63], np.uint64)}, "label 9223372036854775808, which is no"),
        ({"x": np.zeros((3, 2)), "y": np.array([0, 1, 2**63 - 1])}, "asks for 9223372036854775808 classes"),
        ({"x": np.zeros((3, 2), complex), "y": np.zeros(3, int)}, "x must hold numbers, got complex128"),
        ({"x": np.full((3, 2), "a"), "y": np.zeros(3, int)}, "x must hold numbers, got <U1"),
        ({"x": np.zeros((3, 2)), "y": np.array(["a", "b", "a"])}, "data.npz: y holds text: number the classes from 0"),
        (splits(np.zeros((4, 2)), np.array([0, 1, 0, 4]), 2), "the label 4 asks for 5 classes, more than its 4"),
    ],
)
def test_what_is_wrong_with_an_npz_is_named(tmp_path, arrays, sentence):
    np.savez(tmp_path / "data.npz", **arrays, allow_pickle=True)
    with pytest.raises(ValueError, match=sentence):
        load_npz(tmp_path / "data.npz")


@pytest.mark.parametrize("name", ["x", "y"])
def test_a_nan_is_named_by_its_row_in_the_file(tmp_path, monkeypatch, command, name):
    arrays = {"x": RANDOM.standard_normal((60, 4)), "y": RANDOM.standard_normal((60, 2))}
    path = tmp_path / "nan.npz"
    for row, per_part in ((3, 2**22), (57, 20)):
        monkeypatch.setattr("fedlada.data.npz.CHECKED_AT_ONCE", per_part)
        np.savez(path, **{**arrays, name: np.where(np.arange(60)[:, None] == row, np.nan, arrays[name])})
        sentence = f"fedlada: {path}: {name} holds a NaN or an infinity in row {row}\n"
        for words in (["run"], ["compare", "--methods", "fedavg", "--seeds", 0]):
            where = ["--dataset", "npz", "--data-dir", path, "--rounds", 1, "--out", tmp_path / "out"]
            assert command(*words, *where, code=2).err == sentence


def test_the_other_byte_order_is_the_same_data(tmp_path):
    x, y = RANDOM.standard_normal((60, 4)), np.arange(60) % 2
    for name, order in (("big", ">"), ("little", "<")):
        arrays = splits(x.astype(f"{order}f4"), y.astype(f"{order}i4"), 50)
        np.savez(tmp_path / f"{name}.npz", **arrays)
    big, little = (load_npz(tmp_path / f"{name}.npz") for name in ("big", "little"))
    for ours, theirs in zip((*big[0], *big[1]), (*little[0], *little[1]), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.dtype.isnative
        assert (ours == theirs).all()


def npy(shape, kind="|u1"):
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": kind, "fortran_order": False, "shape": shape})
    return out.getvalue()


def test_an_npz_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("fedlada.data.limits.ALWAYS_READ", 10**7)
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file, file.open("x.npy", "w") as member:
        member.write(npy((60, 2**20)))
        for _ in range(60):
            member.write(bytes(2**20))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"data.npz promises 0.06 GB: at most 0.01 GB, or 50 times the file"):
            load_npz(path)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.npy", npy((2**50, 3)) + b"123")
    with pytest.raises(ValueError, match=r"data.npz is damaged .*: x should hold 3377699720527872 bytes, got 3$"):
        load_npz(path)


def test_damaged_npz(tmp_path):
    np.savez(tmp_path / "data.npz", x=np.zeros((3, 2)), y=np.zeros(3, int))
    whole = (tmp_path / "data.npz").read_bytes()
    for content in (whole[:-30], whole[:100], b"", b"not a zip"):
        (tmp_path / "data.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"is damaged or not an .npz file"):
            load_npz(tmp_path / "data.npz")
    with pytest.raises(ValueError, match="there is no file"):
        load_npz(tmp_path / "other.npz")
    np.save(tmp_path / "alone.npy", np.zeros((3, 2)))
    (tmp_path / "alone.npy").rename(tmp_path / "alone.npz")
    with pytest.raises(
        ValueError, match=r"alone.npz is damaged or not an .npz file of plain arrays: it is not an arch"
    ):
        load_npz(tmp_path / "alone.npz")


def test_a_damaged_member_of_an_npz_is_a_sentence(tmp_path):
    """Whatever zip, zlib or numpy's header reader raise: each byte in turn is turned over."""
    np.savez_compressed(tmp_path / "data.npz", x=RANDOM.standard_normal((3, 2)), y=np.zeros(3, int))
    whole = (tmp_path / "data.npz").read_bytes()
    errors = []
    for place in range(len(whole)):
        (tmp_path / "data.npz").write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            load_npz(tmp_path / "data.npz")
        except ValueError as error:
            errors.append(error)
    assert all(str(tmp_path / "data.npz") in str(error) for error in errors)
    assert {zlib.error, NotImplementedError} <= {type(error.__context__) for error in errors}


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.int16, bool, np.float64])
def test_any_numbers_train_with_the_default_model(tmp_path, kind):
    x, y = RANDOM.integers(0, 2, (60, 4)).astype(kind), np.arange(60) % 2
    np.savez(tmp_path / "data.npz", x=x, y=y)
    experiment = Experiment(
        dataset="npz", data_dir=str(tmp_path / "data.npz"), method="fedavg", rounds=1, num_clients=3, cohort_size=2
    )
    assert len(experiment.run().history) == 1


def test_clients_of_an_npz_by_name(tmp_path):
    x, y = RANDOM.standard_normal((60, 4)), np.arange(60) % 2
    owner = np.array(["zoe", "anna", "bob"])[np.arange(60) % 3]
    np.savez(tmp_path / "data.npz", x=np.column_stack([x, np.arange(60)]), y=y, client=owner)
    source = load_dataset("npz", str(tmp_path / "data.npz"))
    assert source.client_names == ("anna", "bob", "zoe")
    named = np.array(source.client_names)
    assert (named[source.client] == owner[source.train[0][:, -1].astype(int)]).all()
    assert (named[source.test_client] == owner[source.test[0][:, -1].astype(int)]).all()
    experiment = Experiment(
        dataset="npz",
        data_dir=str(tmp_path / "data.npz"),
        method="fedavg",
        rounds=1,
        partition="natural",
        cohort_size=2,
    )
    assert experiment.run().history.client_names == ("anna", "bob", "zoe")
    held = experiment.build_partition(source.holding_out(0.5))
    assert held.client_names() == ("anna", "bob", "zoe")
    only = source.client != 0
    without = replace(source, train=(source.train[0][only], source.train[1][only]), client=source.client[only])
    assert experiment.build_partition(without).client_names() == ("bob", "zoe")


@pytest.mark.parametrize("given", ["x and y", "train and test"])
def test_clients_that_an_npz_names_are_those_of_the_run(tmp_path, given):
    x, y = RANDOM.standard_normal((60, 4)), np.arange(60) % 2
    owner = np.array(["zoe", "anna", "bob"])[np.arange(60) % 3]
    arrays = {"x": x, "y": y, "client": owner} if given == "x and y" else {**splits(x, y, 50), "client": owner[:50]}
    np.savez(tmp_path / "data.npz", **arrays)
    where = {"dataset": "npz", "data_dir": str(tmp_path / "data.npz"), "method": "fedavg"}
    found = Experiment(**where)
    full = found.resolved()
    assert (full.partition, full.num_clients, full.cohort_size) == ("natural", None, 3)
    assert found.build_partition(found.load_data()).client_names() == ("anna", "bob", "zoe")
    divided = Experiment(**where, partition="dirichlet").resolved()
    assert (divided.partition, divided.num_clients, divided.cohort_size) == ("dirichlet", 10, 5)
    assert "--partition dirichlet" in run_command(divided.to_json(), tmp_path)  # else the file would decide
    with pytest.raises(ValueError, match="divides the samples anew"):
        Experiment(**where, num_clients=4)
    with pytest.raises(ValueError, match="names its clients: concentration needs partition dirichlet"):
        Experiment(**where, concentration=0.1)
    assert Experiment(**{**where, "data_dir": str(tmp_path / "gone.npz")}).resolved().partition == "dirichlet"


def test_clients_of_an_npz_by_number(tmp_path):
    x, y = RANDOM.standard_normal((8, 4)), np.arange(8) % 2
    clients = {"client_train": np.array([7, 7, 3, 3, 9]), "client_test": np.array([3, 9, 5])}
    np.savez(tmp_path / "data.npz", **splits(x, y, 5), **clients)
    source = load_dataset("npz", tmp_path / "data.npz")
    assert source.client_names == ("3", "7", "9")
    assert source.client.tolist() == [1, 1, 0, 0, 2]
    assert source.test_client.tolist() == [0, 2, -1]


def test_an_npz_without_clients_says_how_to_name_them(tmp_path):
    np.savez(tmp_path / "data.npz", x=RANDOM.standard_normal((8, 4)), y=np.arange(8) % 2)
    experiment = Experiment(dataset="npz", data_dir=str(tmp_path / "data.npz"), partition="natural")
    with pytest.raises(ValueError, match="choose a --partition, or save their clients as an array `client`"):
        experiment.run()


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (np.linspace(-3, 3, 60), (60, 1)),
        (RANDOM.standard_normal((60, 2)).astype(np.float32), (60, 2)),
        (RANDOM.integers(0, 2, (60, 3)), (60, 3)),
        (RANDOM.integers(0, 2, (60, 3)).astype(bool), (60, 3)),
    ],
    ids=["numbers", "rows", "labels", "truth values"],
)
def test_numbers_and_several_labels_as_targets(tmp_path, y, expected):
    np.savez(tmp_path / "data.npz", x=RANDOM.standard_normal((60, 4)), y=y)
    (_, train), (_, test) = load_npz(tmp_path / "data.npz")
    assert train.dtype.kind == ("f" if y.dtype.kind == "f" else "i")
    assert (len(train) + len(test), train.shape[1]) == expected
    assert load_dataset("npz", tmp_path / "data.npz").num_classes == expected[1]
    run = {"dataset": "npz", "data_dir": str(tmp_path / "data.npz"), "method": "fedavg", "rounds": 1}
    experiment = Experiment(**run, num_clients=3, cohort_size=2, partition="iid")
    result = experiment.run()
    assert result.history[0]["test_loss"] > 0
    assert result.loss == ("mse_loss" if y.dtype.kind == "f" else "binary_cross_entropy")
    with pytest.raises(ValueError, match="a partition by class needs"):
        Experiment(**run, num_clients=3, cohort_size=2).run()


def test_truth_values_are_two_classes(tmp_path):
    np.savez(tmp_path / "data.npz", x=RANDOM.standard_normal((60, 4)), y=np.arange(60) % 2 == 0)
    assert load_dataset("npz", tmp_path / "data.npz").num_classes == 2


def write_library(folder, num_modules=3, length=2000):
    words = ["alpha", "beta", "gamma", "delta"]
    for module in range(num_modules):
        text = " ".join(words[(number * (module + 1)) % 4] for number in range(length // 6))
        (folder / f"module_{module}.py").write_text(f'def f():\n    """{text}"""\n')
    (folder / "short.py").write_text('"""Too short."""\n')
    (folder / "broken.py").write_text("def (")


def write_numbers(folder):
    for module in range(3):
        text = " ".join(f"{number:05}" for number in range(400))
        (folder / f"module_{module}.py").write_text(f'def f():\n    """{text}"""\n')


def whole_words(codes):
    return [word for word in "".join(map(chr, codes)).split() if len(word) == 5]


def test_the_documentation_of_a_library(tmp_path):
    write_library(tmp_path)
    train, test, names = load_docstrings(tmp_path)
    assert names == ["module_0", "module_1", "module_2"]
    assert train.x.shape[1] == 32
    assert set(train.client) == {0, 1, 2}
    # A window's answer is the character that follows it in the module's own text.
    for split in (train, test):
        for x, y, client in zip(split.x, split.y, split.client, strict=True):
            assert "".join(map(chr, [*x, y])) in (tmp_path / f"module_{client}.py").read_text()
    assert len(test.y)
    # The test windows lie behind all that was trained on: the modules' texts are words that do not repeat.
    write_numbers(tmp_path)
    train, test, _ = load_docstrings(tmp_path)
    for client in (0, 1, 2):
        trained = {int(word) for x in train.x[train.client == client] for word in whole_words(x)}
        tested = {int(word) for x in test.x[test.client == client] for word in whole_words(x)}
        assert min(tested) > max(trained)
    with pytest.raises(ValueError, match="has no documented Python modules"):
        load_docstrings(tmp_path / "nowhere")


@pytest.mark.slow
def test_the_transformer_learns_from_clients_that_nature_made(tmp_path):
    write_library(tmp_path, length=4000)
    train, test, _ = load_docstrings(tmp_path)
    result = fedlada.simulate(
        lambda: text_transformer(width=32, depth=1),
        (train.x, train.y),
        test=(test.x, test.y),
        partition=ByKey(keys=train.client.tolist()),
        method="fedlada",
        rounds=6,
        batch_size=20,
        lr=0.01,
    )
    assert result.history[-1]["test_accuracy"] > 0.6


@pytest.mark.slow
def test_held_out_text_shares_no_characters_with_training():
    """Windows overlap, so a random tenth of them would."""
    whole = load_dataset("docstrings")
    source = whole.holding_out(0.1)
    assert whole.client is not None
    assert source.client is not None
    for number in (0, 7):
        own = whole.train[0][whole.client == number]
        text = [bytes(row.astype(np.uint8)) for row in own]
        kept = [bytes(row.astype(np.uint8)) for row in source.train[0][source.client == number]]
        held = len(text) - round(0.1 * len(text))
        assert kept == text[: held - 4]
