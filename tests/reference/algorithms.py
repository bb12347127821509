"""Literal NumPy transcriptions of the published algorithms, in float64, one function each and nothing shared.

Symbols are the papers'. `mean` is (1/S) sum over the active clients; K is the mean of K_i where clients differ; beta is
always the weight of the old moment. Each function gives the list of x^1, ..., x^T. Above it stands its row in the table
of methods: the recipe, vectors down and up, hyperparameters far from the defaults, and variants of them.
"""

from __future__ import annotations

import numpy as np

from fedlada import recipes
from reference.problem import Problem, Vector
from reference.rows import COMMON, MOMENTS, SERVER_ADAM, transcribes


def clip(g: Vector, c: float | None) -> Vector:
    norm = np.sqrt(np.sum(g * g))
    return g if c is None or norm <= c else g * c / norm


def mean(vectors: list[Vector]) -> Vector:
    return sum(vectors) / len(vectors)


def weighted_scaffold(p: Problem, weights: dict[int, float], *, server_lr=1.0) -> list[Vector]:
    """SCAFFOLD with clients weighted by their examples: every mean is weighted, and S/m becomes a share of weight."""
    x, out = p.x0.copy(), []
    c = np.zeros_like(x)
    c_i = [np.zeros_like(x) for _ in range(p.num_clients)]
    for t, spec in enumerate(p.rounds):
        total = sum(weights[i] for i in spec.steps)
        D, change = np.zeros_like(x), np.zeros_like(x)
        for i, K in spec.steps.items():
            xi = x.copy()
            for tau in range(K):
                xi = xi - spec.lr * (p.grad(i, xi, t, tau) + c - c_i[i])
            new = (x - xi) / (K * spec.lr) - (c - c_i[i])
            D += weights[i] / total * (x - xi)
            change += weights[i] / total * (new - c_i[i])
            c_i[i] = new
        x = x - server_lr * D
        c = c + total / sum(weights.values()) * change
        out.append(x)
    return out


def weighted_fedcm(p: Problem, weights: dict[int, float], *, alpha) -> list[Vector]:
    """FedCM with weighted means, of K_i too."""
    x, out = p.x0.copy(), []
    g_a = np.zeros_like(x)
    for t, spec in enumerate(p.rounds):
        total = sum(weights[i] for i in spec.steps)
        D, mean_K = np.zeros_like(x), 0.0
        for i, K in spec.steps.items():
            xi = x.copy()
            for tau in range(K):
                xi = xi - spec.lr * (alpha * p.grad(i, xi, t, tau) + (1 - alpha) * g_a)
            D += weights[i] / total * (x - xi)
            mean_K += weights[i] / total * K
        x = x - D
        g_a = D / (spec.lr * mean_K)
        out.append(x)
    return out


def weighted_fednova(p: Problem, weights: dict[int, float]) -> list[Vector]:
    """FedNova with p_i by the clients' examples: tau_eff = sum_i p_i tau_i."""
    x, out = p.x0.copy(), []
    for t, spec in enumerate(p.rounds):
        total = sum(weights[i] for i in spec.steps)
        tau_eff, normalized = 0.0, np.zeros_like(x)
        for i, tau_i in spec.steps.items():
            xi = x.copy()
            for k in range(tau_i):
                xi = xi - spec.lr * p.grad(i, xi, t, k)
            tau_eff += weights[i] / total * tau_i
            normalized += weights[i] / total * (x - xi) / tau_i
        x = x - tau_eff * normalized
        out.append(x)
    return out


@transcribes(recipes.fedavg, 1, 1, COMMON, ({"clip_norm": None, "weight_decay": 0.0},))
def fedavg(p: Problem, *, server_lr=1.0, weight_decay=0.0, clip_norm=None) -> list[Vector]:
    x, out = p.x0.copy(), []
    for t, spec in enumerate(p.rounds):
        eta_l = spec.lr
        deltas = []
        for i, K in spec.steps.items():
            xi = x.copy()
            for tau in range(K):
                g = clip(p.grad(i, xi, t, tau), clip_norm)
                xi = xi - eta_l * (g + weight_decay * xi)
            deltas.append(x - xi)
        x = x - server_lr * mean(deltas)
        out.append(x)
    return out


