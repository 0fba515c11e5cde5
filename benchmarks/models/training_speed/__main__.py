"""Training speed compared with the released and a tuned recipe: one device, the same tokens.

* ``python -m benchmarks.models.training_speed prompts --data DIR --out STORE [--kernels 512]
  [--launches 48] [--least-tokens 0] [--seed 0] [--tokenizer FOLDER]``
* ``python -m benchmarks.models.training_speed speed STORE --size 350m [--configs 16 48]
  [--tokens 49152] [--recipes packed released tuned] [--seconds 5] [--out FILE.csv]``
* ``python -m benchmarks.models.training_speed race STORE --size 350m [--seconds 60]
  [--rates 1e-4 3e-4 1e-3] [--out FILE.csv]``

``prompts`` writes compact text prompts of real kernels, which the other commands read; it needs no
GPU. ``speed`` trains random weights with each recipe: *packed* (LLMPerf's), *released* (every
launch padded to 2,048 tokens) and *tuned* (launches of similar length together, padded to multiples
of 64). The two padded recipes are run with several micro-batches. ``race`` trains *tuned* for
``--seconds`` and *packed* for a fifth of that time, from the same weights and at each learning
rate, and writes their validation losses. *packed* wins if its lowest loss is at most that of
*tuned*. Rows are printed, and written to the file, as soon as they are measured.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import torch

from benchmarks.models.training_speed.prompts import write_prompts
from benchmarks.models.training_speed.recipes import SHAPES, Recipe, packed, padded
from benchmarks.models.training_speed.speed import LossAt, Speed, forget, losses_of, speed_of
from trainer.data.dataset import load_data
from trainer.data.token_store import TokenStore, open_token_store
from trainer.fit.ranks import Ranks, join_ranks

_MICRO_BATCHES = {
    "toy": {"released": ((1, False),), "tuned": ((1, False),)},
    "small": {"released": ((16, False),), "tuned": ((64, False),)},
    "350m": {
        "released": ((4, False), (8, False), (16, True)),
        "tuned": ((8, False), (16, False), (32, False)),
    },
    "2b": {
        "released": ((1, False), (2, False), (8, True)),
        "tuned": ((4, False), (8, False), (16, True)),
    },
}
"""Micro-batches of the padded recipes, by size and recipe: launches of 2,048 tokens in a forward
pass, and whether activations are recomputed."""

_RELEASED_LAUNCHES_PER_STEP = 16
"""One GPU's share of the paper's 64 launches per step on four GPUs."""

_SHARE_OF_TIME = 5
"""In a race *tuned* trains this many times as long as *packed*."""

_RECIPES = ("packed", "released", "tuned")

Row = TypeVar("Row", Speed, LossAt)


def main(words: list[str] | None = None) -> int:
    """Run one of the commands."""
    options = _parser().parse_args(words)
    if options.command == "prompts":
        data = load_data(options.data)
        line = write_prompts(
            data,
            options.out,
            kernels=options.kernels,
            launches=options.launches,
            seed=options.seed,
            least_tokens=options.least_tokens,
            tokenizer=options.tokenizer,
        )
        print(line, file=sys.stderr)
        return 0
    store, ranks = open_token_store(options.store), join_ranks("auto")
    run = _speeds if options.command == "speed" else _race
    _write(run(store, ranks, options), options.out)
    return 0


def _speeds(store: TokenStore, ranks: Ranks, options: argparse.Namespace) -> Iterator[Speed]:
    for make in _recipes(store, ranks, options):
        yield from _measured(
            make, lambda recipe: [speed_of(recipe, options.size, ranks, seconds=options.seconds)]
        )


def _recipes(
    store: TokenStore, ranks: Ranks, options: argparse.Namespace
) -> Iterator[Callable[[], Recipe]]:
    size, device = options.size, ranks.device
    for configs in options.configs if "packed" in options.recipes else ():
        yield lambda configs=configs: packed(  # type: ignore[misc]
            store, size, device, configs=configs, tokens=options.tokens
        )
    for name, choices in _MICRO_BATCHES[size].items():
        launches = options.launches_per_step if name == "tuned" else _RELEASED_LAUNCHES_PER_STEP
        for micro_batch, again in choices if name in options.recipes else ():
            yield lambda name=name, micro_batch=micro_batch, again=again, launches=launches: padded(  # type: ignore[misc]
                store,
                size,
                device,
                is_tuned=name == "tuned",
                micro_batch=micro_batch,
                launches_per_step=launches,
                checkpointing=again,
            )


def _race(store: TokenStore, ranks: Ranks, options: argparse.Namespace) -> Iterator[LossAt]:
    size, device = options.size, ranks.device
    for rate in options.rates:
        for is_packed in (True, False):
            seconds = options.seconds / (_SHARE_OF_TIME if is_packed else 1)

            def make(is_packed: bool = is_packed) -> Recipe:
                if is_packed:
                    return packed(
                        store, size, device, configs=options.configs[0], tokens=options.tokens
                    )
                return padded(
                    store,
                    size,
                    device,
                    is_tuned=True,
                    micro_batch=options.micro_batch,
                    launches_per_step=options.launches_per_step,
                )

            yield from _measured(
                make,
                lambda recipe, rate=rate, seconds=seconds: losses_of(  # type: ignore[misc]
                    recipe, size, ranks, learning_rate=rate, seconds=seconds, looks=options.looks
                ),
            )


def _measured(
    make: Callable[[], Recipe], measure: Callable[[Recipe], Iterable[Row]]
) -> Iterator[Row]:
    """Measure one recipe; if it does not fit into the device's memory, report and skip it."""
    recipe = make()
    try:
        yield from measure(recipe)
    except torch.OutOfMemoryError:
        print(f"{recipe.name}, {recipe.setting}: out of device memory", file=sys.stderr)
    finally:
        forget(recipe)


