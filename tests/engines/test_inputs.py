"""Whole numbers as inputs: given as they are to a model that takes them, else scaled or turned into floats."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedlada
from fedlada.data import Images, as_samples
from fedlada.engines.inputs import AS_GIVEN, Inputs, inputs_for
from fedlada.workbench.experiment import Experiment
from tasks import small_net

CPU = torch.device("cpu")
RANDOM = np.random.default_rng(0)
Y = np.arange(60) % 3
BYTES = RANDOM.integers(0, 256, (60, 6, 5), dtype=np.uint8)


def flat(width):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(width, 3))


def run(model, x, test=None, **how):
    values = {"method": "fedavg", "rounds": 2, "lr": 0.1, "batch_size": 10, **how}
    return fedlada.simulate(model, (x, Y), test=(x if test is None else test, Y), **values)


def way(model, x):
    samples = as_samples((x, Y), CPU, torch.float32)
    return inputs_for(model, samples, CPU, torch.float32)


@pytest.mark.parametrize(
    ("shape", "model"),
    [
        ((60, 6, 5), lambda: flat(30)),
        ((60, 6, 5, 3), lambda: flat(90)),
        ((60, 3, 6, 5), lambda: nn.Sequential(nn.Conv2d(3, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())),
    ],
)
def test_bytes_are_images_scaled_as_on_the_command_line(shape, model):
    x = RANDOM.integers(0, 256, shape, dtype=np.uint8)
    first = {60: x, 3: x[:, None] if x.ndim == 3 else np.moveaxis(x, 3, 1)}
    channels = x if shape[1:] == (3, 6, 5) else first[3]
    train = Images(np.ascontiguousarray(channels), Y)
    torch.manual_seed(0)
    network = model()
    expected = fedlada.simulate(
        network,
        train,
        test=Images(train.x // 2, Y, train.mean, train.std),
        method="fedavg",
        rounds=2,
        lr=0.1,
        batch_size=10,
    )
    for given in (x, torch.from_numpy(x)):
        result = run(network, given, given // 2)
        assert torch.equal(result.server.params, expected.server.params)
        assert result.history["test_loss"] == expected.history["test_loss"]


@pytest.mark.parametrize("kind", [np.int64, np.int16, np.uint8, bool])
def test_whole_numbers_become_floats_for_a_model_that_takes_no_others(kind):
    x = RANDOM.integers(0, 2, (60, 4)).astype(kind)
    expected = run(small_net(), x.astype(np.float64)).server.params
    assert torch.equal(run(small_net(), x).server.params, expected)
    data = TensorDataset(torch.from_numpy(x), torch.from_numpy(Y))
    result = fedlada.simulate(small_net(), data, test=data, method="fedavg", rounds=2, lr=0.1, batch_size=10)
    assert torch.equal(result.server.params, expected)


def test_a_model_is_evaluated_on_whole_numbers_too():
    x = RANDOM.integers(0, 2, (60, 4))
    loss = nn.functional.cross_entropy
    expected = fedlada.evaluate(small_net(), (x.astype(np.float32), Y), loss)
    assert fedlada.evaluate(small_net(), (x, Y), loss) == expected
    with pytest.raises(ValueError, match="Images with mean and std"):
        fedlada.evaluate(flat(30), (BYTES, Y), loss)


def test_numbers_are_the_same_in_python_and_on_the_command_line(tmp_path):
    np.savez(tmp_path / "data.npz", x_train=BYTES, y_train=Y, x_test=BYTES, y_test=Y)
    experiment = Experiment(
        dataset="npz", data_dir=str(tmp_path / "data.npz"), method="fedavg", rounds=1, num_clients=3, cohort_size=3
    )
    source = experiment.load_data()
    mine = as_samples((BYTES, Y), CPU, torch.float32)
    mine = inputs_for(flat(30), mine, CPU, torch.float32).of(mine)
    rows = np.arange(60)
    assert torch.equal(mine.batch(rows)[0], as_samples(source.train, CPU, torch.float32).batch(rows)[0])


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.int32, np.int64])
def test_symbols_stay_symbols(kind):
    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.symbols = nn.Embedding(9, 3)

        def forward(self, x):
            assert not x.is_floating_point()
            return self.symbols(x).mean(1)

    x = RANDOM.integers(0, 9, (60, 4)).astype(kind)
    assert way(Text(), x) == (AS_GIVEN if kind in (np.int32, np.int64) else Inputs(torch.int64))
    assert run(Text(), x).history[-1]["test_loss"] is not None


def test_floats_are_not_tested_beside_scaled_bytes():
    """They would be judged at another scale, and in silence."""
    floats = (BYTES / 255).astype(np.float32)
    for test in (floats, TensorDataset(torch.from_numpy(floats), torch.from_numpy(Y))):
        with pytest.raises(
            ValueError, match=r"training images are bytes, and scaled .* but those to evaluate on are floats"
        ):
            fedlada.simulate(flat(30), (BYTES, Y), test=test if test is not floats else (test, Y), method="fedavg")


def test_a_model_that_takes_bytes_gets_bytes():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = flat(30)

        def forward(self, x):
            assert x.dtype == torch.uint8
            return self.inner(x.float() / 255)

    assert run(Own(), BYTES).history[-1]["test_loss"] is not None


def test_images_that_no_model_takes_are_one_sentence():
    with pytest.raises(ValueError, match=r"no images in bytes of shape \(6, 5\), nor scaled \(.*give floats such as"):
        run(flat(7), BYTES)
    data = TensorDataset(torch.from_numpy(BYTES), torch.from_numpy(Y))
    with pytest.raises(ValueError, match=r"no images in bytes of shape \(6, 5\).*give floats such as x / 255"):
        fedlada.simulate(flat(30), data, method="fedavg")
    samples = as_samples((BYTES, Y), CPU, torch.float32)
    with pytest.raises(ValueError, match="Images with mean and std"):  # a node of a federation sees its own alone
        inputs_for(flat(30), samples, CPU, torch.float32, scaled=False)


def test_trying_a_model_changes_nothing():
    model = nn.Sequential(nn.Dropout(0.5), flat(30)).train()
    before = torch.get_rng_state()
    way(model, BYTES)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training


def test_the_model_of_a_run_is_evaluated_on_bytes_as_the_run_did(tmp_path):
    result = run(flat(30), BYTES, BYTES // 2, out=tmp_path, checkpoint_every=1)
    test, last = (BYTES // 2, Y), result.history[-1]
    stored = fedlada.load_run(tmp_path, flat(30))
    for one in (result, stored):
        found = one.evaluate(test)
        assert found["loss"] == pytest.approx(last["test_loss"], rel=1e-6)
        assert found["accuracy"] == last["test_accuracy"]
        by_hand = Images((BYTES // 2)[:, None], Y, result.inputs.mean, result.inputs.std)
        assert one.evaluate(by_hand) == found == fedlada.evaluate(one.model, by_hand)
        assert one.evaluate(test, metrics={"mine": lambda *_: 5.0})["mine"] == 5.0
        with pytest.raises(
            ValueError, match=r"training images are bytes, and scaled .* but those to evaluate on are floats"
        ):
            one.evaluate((BYTES / 255, Y))
    best, round = stored.best()
    assert stored.evaluate(test, model=best)["accuracy"] == result.history[round - 1]["test_accuracy"]
    with pytest.raises(ValueError, match=r"no images in bytes .*, or ask the run that scaled them: result\.evaluate\("):
        fedlada.evaluate(result.model, test)


def test_other_data_of_a_run_are_evaluated_as_ever(tmp_path):
    floats = (BYTES / 255).astype(np.float32)
    result = run(flat(30), floats, out=tmp_path)
    expected = fedlada.evaluate(result.model, (floats, Y))
    assert result.evaluate((floats, Y)) == fedlada.load_run(tmp_path, flat(30)).evaluate((floats, Y)) == expected


def test_a_loss_of_ones_own_is_given_again(tmp_path):
    def mine(output, y):
        return 2 * nn.functional.cross_entropy(output, y)

    result = run(flat(30), BYTES, loss=mine, out=tmp_path)
    for one in (result, fedlada.load_run(tmp_path, flat(30))):
        with pytest.raises(ValueError, match=r"the run was trained with the loss .*mine: give it here too, loss="):
            one.evaluate((BYTES, Y))
        assert one.evaluate((BYTES, Y), mine)["loss"] == pytest.approx(result.history[-1]["test_loss"], rel=1e-6)


def test_of_personal_parameters_a_client_is_evaluated(tmp_path):
    values = {"method": "fedavg", "rounds": 2, "client_test": 0.5, "personal": "1.bias", "out": tmp_path}
    result = fedlada.simulate(flat(30), (BYTES, Y), **values)
    for one in (result, fedlada.load_run(tmp_path, flat(30))):
        with pytest.raises(ValueError, match=r"there is no single model: give model=, such as client_model\(0\)"):
            one.evaluate((BYTES, Y))
        assert one.evaluate((BYTES, Y), model=one.client_model(0))["loss"] > 0


def test_a_folder_with_odd_means_is_refused(tmp_path):
    run(flat(30), BYTES, out=tmp_path)
    stored = fedlada.load_run(tmp_path, flat(30))
    assert stored.inputs.mean == pytest.approx((BYTES.mean() / 255,))
    odd_ones = ({"mean": ["x"]}, {"mean": 3}, {"mean": [0.5], "crop_size": "x"})
    for odd in ([], {"images": []}, *({"images": one} for one in odd_ones)):
        with pytest.raises(ValueError, match=r"ran_by in config\.json cannot be read"):
            replace(stored, config={**stored.config, "ran_by": odd}).evaluate((BYTES, Y))


@pytest.mark.parametrize("how", [{}, {"crop_size": 4}, {"standardize": "image"}])
def test_after_training_on_images_bytes_are_read_alike(tmp_path, how):
    """As the command line trains: `Images` with a mean of their own; the user has the bytes, in either order."""
    size = how.get("crop_size")
    channels = RANDOM.integers(0, 256, (60, 3, 6, 5), dtype=np.uint8)
    train, test = (Images(one, Y, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4), **how) for one in (channels, channels // 2))
    model = flat(3 * size**2 if size else 90)
    result = fedlada.simulate(model, train, test=test, method="fedavg", rounds=1, lr=0.1, out=tmp_path)
    for one in (result, fedlada.load_run(tmp_path, model)):
        expected = one.evaluate(test)
        assert expected["loss"] == pytest.approx(result.history[-1]["test_loss"], rel=1e-6)
        for x in (channels // 2, np.moveaxis(channels // 2, 1, 3)):
            assert one.evaluate((x, Y)) == expected
        with pytest.raises(ValueError, match=r"give bytes, or floats that are scaled already to fedlada\.evaluate\("):
            one.evaluate((channels / 255, Y))
    with pytest.raises(ValueError, match=r"was made from Python: give evaluate the data, as in evaluate\(\(x, y\)\)"):
        fedlada.load_run(tmp_path, model).evaluate()


def test_inputs_and_targets_are_one_pair():
    result = run(flat(30), BYTES)
    for ask in (lambda: result.evaluate(BYTES, Y), lambda: fedlada.evaluate(result.model, BYTES, torch.tensor(Y))):
        with pytest.raises(ValueError, match=r"got an array: give data as a pair, \(x, y\)"):
            ask()