@transcribes(recipes.fedprox, 1, 1, {**COMMON, "mu": 0.4})
def fedprox(p: Problem, *, mu, server_lr=1.0, weight_decay=0.0, clip_norm=None) -> list[Vector]:
    x, out = p.x0.copy(), []
    for t, spec in enumerate(p.rounds):
        eta_l = spec.lr
        deltas = []
        for i, K in spec.steps.items():
            xi = x.copy()
            for tau in range(K):
                g = clip(p.grad(i, xi, t, tau) + mu * (xi - x), clip_norm)
                xi = xi - eta_l * (g + weight_decay * xi)
            deltas.append(x - xi)
        x = x - server_lr * mean(deltas)
        out.append(x)
    return out


@transcribes(recipes.scaffold, 2, 2, COMMON, ({"correction": 0.5}, {"correction": 1.5, "clip_norm": None}))
def scaffold(p: Problem, *, correction=1.0, server_lr=1.0, weight_decay=0.0, clip_norm=None) -> list[Vector]:
    x, out, m = p.x0.copy(), [], p.num_clients
    c = np.zeros_like(x)
    c_i = [np.zeros_like(x) for _ in range(m)]
    for t, spec in enumerate(p.rounds):
        eta_l, S = spec.lr, len(spec.steps)
        deltas, changes = [], []
        for i, K in spec.steps.items():
            xi = x.copy()
            for tau in range(K):
                g = clip(p.grad(i, xi, t, tau) + correction * (c - c_i[i]), clip_norm)
                xi = xi - eta_l * (g + weight_decay * xi)
            new = (x - xi) / (K * eta_l) - correction * (c - c_i[i])
            deltas.append(x - xi)
            changes.append(new - c_i[i])
            c_i[i] = new
        x = x - server_lr * mean(deltas)
        c = c + (S / m) * mean(changes)
        out.append(x)
    return out


@transcribes(recipes.fedcm, 2, 1, {**COMMON, "alpha": 0.3})
def fedcm(p: Problem, *, alpha, server_lr=1.0, weight_decay=0.0, clip_norm=None) -> list[Vector]:
    x, out = p.x0.copy(), []
    g_a = np.zeros_like(x)
    for t, spec in enumerate(p.rounds):
        eta_l = spec.lr
        deltas = []
        for i, K in spec.steps.items():
            xi = x.copy()
            for tau in range(K):
                g = clip(alpha * p.grad(i, xi, t, tau) + (1 - alpha) * g_a, clip_norm)
                xi = xi - eta_l * (g + weight_decay * xi)
            deltas.append(x - xi)
        x_new = x - server_lr * mean(deltas)
        g_a = (x - x_new) / (server_lr * eta_l * np.mean(list(spec.steps.values())))
        x = x_new
        out.append(x)
    return out


@transcribes(recipes.fedadam, 1, 1, SERVER_ADAM)
def fedadam(
    p: Problem, *, beta1=0.9, beta2=0.99, tau=1e-2, server_lr=0.1, weight_decay=0.0, clip_norm=None
) -> list[Vector]:
    x, out = p.x0.copy(), []
    M, V = np.zeros_like(x), np.zeros_like(x)
    for t, spec in enumerate(p.rounds):
        eta_l = spec.lr
        deltas = []
        for i, K in spec.steps.items():
            xi = x.copy()
            for k in range(K):
                g = clip(p.grad(i, xi, t, k), clip_norm)
                xi = xi - eta_l * (g + weight_decay * xi)
            deltas.append(x - xi)
        D = mean(deltas)
        M = beta1 * M + (1 - beta1) * D
        V = beta2 * V + (1 - beta2) * D * D
        x = x - server_lr * M / (np.sqrt(V) + tau)
        out.append(x)
    return out


