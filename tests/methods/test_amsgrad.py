"""AMSGrad in float32."""

from __future__ import annotations

import torch

from fedlada import recipes
from fedlada.methods.local.amsgrad import _sum_of_weights


def test_bias_correction_keeps_its_digits_near_one():
    tau = torch.tensor([1.0, 3.0, 200.0])
    for beta in (0.9, 0.999, 0.99999, 1 - 1e-7):
        exact = torch.tensor([1 - beta**steps for steps in (1, 3, 200)], dtype=torch.float64)
        torch.testing.assert_close(_sum_of_weights(beta, tau).double(), exact, rtol=1e-6, atol=0)
    assert _sum_of_weights(0.0, tau).tolist() == [1, 1, 1]


def test_without_weight_of_the_old_second_moment_the_steps_are_signs():
    method = recipes.localadam(
        beta1=0.0, beta2=0.0, bias_correction=True, second_moment="reset", maximum=False, v_init=2.0**-126
    )
    params = torch.zeros(3)
    local = method.begin(method.init(params).broadcast, method.init_kept(params), lr=1.0)
    moved = method.step(local, lambda _: torch.tensor([1e-3, -2.0, 30.0])).params
    torch.testing.assert_close(moved, torch.tensor([-1.0, 1.0, -1.0]))
