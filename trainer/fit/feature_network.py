"""Fitting of the small networks over the launch features, in torch.

Owns the torch module, its loss and its training loop. The fitted weights are evaluated by numpy
(``trainer/baselines/feature_network.py``); numpy's and torch's results agree to 1e-5 (tested).

A step draws kernels and then launches of each, so that each kernel has equal weight whatever its
number of launches is. The loss is the relative error of the time. For predictions above twice
the measured time, the loss is linear in log2, because otherwise kernels whose loops do not run on
the chosen inputs would dominate.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from llmperf_common.features.features import feature_names, named_features
from trainer.baselines.feature_network import (
    TERM_SCALE_LOG2,
    FeatureNetwork,
    InputScaling,
    Single,
    Weights,
    spread_scale,
)
from trainer.config import FeatureNetworkConfig, FitConfig
from trainer.interface import Codes, FitData, Floats, Progress

_TERM_BIAS = (-0.6, 0.2)
"""Initial biases of the first and last term: different, so that the terms learn different laws."""
_SLOPE_BEYOND_TWICE = 2 * float(np.log(2))
"""Slope of the loss, per unit of log2, for predictions above twice the measured time. At twice the
measured time the relative error has the same slope."""
_SPREAD_SHARE = 0.05
"""Weight of the spread's negative log-likelihood in the loss. This term changes only the weights of
the spread's output."""
_WARM_UP_STEPS = 100
_LAST_SHARE_OF_RATE = 0.005
_MOST_GRADIENT = 1.0
_BETAS = (0.9, 0.95)


class _Block(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, state: Tensor) -> Tensor:
        inner: Tensor = self.dropout(functional.silu(self.up(self.norm(state))))
        added: Tensor = self.down(inner)
        return state + added