@transcribes(recipes.fedadam_amended, 2, 1, {**SERVER_ADAM, "alpha": 0.3})
def fedadam_amended(
    p: Problem, *, alpha, beta1=0.9, beta2=0.99, tau=1e-2, server_lr=0.1, weight_decay=0.0, clip_norm=None
) -> list[Vector]:
    x, out = p.x0.copy(), []
    M, V, g_a = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
    for t, spec in enumerate(p.rounds):
        eta_l = spec.lr
        deltas = []
        for i, K in spec.steps.items():
            xi = x.copy()
            for k in range(K):
                g = clip(alpha * p.grad(i, xi, t, k) + (1 - alpha) * g_a, clip_norm)
                xi = xi - eta_l * (g + weight_decay * xi)
            deltas.append(x - xi)
        D = mean(deltas)
        M = beta1 * M + (1 - beta1) * D
        V = beta2 * V + (1 - beta2) * D * D
        x = x - server_lr * M / (np.sqrt(V) + tau)
        g_a = D / (eta_l * np.mean(list(spec.steps.values())))
        out.append(x)
    return out


@transcribes(
    recipes.localadam,
    2,
    2,
    {**COMMON, **MOMENTS},
    (
        {"v_start": "server"},
        {"bias_correction": True},
        {"bias_correction": True, "v_start": "server"},
        {"bias_correction": True, "beta1": 0.0},
        {"second_moment": "reset"},
        {"maximum": False, "v_start": "server"},
        {"power": 0.125},
        {"maximum": False, "second_moment": "reset", "bias_correction": True, "v_init": 1e-16},
        {"decoupled": True},
    ),
)
def localadam(
    p: Problem,
    *,
    beta1=0.9,
    beta2=0.99,
    v_init=1e-8,
    v_start="zero",
    maximum=True,
    bias_correction=False,
    power=0.5,
    second_moment="averaged",
    server_lr=1.0,
    weight_decay=0.0,
    decoupled=False,
    clip_norm=None,
) -> list[Vector]:
    x, out = p.x0.copy(), []
    v_server = np.full_like(x, v_init)
    for t, spec in enumerate(p.rounds):
        eta_l = spec.lr
        deltas, v_hats = [], []
        for i, K in spec.steps.items():
            xi = x.copy()
            m_i = np.zeros_like(x)
            v_hat = v_server.copy()
            v_i = np.zeros_like(x) if v_start == "zero" else v_server.copy()
            for tau in range(1, K + 1):
                g = clip(p.grad(i, xi, t, tau - 1), clip_norm)
                if not decoupled:
                    g = g + weight_decay * xi
                m_i = beta1 * m_i + (1 - beta1) * g
                v_i = beta2 * v_i + (1 - beta2) * g * g
                m_used, v_used = m_i, v_i
                if bias_correction:
                    m_used = m_i / (1 - beta1**tau)
                    v_used = v_i / (1 - beta2**tau) if v_start == "zero" else v_i
                v_hat = np.maximum(v_used, v_hat) if maximum else np.maximum(v_used, v_init)
                direction = m_used / (np.sqrt(v_hat) if power == 0.5 else v_hat**power)
                if decoupled:
                    direction = direction + weight_decay * xi
                xi = xi - eta_l * direction
            deltas.append(x - xi)
            v_hats.append(v_hat)
        x = x - server_lr * mean(deltas)
        if second_moment == "averaged":
            v_server = mean(v_hats)
        out.append(x)
    return out


