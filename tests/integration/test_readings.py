"""The readings of the paper: their page has the tables of the archive, and their rules do what their names say."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from fedlada import average

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def readings(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("readings")


def test_page_has_the_tables_of_the_archive(readings):
    assert readings.KEPT.holds(readings.tables(readings.KEPT.archive))


def test_every_run_of_the_list_is_another(readings):
    jobs = readings.plan()
    assert len({readings.identity(job.experiment().to_json()) for job in jobs}) == len(jobs)
    assert len({job.folder for job in jobs}) == len(jobs)


@pytest.mark.parametrize(
    "rule", ["decay in m, not in v", "decay inside alpha", "decay outside g_a", "m corrected for its start"]
)
def test_rule_equals_a_loop_written_out(readings, rule):
    size, steps, clients, lr, alpha, decay = 7, 5, 3, 0.01, 0.1, 0.05
    moments = {"beta1": 0.9, "beta2": 0.99, "v_init": 1e-8}
    hyper = {**moments, "alpha": alpha, "weight_decay": decay, "clip_norm": 1e9}
    method = readings.OtherRule(method="fedlada", dataset="cifar100", hyper=hyper, rule=rule).build_method()
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(size, generator=generator, dtype=torch.float64)
    server = method.init(start)
    x, v, direction = start, torch.full_like(start, 1e-8), torch.zeros_like(start)
    for _ in range(3):
        gradients = torch.randn(clients, steps, size, generator=generator, dtype=torch.float64)
        uploads, deltas, maxima, amended = [], [], [], []
        for client in range(clients):
            local = method.begin(server.broadcast, method.init_kept(start), lr=lr)
            own, m, second, maximum, total = x, 0.0, 0.0, v, 0.0
            for number, gradient in enumerate(gradients[client]):
                local = method.step(local, lambda _, gradient=gradient: gradient)
                second = 0.99 * second + 0.01 * gradient**2
                maximum = torch.maximum(maximum, second)
                m = 0.9 * m + 0.1 * (gradient + (decay * own if rule == "decay in m, not in v" else 0))
                step = m / maximum.sqrt()
                if rule == "m corrected for its start":
                    step = step / (1 - 0.9 ** (number + 1))
                if rule == "decay inside alpha":
                    step = step + decay * own
                step = alpha * step + (1 - alpha) * direction
                total = total + step
                if rule in ("decay outside g_a", "m corrected for its start"):
                    step = step + decay * own
                own = own - lr * step
            uploads.append(method.finish(local, steps)[0])
            deltas.append(x - own)
            maxima.append(maximum)
            amended.append(total / steps)
        server = method.aggregate(server, average(uploads), lr=lr, num_steps=steps, participation=0.1)
        delta, v = torch.stack(deltas).mean(0), torch.stack(maxima).mean(0)
        x = x - delta
        direction = torch.stack(amended).mean(0) if rule == "decay outside g_a" else delta / (lr * steps)
        torch.testing.assert_close(server.params, x, rtol=1e-10, atol=1e-10)
