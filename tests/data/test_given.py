"""Data as people have them: samples to be padded, frames, tables of Hugging Face; all else has its way out."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_sequence
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

import fedlada
from fedlada.data import as_samples, columns
from tasks import blobs, small_net

CPU = torch.device("cpu")
X, Y = blobs(num_samples=60)
LENGTHS = [2 + number % 7 for number in range(40)]


class Words(Dataset):
    """Sequences of several lengths; the class is that of the first symbol."""

    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, number):
        return torch.full((LENGTHS[number],), 1 + number % 3), number % 3


class WordsThatPad(Words):
    classes = ("one", "two", "three")

    def collate_fn(self, samples):
        return padded(samples)


class ReadTogether(Words):
    def __getitem__(self, number):
        raise AssertionError("samples are read together")

    def __getitems__(self, numbers):
        return [Words.__getitem__(self, number) for number in numbers]


class Bag(nn.Module):
    """The mean of the symbols that are no padding."""

    def __init__(self):
        super().__init__()
        self.symbols = nn.Embedding(4, 3, padding_idx=0)

    def forward(self, x):
        return self.symbols(x).sum(1) / (x != 0).sum(1, keepdim=True)


def padded(samples):
    x, y = zip(*samples, strict=True)
    return pad_sequence(list(x), batch_first=True), torch.tensor(y)


def samples_of(data, **how):
    return as_samples(data, CPU, torch.float32, **how)


def by_hand():
    return padded([Words()[number] for number in range(len(LENGTHS))])


@pytest.mark.parametrize(
    ("data", "collate"),
    [
        (Words(), padded),
        (WordsThatPad(), None),
        (ReadTogether(), padded),
        (([x for x, _ in map(Words().__getitem__, range(40))], [n % 3 for n in range(40)]), padded),
        ([Words()[number] for number in range(40)], padded),
        (Words(), lambda samples: dict(zip(("x", "labels"), padded(samples), strict=True))),
    ],
    ids=["given", "its own", "several at once", "lists", "samples", "a dict"],
)
def test_samples_of_several_lengths_are_padded_to_the_longest(data, collate):
    x, y = by_hand()
    samples = samples_of(data, collate_fn=collate)
    inputs = samples.x["x"] if isinstance(samples.x, dict) else samples.x
    assert torch.equal(inputs, x)
    assert torch.equal(samples.y, y)


def test_padded_samples_train_in_both_engines_as_if_padded_by_hand():
    def trained(data, **how):
        return fedlada.simulate(Bag(), data, test=data, method="fedavg", rounds=2, lr=0.5, batch_size=4, **how)

    torch.manual_seed(0)
    model_seed = torch.get_rng_state()
    results = []
    for data, how in (
        (by_hand(), {}),
        (Words(), {"collate_fn": padded}),
        (WordsThatPad(), {}),
        (Words(), {"collate_fn": padded, "engine": "stacked"}),
    ):
        torch.set_rng_state(model_seed)
        results.append(trained(data, **how))
    expected = results[0].server.params
    assert torch.equal(results[1].server.params, expected)
    assert torch.equal(results[2].server.params, expected)
    torch.testing.assert_close(results[3].server.params, expected)
    assert results[2].history.class_names == WordsThatPad.classes


@pytest.mark.parametrize("data", [Words(), [Words()[number] for number in range(40)], {"a": Words(), "b": Words()}])
def test_evaluate_pads_and_pools_as_simulate_does(data):
    model = Bag()
    assert fedlada.evaluate(model, data, collate_fn=padded) == pytest.approx(fedlada.evaluate(model, by_hand()))


class TakesLengths(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 3)

    def forward(self, x, lengths):
        return self.linear(x.sum(1, keepdim=True) / lengths[:, None])


def test_a_collate_fn_may_give_several_inputs():
    def collate(samples):
        x, y = padded(samples)
        return x.float(), torch.tensor([float(len(one)) for one, _ in samples]), y

    result = fedlada.simulate(TakesLengths(), Words(), collate_fn=collate, method="fedavg", rounds=1, batch_size=4)
    assert result.history[0]["train_loss"] > 0


def test_a_list_of_samples_is_a_data_set_for_collate_fn():
    samples = [Dicts()[number] for number in range(60)]

    def collate(rows):
        return torch.stack([row["features"] for row in rows]), torch.tensor([row["label"] for row in rows])

    expected = trained(Dicts(), collate_fn=collate)
    assert torch.equal(trained(samples, collate_fn=collate), expected)
    assert len(samples_of(samples[:2], collate_fn=collate)) == 2
    found = [Words()[number] for number in range(40)]
    assert (
        len(samples_of([(*one, 0) for one in found], collate_fn=lambda rows: padded([row[:2] for row in rows]))) == 40
    )
    x, y = samples_of([X, Y], collate_fn=torch.utils.data.default_collate).batch(torch.arange(60).numpy())
    assert (x.shape, y.tolist()) == ((60, 4), Y.tolist())  # two arrays are x and y


class Pictures(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, number):
        return Image.new("L", (3, 3)), number % 2


class Dicts(Dataset):
    classes = ("a", "b", "c")

    def __len__(self):
        return 60

    def __getitem__(self, number):
        return {"features": torch.from_numpy(X[number]), "label": int(Y[number]), "id": number}


FRAME = pandas.DataFrame(X, columns=list("abcd")).assign(label=Y)


@pytest.mark.parametrize(
    ("data", "collate", "sentence"),
    [
        (Words(), None, r"several shapes, such as \(2,\) and \(3,\): pad them in collate_fn= \(.*pad_sequence"),
        (([[1, 2], [3]], [0, 1]), None, r"x holds samples of several shapes, such as \(2,\) and \(1,\): pad them"),
        (([[[1], [2]], [[3], [4, 5]]], [0, 1]), None, r"x cannot be read as an array .*: pad them in collate_fn="),
        (Pictures(), None, "the dataset holds images of Pillow: make arrays of images, by transform="),
        (([Image.new("L", (3, 3))] * 2, [0, 1]), None, "x holds images of Pillow: make arrays"),
        ((["some", "words"], [0, 1]), None, "x cannot be read as an array of numbers, it holds text: number it"),
        (Dicts(), None, r"must be a pair \(x, y\), got dict: several inputs .*; fedlada.data.columns and collate_fn="),
        ([Dicts()[0]] * 9, None, "got list of 9 items: samples that are dicts need collate_fn=, or fedlada.data.col"),
        (
            (X, {"class": Y, "number": X[:, :1]}),
            None,
            "y holds several targets, and a loss is given one tensor: pack them",
        ),
        ((X, (Y, X[:, :1])), None, r"y holds several targets.* torch\.cat\(\[a, b\], 1\) .* and split it in the loss"),
        ((X, [Y, Y]), None, "y holds several targets, and a loss is given one tensor: pack them"),
        (({"u": X, "v": X}, (Y, Y)), None, "y holds several targets, and a loss is given one tensor: pack them"),
        (((X, Y), (X, Y)), None, r"a tuple is one pair \(x, y\): give clients as a list, \[\(x, y\), \(x, y\)\], or"),
        (((FRAME, FRAME["label"]),) * 3, None, "give clients as a list"),
        ((Words(), Words()), None, "give clients as a list"),
        (DataLoader(Words()), None, r"a DataLoader makes batches of its own: give its \.dataset"),
        ([DataLoader(Words())] * 2, None, r"a DataLoader makes batches of its own: give its \.dataset"),
        ((DataLoader(Words()),) * 2, None, r"a DataLoader makes batches of its own: give its \.dataset"),
        ([DataLoader(Words())] * 10, None, r"a DataLoader makes batches of its own: give its \.dataset"),
        ([DataLoader(Words())] * 10, padded, r"a DataLoader makes batches of its own: give its \.dataset"),
        (FRAME, None, r"a frame does not say what to predict: give fedlada.data.columns\(frame, y=\.\.\.\)"),
        (
            (FRAME.assign(e="text"), FRAME["label"]),
            None,
            r"x has columns that hold no numbers, such as 'e' \(.*get_d",
        ),
        (
            (FRAME[list("abcd")], FRAME["label"].map({0: "no", 1: "yes", 2: "perhaps"})),
            None,
            r"^y holds text: encode it, as pandas\.factorize\(y\)\[0\]$",
        ),
        (
            (FRAME[list("abcd")], FRAME["label"].sort_values()),
            None,
            r"x and y have the same index in another order, and are read by position: give y\.loc\[x\.index\]",
        ),
        ((np.ma.masked_greater(X, 2), Y), None, r"x has masked entries, .*: fill them, as x\.filled\(0\) does"),
        ((torch.eye(3).to_sparse(), Y[:3]), None, r"x is a sparse tensor: give x\.to_dense\(\)"),
        (Words(), lambda _: 1 / 0, "collate_fn cannot join 40 samples: division by zero"),
        (Words(), lambda _: torch.ones(3), r"collate_fn must give a pair \(x, y\) of arrays, got Tensor"),
        (Words(), lambda _: {"x": torch.ones(3)}, "collate_fn must give inputs and labels, got a dict of x"),
        (Words(), lambda _: (torch.ones(40), torch.ones(3)), "one target for each of the 40 samples"),
        (Words(), lambda _: (pack_sequence([torch.ones(2)] * 40), torch.ones(40)), "pack them inside the model"),
    ],
)
def test_what_cannot_be_read_has_a_way_out(data, collate, sentence):
    with pytest.raises(ValueError, match=sentence):
        samples_of(data, collate_fn=collate).batch(torch.arange(2).numpy())


def test_a_nested_tensor_has_a_way_out():
    # The first one takes torch seconds: not among the values above, which are made wherever tests are collected.
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    test_what_cannot_be_read_has_a_way_out((nested, [0, 1]), None, "x is a nested tensor: give torch.nested.to_padded")


def trained(data, **how):
    values = {"method": "fedavg", "rounds": 2, "lr": 0.1, "batch_size": 20, **how}
    return fedlada.simulate(small_net(), data, **values).server.params


class Graphs(Dataset):
    """Features with a graph of their own, as an encoder makes them."""

    def __init__(self, x):
        self.x = x

    def __len__(self):
        return 60

    def __getitem__(self, number):
        return 1 * self.x[number], int(Y[number])


def test_data_that_were_computed_with_gradients_are_constants():
    leaf = torch.from_numpy(X).requires_grad_()
    for data in ((leaf, Y), (list(1 * leaf), Y), Graphs(leaf)):
        assert torch.equal(trained(data), trained((X, Y)))
    assert leaf.grad is None


def test_a_frame_and_a_series_are_arrays():
    expected = trained((X, Y), test=(X, Y))
    pair = (FRAME[list("abcd")], FRAME["label"])
    assert torch.equal(trained(pair, test=pair), expected)
    assert torch.equal(trained(columns(FRAME)), expected)
    assert torch.equal(trained(columns(FRAME.assign(more=1.0), x=list("abcd"), y="label")), expected)
    assert torch.equal(trained((FRAME[list("abcd")].astype("Float64"), FRAME["label"].astype("Int64"))), expected)
    with pytest.raises(ValueError, match="there is no column 'target'; there are a, b, c, d, label"):
        columns(FRAME, y="target")
    with pytest.raises(ValueError, match="which of the columns a, b, c, d is y"):
        columns(FRAME[list("abcd")])


def test_a_frame_of_one_column_is_no_column_of_classes():
    with pytest.raises(ValueError, match=r"for classes flatten y .*, or y\.iloc\[:, 0\] of a frame"):
        trained((X, FRAME[["label"]]))
    assert torch.equal(trained((X, FRAME[["label"]].iloc[:, 0])), trained((X, Y)))


def test_missing_values_of_a_frame_are_named():
    frame = FRAME[list("abcd")].copy()
    frame.loc[7, "b"] = None
    with pytest.raises(ValueError, match="x holds a NaN or an infinity in row 7"):
        trained((frame, FRAME["label"]))
    with pytest.raises(ValueError, match="y holds a NaN or an infinity in row 7"):
        trained((X, FRAME["label"].astype("Int64").mask(FRAME.index == 7)))


def test_the_columns_of_samples_that_are_dicts():
    assert torch.equal(trained(columns(Dicts())), trained((X, Y)))
    assert torch.equal(trained(columns(Dicts(), x="features", y="label")), trained((X, Y)))
    assert samples_of(columns(Dicts())).class_names == Dicts.classes
    both = samples_of(columns(Dicts(), x=("features", "id"), y="label")).batch(torch.arange(3).numpy())
    assert both[0]["id"].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="there is no column 'img'; there are features, label, id"):
        columns(Dicts(), x="img")


def test_a_data_set_is_read_as_before():
    plain = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    assert torch.equal(trained(plain), trained((X, Y)))
    assert torch.equal(trained(list(plain)), trained((X, Y)))
    assert torch.equal(trained(list(zip(X, Y.tolist(), strict=True))), trained((X, Y)))


# A table of Hugging Face: its library is large, so it is no part of what developers install.


class Counted(Dataset):
    """Counts how often a sample is read."""

    def __init__(self, **attributes):
        self.reads = 0
        vars(self).update(attributes)

    def __len__(self):
        return 60

    def __getitem__(self, number):
        self.reads += 1
        return torch.from_numpy(X[number]), int(Y[number])


class Shifted(Subset):
    def __getitem__(self, number):
        x, y = super().__getitem__(number)
        return x, y + 1

    def __getitems__(self, numbers):
        return [self[number] for number in numbers]


ODD = list(range(1, 60, 2))
INSIDE = {
    "itself": (lambda data: data, Y),
    "subset": (lambda data: Subset(data, ODD), Y[ODD]),
    "subset of a subset": (lambda data: Subset(Subset(data, torch.tensor(ODD)), range(3, 20)), Y[ODD][3:20]),
    "concatenated": (lambda data: ConcatDataset([Subset(data, ODD), data]), [*Y[ODD], *Y]),
    "subset of concatenated": (lambda data: Subset(ConcatDataset([data, data]), [70, 5]), Y[[10, 5]]),
}


@pytest.mark.parametrize("targets", [Y, Y.tolist(), torch.from_numpy(Y)], ids=["array", "list", "tensor"])
@pytest.mark.parametrize("name", INSIDE)
def test_labels_come_from_targets_without_reading_a_sample(name, targets):
    inside, expected = INSIDE[name]
    data = Counted(targets=targets)
    labels = samples_of(inside(data)).labels()
    assert labels.tolist() == list(expected)
    assert data.reads == 0
    without = Counted()
    assert samples_of(inside(without)).labels().tolist() == list(expected)
    assert without.reads == len(expected)


def test_targets_that_are_not_those_of_the_samples_are_not_used():
    data = Counted(targets=Y)
    assert samples_of(Shifted(data, ODD)).labels().tolist() == (Y[ODD] + 1).tolist()
    assert samples_of(ConcatDataset([data, Counted()])).labels().tolist() == [*Y, *Y]
    assert samples_of(Subset(Counted(targets=Y[:9]), ODD)).labels().tolist() == Y[ODD].tolist()


@pytest.fixture
def hugging_face():
    return pytest.importorskip("datasets")


def test_a_table_of_hugging_face(hugging_face):
    features = hugging_face.Features(
        {
            "x": hugging_face.List(hugging_face.Value("float64")),
            "label": hugging_face.ClassLabel(names=["red", "green", "blue"]),
        }
    )
    table = hugging_face.Dataset.from_dict({"x": X.tolist(), "label": Y.tolist()}, features=features)
    expected = trained((X, Y))
    assert torch.equal(trained(table), expected)
    assert torch.equal(trained(columns(table, x="x", y="label")), expected)
    assert samples_of(table).class_names == ("red", "green", "blue")
    parts = [table.select(range(0, 25)), table.select(range(25, 60))]
    by_hand = trained((X, Y), partition=[range(25), range(25, 60)])
    assert torch.equal(trained(parts), by_hand)
    with pytest.raises(ValueError, match="a DatasetDict is no table of samples: give one split of it"):
        trained(hugging_face.DatasetDict({"train": table}))
    with pytest.raises(ValueError, match=r"which of the columns a, label is x\? Give fedlada.data.columns"):
        trained(table.rename_column("x", "a"))


def test_images_and_words_of_hugging_face(hugging_face):
    pictures = [Image.new("L", (5, 4), number) for number in range(6)]
    features = hugging_face.Features({"img": hugging_face.Image(), "label": hugging_face.Value("int64")})
    table = hugging_face.Dataset.from_dict({"img": pictures, "label": [0, 1] * 3}, features=features)
    samples = samples_of(table)
    assert samples.x.dtype == torch.uint8
    assert samples.x.shape == (6, 4, 5)
    words = hugging_face.Dataset.from_dict({"text": ["a", "b c"] * 3, "label": [0, 1] * 3})

    def collate(rows):
        return torch.tensor([[float(len(row["text"]))] for row in rows]), torch.tensor([row["label"] for row in rows])

    assert samples_of(words, collate_fn=collate).x.flatten().tolist() == [1, 3] * 3
    with pytest.raises(ValueError, match="the column 'text' cannot be read as an array of numbers, it holds text"):
        samples_of(words)