@transcribes(
    recipes.fedlada,
    3,
    2,
    {**COMMON, **MOMENTS, "alpha": 0.3},
    (
        {"v_start": "server"},
        {"decoupled": True},
        {"v_init": 1e-16, "alpha": 0.05},
        {"beta1": 0.0},
        {"beta1": 0.0, "power": 0.25},
    ),
)
def fedlada(
    p: Problem,
    *,
    alpha,
    beta1=0.9,
    beta2=0.99,
    v_init=1e-8,
    v_start="zero",
    power=0.5,
    server_lr=1.0,
    weight_decay=0.0,
    decoupled=False,
    clip_norm=None,
) -> list[Vector]:
    """Algorithm 3, line by line."""
    x, out = p.x0.copy(), []
    g_a = np.zeros_like(x)
    v = np.full_like(x, v_init)
    for t, spec in enumerate(p.rounds):
        eta_l, S = spec.lr, len(spec.steps)
        x_K, v_hat_K = {}, {}
        for i, K in spec.steps.items():
            x_i, m_i, v_hat = x.copy(), np.zeros_like(x), v.copy()
            v_i = np.zeros_like(x) if v_start == "zero" else v.copy()
            for tau in range(K):
                g = clip(p.grad(i, x_i, t, tau), clip_norm)
                if not decoupled:
                    g = g + weight_decay * x_i
                m_i = beta1 * m_i + (1 - beta1) * g
                v_i = beta2 * v_i + (1 - beta2) * g * g
                v_hat = np.maximum(v_i, v_hat)
                theta = 1 / (np.sqrt(v_hat) if power == 0.5 else v_hat**power)
                step = alpha * m_i * theta + (1 - alpha) * g_a
                if decoupled:
                    step = step + weight_decay * x_i
                x_i = x_i - eta_l * step
            x_K[i], v_hat_K[i] = x_i, v_hat
        v = sum(v_hat_K.values()) / S
        x_next = x - server_lr * sum(x - x_i for x_i in x_K.values()) / S
        mean_K = sum(spec.steps.values()) / S
        g_a = (x - x_next) / (server_lr * eta_l * mean_K)
        x = x_next
        out.append(x)
    return out


@transcribes(recipes.feddyn, 1, 1, {"mu": 0.4, "weight_decay": 0.02, "clip_norm": 2.5}, ({"clip_pull": False},))
def feddyn(p: Problem, *, mu, clip_pull=True, weight_decay=0.0, clip_norm=None) -> list[Vector]:
    """Acar et al. 2021, Algorithm 1, with h_i = grad L_i(theta_i) / mu and h = mean of all h_i, signs of the sums."""
    x, out = p.x0.copy(), []
    h_i = [np.zeros_like(x) for _ in range(p.num_clients)]
    for t, spec in enumerate(p.rounds):
        x_K = {}
        for i, K in spec.steps.items():
            x_i = x.copy()
            for tau in range(K):
                if clip_pull:
                    g = clip(p.grad(i, x_i, t, tau) + mu * (x_i - x) + mu * h_i[i], clip_norm)
                else:  # as the authors' simulator: mu x is its weight decay
                    g = clip(p.grad(i, x_i, t, tau) + mu * (h_i[i] - x), clip_norm) + mu * x_i
                x_i = x_i - spec.lr * (g + weight_decay * x_i)
            x_K[i] = x_i
            h_i[i] = h_i[i] + (x_i - x)
        x = mean(list(x_K.values())) + sum(h_i) / p.num_clients
        out.append(x)
    return out


@transcribes(recipes.fedsam, 1, 1, {**COMMON, "rho": 0.2})
def fedsam(p: Problem, *, rho, server_lr=1.0, weight_decay=0.0, clip_norm=None) -> list[Vector]:
    """Qu et al. 2022, Algorithm 1: the gradient at the top of the ball, on the same batch."""
    x, out = p.x0.copy(), []
    for t, spec in enumerate(p.rounds):
        deltas = []
        for i, K in spec.steps.items():
            x_i = x.copy()
            for tau in range(K):
                g = p.grad(i, x_i, t, tau)
                uphill = x_i + rho * g / (np.sqrt(np.sum(g * g)) + 1e-7)
                x_i = x_i - spec.lr * (clip(p.grad(i, uphill, t, tau), clip_norm) + weight_decay * x_i)
            deltas.append(x - x_i)
        x = x - server_lr * mean(deltas)
        out.append(x)
    return out


@transcribes(recipes.fedexp, 1, 1, {"eps": 0.05, "weight_decay": 0.02, "clip_norm": 2.5})
def fedexp(p: Problem, *, eps, weight_decay=0.0, clip_norm=None) -> list[Vector]:
    """Jhunjhunwala et al. 2023, Algorithm 1: the server's step grows as the clients' updates point apart."""
    x, out = p.x0.copy(), []
    for t, spec in enumerate(p.rounds):
        deltas = []
        for i, K in spec.steps.items():
            x_i = x.copy()
            for tau in range(K):
                x_i = x_i - spec.lr * (clip(p.grad(i, x_i, t, tau), clip_norm) + weight_decay * x_i)
            deltas.append(x - x_i)
        D = mean(deltas)
        eta_g = max(1.0, sum(np.sum(d * d) for d in deltas) / (2 * len(deltas) * (np.sum(D * D) + eps)))
        x = x - eta_g * D
        out.append(x)
    return out


