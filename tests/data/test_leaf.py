"""LEAF's JSON files, made by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedlada.data import load_dataset, load_leaf
from fedlada.workbench.experiment import Experiment


def write(folder, split, data, file="all_data_0.json", **changes):
    (folder / split).mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(data),
        "num_samples": [len(y) for _, y in data.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in data.items()},
        **changes,
    }
    (folder / split / file).write_text(json.dumps(content))


def strokes(number, count):
    return [[(number + place) % 7 / 7 for place in range(784)] for _ in range(count)], [number % 3] * count


def femnist(folder):
    write(folder, "train", {"f0": strokes(0, 4), "f1": strokes(1, 5)})
    write(folder, "train", {"f2": strokes(2, 6), "f1": strokes(1, 2), "empty": ([], [])}, "all_data_1.json")
    write(folder, "test", {"f1": strokes(1, 2), "unseen": strokes(2, 3)})


def test_images_of_several_files_and_users(tmp_path):
    femnist(tmp_path)
    train, test, names = load_leaf(str(tmp_path))
    assert names == ["f0", "f1", "f2"]
    assert train.x.shape == (17, 1, 28, 28)
    assert train.client.tolist() == [0] * 4 + [1] * 7 + [2] * 6
    assert train.y.tolist() == [0] * 4 + [1] * 7 + [2] * 6
    assert test.client.tolist() == [1, 1, -1, -1, -1]
    assert train.x[4, 0, 0, 6] == np.float32(0)
    result = Experiment(dataset="leaf", data_dir=str(tmp_path), method="fedavg", rounds=1, cohort_size=2).run()
    assert result.history.client_names == ("f0", "f1", "f2")
    assert result.history[0]["test_accuracy"] is not None


def test_text_is_codes_of_characters(tmp_path):
    play = "Who's there? Nay, answer me: stand, and unfold yourself. Long live the king! Bernardo?"
    windows = {
        name: ([play[i : i + 10] for i in at], [play[i + 10] for i in at])
        for name, at in (("BERNARDO", range(30)), ("FRANCISCO", range(30, 50)))
    }
    for split in ("train", "test"):
        write(tmp_path, split, windows)
    source = load_dataset("leaf", tmp_path)
    assert source.input_shape == (10,)
    assert source.num_classes == 128
    assert "".join(map(chr, source.train[0][31])) == play[31:41]
    assert chr(source.train[1][31]) == play[41]
    run = {"dataset": "leaf", "data_dir": str(tmp_path), "method": "fedavg", "rounds": 1, "cohort_size": 2}
    assert len(Experiment(**run, model="text-transformer").run().history) == 1
    with pytest.raises(ValueError, match="the samples of leaf are text, which mlp cannot read: take text-transformer"):
        Experiment(**run).run()


def test_rows_of_numbers_of_any_length_and_numbers_to_predict(tmp_path):
    for split in ("train", "test"):
        write(tmp_path, split, {"a": ([[1.0, 2.0], [3.0, 4.0]], [0.5, 1.0]), "b": ([[5.0, 6.0]], [2.25])})
    source = load_dataset("leaf", tmp_path)
    assert source.train[1].tolist() == [[0.5], [1.0], [2.25]]
    assert (source.input_shape, source.num_classes) == ((2,), 1)


@pytest.mark.parametrize(
    ("users", "changes", "sentence"),
    [
        ({"a": ([[1.0]], [0, 1])}, {}, "the user 'a' has 1 inputs, 2 targets, num_samples 2"),
        ({"a": ([[1.0]], [0])}, {"num_samples": [3]}, "the user 'a' has 1 inputs, 1 targets, num_samples 3"),
        ({"a": ([[1.0]], [0])}, {"users": ["b"]}, "is no file of LEAF: it has no 'b'"),
        ({"a": ([[1.0]], [0])}, {"user_data": []}, "is damaged or no file of LEAF"),
        (
            {"a": ([[1.0], [2.0, 3.0]], [0, 1])},
            {},
            "no rows of numbers of one length: .*collate_fn=",
        ),
        ({"a": (["ab", "abc"], ["c", "d"])}, {}, "texts that are not windows of one length"),
        ({"a": (["ab"], [0])}, {}, "texts that are not windows of one length"),
        ({"a": ([[1.0]], [-1])}, {}, "holds the label -1: classes count from 0"),
        ({"a": ([[1.0]], [[1]])}, {}, "must hold one number as the target of each sample"),
        ({"a": ([[float("inf")]], [1])}, {}, "must hold a row of finite numbers"),
        ({}, {}, "train holds no samples"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path, users, changes, sentence):
    write(tmp_path, "test", {"a": ([[1.0]], [0])})
    write(tmp_path, "train", users, **changes)
    with pytest.raises(ValueError, match=sentence):
        load_leaf(tmp_path)


def test_missing_and_damaged_files(tmp_path):
    with pytest.raises(ValueError, match=r"there are no files .*train/\*\.json: LEAF's preprocess.sh makes"):
        load_leaf(tmp_path)
    femnist(tmp_path)
    write(tmp_path, "test", {"a": ([[1.0]], [0])})
    with pytest.raises(ValueError, match=r"the samples in train and in test differ: shapes \(1, 28, 28\) and \(1,\)"):
        load_leaf(tmp_path)
    (tmp_path / "train" / "all_data_1.json").write_text('{"users": [')
    with pytest.raises(ValueError, match=r"all_data_1.json is damaged or no file of LEAF"):
        load_leaf(tmp_path)