class Network(nn.Module):
    """One network: maps inputs (n, i) to log2(ns) minus the centre, and the spread, (n,) each."""

    def __init__(self, num_inputs: int, config: FeatureNetworkConfig) -> None:
        """Draw the initial weights from torch's generator."""
        super().__init__()
        width, terms = config.width, config.terms
        self.into = nn.Linear(num_inputs, width)
        self.blocks = nn.ModuleList(_Block(width, config.dropout) for _ in range(config.blocks))
        self.last_norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, terms)
        self.spread = nn.Linear(width, 1)
        self.skip = nn.Linear(num_inputs, terms, bias=False)
        nn.init.zeros_(self.skip.weight)
        with torch.no_grad():
            self.out.bias.copy_(torch.from_numpy(np.linspace(*_TERM_BIAS, terms)))

    def of_time(self) -> list[nn.Parameter]:
        """Return the weights that determine the time: all but the spread's."""
        return [
            weight for name, weight in self.named_parameters() if not name.startswith("spread.")
        ]

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return log2(ns) minus the centre, and the spread."""
        state = self.into(inputs)
        for block in self.blocks:
            state = block(state)
        last = self.last_norm(state)
        terms = TERM_SCALE_LOG2 * (self.out(last).float() + self.skip(inputs).float())
        # log2 of a sum of powers of 2, by torch's numerically stable logsumexp.
        log2_ns = torch.logsumexp(terms * float(np.log(2)), dim=-1) / float(np.log(2))
        # Detached: the spread's loss must not change the time, or outliers would shift the time.
        return log2_ns, functional.softplus(self.spread(last.detach())[:, 0].float())


def relative_error_loss(error_log2: Tensor, log_share: float) -> Tensor:
    """Return the loss of each row, shape (n,): the absolute relative error of the predicted time.

    Up to twice the measured time the loss is |predicted / measured - 1|. Beyond that it grows
    linearly in log2(predicted / measured), with the slope that it has at twice the measured time.
    In both ranges ``log_share`` * |``error_log2``| is added.

    Args:
        error_log2: log2(predicted / measured), shape (n,).
        log_share: weight of |``error_log2``|; this term keeps a gradient where the prediction is
            far too short.
    """
    within = (torch.exp2(error_log2.clamp(max=1.0)) - 1).abs()
    beyond = _SLOPE_BEYOND_TWICE * (error_log2 - 1).clamp(min=0.0)
    return within + beyond + log_share * error_log2.abs()


def fit_feature_network(
    data: FitData,
    *,
    fit: FitConfig,
    config: FeatureNetworkConfig,
    progress: Progress,
    names: tuple[str, ...] | None = None,
) -> FeatureNetwork:
    """Fit ``config.networks`` networks that differ in their seed.

    Deterministic for a seed on a CPU with one thread.

    Args:
        data: rows and targets; ``rows.kernel_row`` says which kernel a row belongs to. The
            validation part is used only to scale the spread (the error that the networks expect).
        fit: seed, threads and device.
        config: size and schedule.
        progress: receives a few lines for each network.
        names: the features to use; None: all.

    Raises:
        ValueError: No feature varies.
    """
    names = feature_names() if names is None else names
    scaling = InputScaling.fit(named_features(data.rows.features, names), names)
    inputs = scaling.inputs(named_features(data.rows.features, scaling.names))
    centre = float(np.mean(data.log2_ns))
    device = _device(fit)
    with _threads(fit.num_threads):
        networks = [
            _fitted(
                torch.from_numpy(inputs).to(device),
                torch.from_numpy(data.log2_ns - centre).float().to(device),
                _Draw(data.rows.kernel_row, config, seed=[fit.seed, number]),
                config,
                seed=_torch_seed(fit.seed, number),
                progress=lambda line, number=number: progress(  # type: ignore[misc]
                    f"feature-network {number + 1} of {config.networks}: {line}"
                ),
            )
            for number in range(config.networks)
        ]
    model = FeatureNetwork(
        scaling=scaling,
        weights=weights_of(networks),
        centre_log2_ns=centre,
        spread_scale=1.0,
        chosen={"seed": fit.seed, **config.model_dump(mode="json")},
    )
    return _scaled(model, data)


def _scaled(model: FeatureNetwork, data: FitData) -> FeatureNetwork:
    """Scale the model's spreads so that their mean is the mean error on the validation part."""
    if data.validation is None or data.validation_log2_ns is None:
        return model
    scale = spread_scale(model.predict(data.validation), data.validation_log2_ns)
    return dataclasses.replace(model, spread_scale=scale)


class _Draw:
    """Draws the rows of a step: kernels with equal probability, then launch configs of each."""

    def __init__(self, kernel: Codes, config: FeatureNetworkConfig, *, seed: list[int]) -> None:
        self._generator = np.random.default_rng(seed)
        self._order = np.argsort(kernel, kind="stable")
        _, self._first, self._count = np.unique(
            kernel[self._order], return_index=True, return_counts=True
        )
        self._shape = (config.kernels_per_step, config.configs_per_kernel)

    def step(self) -> Codes:
        chosen = self._generator.integers(0, len(self._first), self._shape[0])[:, None]
        within = (self._generator.random(self._shape) * self._count[chosen]).astype(np.int64)
        return np.asarray(self._order[(self._first[chosen] + within).ravel()])