@transcribes(recipes.fedavgm, 1, 1, {**COMMON, "momentum": 0.8})
def fedavgm(p: Problem, *, momentum, server_lr=1.0, weight_decay=0.0, clip_norm=None) -> list[Vector]:
    """Hsu et al. 2019: v = momentum v + D; x = x - eta_g v."""
    x, out = p.x0.copy(), []
    v = np.zeros_like(x)
    for t, spec in enumerate(p.rounds):
        deltas = []
        for i, K in spec.steps.items():
            x_i = x.copy()
            for tau in range(K):
                x_i = x_i - spec.lr * (clip(p.grad(i, x_i, t, tau), clip_norm) + weight_decay * x_i)
            deltas.append(x - x_i)
        v = momentum * v + mean(deltas)
        x = x - server_lr * v
        out.append(x)
    return out


@transcribes(recipes.fedadagrad, 1, 1, {"tau": 0.03, "server_lr": 0.05, "weight_decay": 0.02, "clip_norm": 2.5})
def fedadagrad(p: Problem, *, tau, server_lr, weight_decay=0.0, clip_norm=None) -> list[Vector]:
    """Reddi et al. 2021, Algorithm 2, FedAdagrad, with v_{-1} = 0 and beta_1 = 0."""
    x, out = p.x0.copy(), []
    v = np.zeros_like(x)
    for t, spec in enumerate(p.rounds):
        deltas = []
        for i, K in spec.steps.items():
            x_i = x.copy()
            for k in range(K):
                x_i = x_i - spec.lr * (clip(p.grad(i, x_i, t, k), clip_norm) + weight_decay * x_i)
            deltas.append(x_i - x)
        Delta = mean(deltas)
        v = v + Delta**2
        x = x + server_lr * Delta / (np.sqrt(v) + tau)
        out.append(x)
    return out


@transcribes(recipes.fedyogi, 1, 1, SERVER_ADAM)
def fedyogi(
    p: Problem, *, beta1=0.9, beta2=0.99, tau=1e-2, server_lr=0.1, weight_decay=0.0, clip_norm=None
) -> list[Vector]:
    """Reddi et al. 2021, Algorithm 2, FedYogi, with m_{-1} = v_{-1} = 0."""
    x, out = p.x0.copy(), []
    m, v = np.zeros_like(x), np.zeros_like(x)
    for t, spec in enumerate(p.rounds):
        deltas = []
        for i, K in spec.steps.items():
            x_i = x.copy()
            for k in range(K):
                x_i = x_i - spec.lr * (clip(p.grad(i, x_i, t, k), clip_norm) + weight_decay * x_i)
            deltas.append(x_i - x)
        Delta = mean(deltas)
        m = beta1 * m + (1 - beta1) * Delta
        v = v - (1 - beta2) * Delta**2 * np.sign(v - Delta**2)
        x = x + server_lr * m / (np.sqrt(v) + tau)
        out.append(x)
    return out


def uphill(g: Vector, rho: float) -> Vector:
    return rho * g / (np.sqrt(np.sum(g * g)) + 1e-7)


@transcribes(recipes.mofedsam, 2, 1, {**COMMON, "rho": 0.2, "alpha": 0.3})
def mofedsam(p: Problem, *, rho, alpha, server_lr=1.0, weight_decay=0.0, clip_norm=None) -> list[Vector]:
    """Qu et al. 2022, Algorithm 2: beta of the paper is alpha, Delta^r is g_a."""
    x, out = p.x0.copy(), []
    g_a = np.zeros_like(x)
    for t, spec in enumerate(p.rounds):
        deltas = []
        for i, K in spec.steps.items():
            x_i = x.copy()
            for tau in range(K):
                top = x_i + uphill(p.grad(i, x_i, t, tau), rho)
                v = alpha * p.grad(i, top, t, tau) + (1 - alpha) * g_a
                x_i = x_i - spec.lr * (clip(v, clip_norm) + weight_decay * x_i)
            deltas.append(x - x_i)
        D = mean(deltas)
        x = x - server_lr * D
        g_a = D / (spec.lr * np.mean(list(spec.steps.values())))
        out.append(x)
    return out