def _write(rows: Iterable[Speed | LossAt], out: Path | None) -> None:
    written = []
    for row in rows:
        written.append(asdict(row))
        print(", ".join(f"{key} {_said(value)}" for key, value in written[-1].items()), flush=True)
        if out is not None:
            with out.open("w", encoding="utf-8", newline="") as file:
                table = csv.DictWriter(file, list(written[0]))
                table.writeheader()
                table.writerows(written)


def _said(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.models.training_speed")
    commands = parser.add_subparsers(dest="command", required=True)
    prompts = commands.add_parser("prompts")
    prompts.add_argument("--data", type=Path, required=True)
    prompts.add_argument("--out", type=Path, required=True)
    prompts.add_argument("--kernels", type=int, default=512)
    prompts.add_argument("--launches", type=int, default=48)
    prompts.add_argument("--seed", type=int, default=0)
    prompts.add_argument(
        "--least-tokens", type=int, default=0, help="minimum length of a kernel's prefix"
    )
    prompts.add_argument("--tokenizer", type=Path, help="folder of a pretrained model")
    for name, seconds in (("speed", 5.0), ("race", 60.0)):
        command = commands.add_parser(name)
        command.add_argument("store", type=Path)
        command.add_argument("--size", choices=list(SHAPES), default="350m")
        command.add_argument("--configs", type=int, nargs="+", default=[16, 48])
        command.add_argument("--tokens", type=int, default=49_152)
        command.add_argument("--launches-per-step", type=int, default=64)
        command.add_argument("--seconds", type=float, default=seconds)
        command.add_argument("--out", type=Path)
        if name == "speed":
            command.add_argument("--recipes", choices=_RECIPES, nargs="+", default=list(_RECIPES))
        if name == "race":
            command.add_argument("--rates", type=float, nargs="+", default=[1e-4, 3e-4, 1e-3])
            command.add_argument("--micro-batch", type=int, default=8)
            command.add_argument("--looks", type=int, default=4)
    return parser


if __name__ == "__main__":
    sys.exit(main())