def _fitted(
    inputs: Tensor,
    target: Tensor,
    draw: _Draw,
    config: FeatureNetworkConfig,
    *,
    seed: int,
    progress: Progress,
) -> Network:
    with torch.random.fork_rng(devices=[inputs.device] if inputs.is_cuda else []):
        torch.manual_seed(seed)
        network = Network(inputs.shape[1], config).to(inputs.device)
        optimiser = torch.optim.AdamW(
            network.parameters(), lr=1.0, weight_decay=config.weight_decay, betas=_BETAS
        )
        network.train()
        for step in range(config.steps):
            for group in optimiser.param_groups:
                group["lr"] = _rate(step, config)
            rows = torch.from_numpy(draw.step()).to(inputs.device)
            given = inputs[rows]
            given = given + config.noise * torch.randn_like(given)
            with torch.autocast(inputs.device.type, torch.bfloat16, enabled=config.bfloat16):
                log2_ns, spread = network(given)
            error = log2_ns - target[rows]
            # Negative log-likelihood of a Laplace distribution; its best width is the mean |error|.
            width = spread.clamp(min=1e-3)
            likelihood = error.detach().abs() / width + torch.log(width)
            loss = relative_error_loss(error, config.log_share) + _SPREAD_SHARE * likelihood
            optimiser.zero_grad(set_to_none=True)
            loss.mean().backward()
            nn.utils.clip_grad_norm_(network.of_time(), _MOST_GRADIENT)
            nn.utils.clip_grad_norm_(network.spread.parameters(), _MOST_GRADIENT)
            optimiser.step()
            if (step + 1) % max(1, config.steps // 4) == 0:
                progress(f"step {step + 1:,} of {config.steps:,}, loss {loss.mean().item():.3f}")
    _round(network)
    return network.eval()


def _rate(step: int, config: FeatureNetworkConfig) -> float:
    """Return the learning rate of a step: linear warm-up, then a cosine down to 0.5 %."""
    warm = min(1.0, (step + 1) / _WARM_UP_STEPS)
    cosine = 0.5 * (1 + float(np.cos(np.pi * step / config.steps)))
    return config.learning_rate * warm * max(_LAST_SHARE_OF_RATE, cosine)


def _round(network: Network) -> None:
    """Round the weights to half precision, in which they are stored."""
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(weight.half().float())


def weights_of(networks: list[Network]) -> Weights:
    """Return the weights of networks of the same shape, in the form that numpy evaluates."""

    def stacked(values: list[Tensor]) -> Single:
        return np.stack([value.detach().cpu().numpy() for value in values])

    def norm(one: nn.LayerNorm) -> Tensor:
        return torch.stack([one.weight, one.bias])

    def blocks(one: Network) -> Iterator[_Block]:
        for block in one.blocks:
            assert isinstance(block, _Block)
            yield block

    return Weights(
        into=stacked([one.into.weight.T for one in networks]),
        into_bias=stacked([one.into.bias for one in networks]),
        norm=stacked([torch.stack([norm(b.norm) for b in blocks(one)]) for one in networks]),
        up=stacked([torch.stack([b.up.weight.T for b in blocks(one)]) for one in networks]),
        up_bias=stacked([torch.stack([b.up.bias for b in blocks(one)]) for one in networks]),
        down=stacked([torch.stack([b.down.weight.T for b in blocks(one)]) for one in networks]),
        down_bias=stacked([torch.stack([b.down.bias for b in blocks(one)]) for one in networks]),
        last_norm=stacked([norm(one.last_norm) for one in networks]),
        out=stacked([torch.cat([one.out.weight, one.spread.weight]).T for one in networks]),
        out_bias=stacked([torch.cat([one.out.bias, one.spread.bias]) for one in networks]),
        skip=stacked([one.skip.weight.T for one in networks]),
    )


def torch_answers(network: Network, inputs: Single) -> tuple[Floats, Floats]:
    """Return the result of ``Weights.answers`` computed by torch in float32; for tests."""
    with torch.inference_mode():
        log2_ns, spread = torch.stack(network(torch.from_numpy(inputs))).double().numpy()
    return log2_ns, spread


def _torch_seed(seed: int, number: int) -> int:
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def _device(fit: FitConfig) -> torch.device:
    if fit.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(fit.device)


@contextlib.contextmanager
def _threads(wanted: int) -> Iterator[None]:
    """Set the number of torch's threads; 0 keeps torch's default."""
    before = torch.get_num_threads()
    torch.set_num_threads(wanted or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