@transcribes(recipes.fedgamma, 2, 2, {**COMMON, "rho": 0.2}, ({"correction": 0.5},))
def fedgamma(p: Problem, *, rho, correction=1.0, server_lr=1.0, weight_decay=0.0, clip_norm=None) -> list[Vector]:
    """Dai et al. 2023: SCAFFOLD (option II) on the gradients of SAM."""
    x, out, m = p.x0.copy(), [], p.num_clients
    c = np.zeros_like(x)
    c_i = [np.zeros_like(x) for _ in range(m)]
    for t, spec in enumerate(p.rounds):
        deltas, changes = [], []
        for i, K in spec.steps.items():
            x_i = x.copy()
            for tau in range(K):
                g = p.grad(i, x_i + uphill(p.grad(i, x_i, t, tau), rho), t, tau)
                g = clip(g + correction * (c - c_i[i]), clip_norm)
                x_i = x_i - spec.lr * (g + weight_decay * x_i)
            new = (x - x_i) / (K * spec.lr) - correction * (c - c_i[i])
            deltas.append(x - x_i)
            changes.append(new - c_i[i])
            c_i[i] = new
        x = x - server_lr * mean(deltas)
        c = c + sum(changes) / m
        out.append(x)
    return out


DYNAMIC = {"mu": 0.4, "weight_decay": 0.02, "clip_norm": 2.5}


@transcribes(recipes.fedspeed, 1, 1, {**DYNAMIC, "rho": 0.2}, ({"clip_pull": False},))
def fedspeed(p: Problem, *, rho, mu, clip_pull=True, weight_decay=0.0, clip_norm=None) -> list[Vector]:
    """Sun et al. 2023, FedSpeed, Algorithm 1, as the authors' simulator has it: the full step uphill (gamma 1)."""
    x, out = p.x0.copy(), []
    h_i = [np.zeros_like(x) for _ in range(p.num_clients)]
    for t, spec in enumerate(p.rounds):
        x_K = {}
        for i, K in spec.steps.items():
            x_i = x.copy()
            for tau in range(K):
                g = p.grad(i, x_i + uphill(p.grad(i, x_i, t, tau), rho), t, tau)
                if clip_pull:
                    g = clip(g + mu * (x_i - x + h_i[i]), clip_norm)
                else:
                    g = clip(g + mu * (h_i[i] - x), clip_norm) + mu * x_i
                x_i = x_i - spec.lr * (g + weight_decay * x_i)
            x_K[i] = x_i
            h_i[i] = h_i[i] + (x_i - x)
        x = mean(list(x_K.values())) + sum(h_i) / p.num_clients
        out.append(x)
    return out


@transcribes(recipes.fedsmoo, 2, 2, {**DYNAMIC, "rho": 0.2}, ({"clip_pull": False},))
def fedsmoo(p: Problem, *, rho, mu, clip_pull=True, weight_decay=0.0, clip_norm=None) -> list[Vector]:
    """Sun et al. 2023, Dynamic Regularized SAM, as the authors' simulator has it; u_i is its mu_i, s its s."""
    x, out = p.x0.copy(), []
    h_i = [np.zeros_like(x) for _ in range(p.num_clients)]
    u_i = [np.zeros_like(x) for _ in range(p.num_clients)]
    s = np.zeros_like(x)
    for t, spec in enumerate(p.rounds):
        x_K = {}
        for i, K in spec.steps.items():
            x_i = x.copy()
            for tau in range(K):
                e = uphill(p.grad(i, x_i, t, tau) - u_i[i] - s, rho)
                u_i[i] = u_i[i] + e - s
                g = p.grad(i, x_i + e, t, tau)
                if clip_pull:
                    g = clip(g + mu * (x_i - x + h_i[i]), clip_norm)
                else:
                    g = clip(g + mu * (h_i[i] - x), clip_norm) + mu * x_i
                x_i = x_i - spec.lr * (g + weight_decay * x_i)
            x_K[i] = x_i
            h_i[i] = h_i[i] + (x_i - x)
        s = uphill(mean([u_i[i] for i in spec.steps]), rho)
        x = mean(list(x_K.values())) + sum(h_i) / p.num_clients
        out.append(x)
    return out


@transcribes(recipes.fedlesam, 2, 1, {**COMMON, "rho": 0.2})
def fedlesam(p: Problem, *, rho, server_lr=1.0, weight_decay=0.0, clip_norm=None) -> list[Vector]:
    """Fan et al. 2024, Algorithm 1, as the authors' code has it: the perturbation points from x^t to x^{t-1} for all.

    There is none in the first round.
    """
    x, out = p.x0.copy(), []
    D = np.zeros_like(x)
    for t, spec in enumerate(p.rounds):
        deltas = []
        e = uphill(D, rho)
        for i, K in spec.steps.items():
            x_i = x.copy()
            for tau in range(K):
                x_i = x_i - spec.lr * (clip(p.grad(i, x_i + e, t, tau), clip_norm) + weight_decay * x_i)
            deltas.append(x - x_i)
        D = mean(deltas)
        x = x - server_lr * D
        out.append(x)
    return out


@transcribes(
    recipes.fedlada_sam,
    3,
    2,
    {**COMMON, **MOMENTS, "alpha": 0.3, "rho": 0.2},
    ({"decoupled": True, "beta1": 0.0, "power": 0.25},),
)
def fedlada_sam(
    p: Problem,
    *,
    rho,
    alpha,
    beta1=0.9,
    beta2=0.99,
    v_init=1e-8,
    power=0.5,
    server_lr=1.0,
    weight_decay=0.0,
    decoupled=False,
    clip_norm=None,
) -> list[Vector]:
    """FedLADA's Algorithm 3 with g taken at x + rho g(x) / ||g(x)||."""
    x, out = p.x0.copy(), []
    g_a = np.zeros_like(x)
    v = np.full_like(x, v_init)
    for t, spec in enumerate(p.rounds):
        x_K, v_hat_K = [], []
        for i, K in spec.steps.items():
            x_i, m_i, v_i, v_hat = x.copy(), np.zeros_like(x), np.zeros_like(x), v.copy()
            for tau in range(K):
                g = clip(p.grad(i, x_i + uphill(p.grad(i, x_i, t, tau), rho), t, tau), clip_norm)
                if not decoupled:
                    g = g + weight_decay * x_i
                m_i = beta1 * m_i + (1 - beta1) * g
                v_i = beta2 * v_i + (1 - beta2) * g * g
                v_hat = np.maximum(v_i, v_hat)
                step = alpha * m_i / (np.sqrt(v_hat) if power == 0.5 else v_hat**power) + (1 - alpha) * g_a
                if decoupled:
                    step = step + weight_decay * x_i
                x_i = x_i - spec.lr * step
            x_K.append(x_i)
            v_hat_K.append(v_hat)
        v, D = mean(v_hat_K), x - mean(x_K)
        x = x - server_lr * D
        g_a = D / (spec.lr * np.mean(list(spec.steps.values())))
        out.append(x)
    return out


@transcribes(recipes.fednova, 1, 1, COMMON, ({"clip_norm": None, "weight_decay": 0.0},))
def fednova(p: Problem, *, server_lr=1.0, weight_decay=0.0, clip_norm=None) -> list[Vector]:
    """Wang et al. 2020, with a_i all ones, as of plain SGD: ||a_i||_1 = tau_i. Their d_i has no eta_l inside."""
    x, out = p.x0.copy(), []
    for t, spec in enumerate(p.rounds):
        d, p_i = {}, 1 / len(spec.steps)
        for i, tau_i in spec.steps.items():
            x_i, gradients = x.copy(), []
            for k in range(tau_i):
                gradients.append(clip(p.grad(i, x_i, t, k), clip_norm) + weight_decay * x_i)
                x_i = x_i - spec.lr * gradients[-1]
            d[i] = sum(gradients) / tau_i
        tau_eff = sum(p_i * tau_i for tau_i in spec.steps.values())
        x = x - server_lr * tau_eff * sum(p_i * spec.lr * d_i for d_i in d.values())
        out.append(x)
    return out
