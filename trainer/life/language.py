"""Training of a language model: prepare, fit, and make its ``Predictor``.

``preparing.py`` owns the content of ``prepared/``.
"""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from trainer.config import TrainConfig
from trainer.data.dataset import Texts, TrainingData
from trainer.data.foreign_files import reading
from trainer.data.token_store import (
    FACTS_FILE,
    TokenStore,
    check_ids,
    open_token_store,
)
from trainer.fit.checkpoint import load_weights
from trainer.fit.loop import FitPlan, fit
from trainer.fit.ranks import Ranks
from trainer.fit.store_source import store_source
from trainer.interface import FitData, Predictor, Progress
from trainer.life.conductor import Conductor
from trainer.life.identity import Init
from trainer.life.preparing import SPEC_FILE, TOKENS_FOLDER, built, check_prepared, prepare
from trainer.life.prompt_notes import prompt_notes
from trainer.prompt.encode import Encoder
from trainer.registry import load_model
from trainer.regressor.model import Regressor
from trainer.regressor.predictor import OFFSET_FOLDER, PROMPT_FOLDER, RegressorPredictor
from trainer.regressor.spec import RegressorSpec
from trainer.regressor_config import OptimiserConfig
from trainer.run.folder import (
    CONFIG_FILE,
    FIT_FOLDER,
    PREPARED_FOLDER,
    read_json,
)

READ_BACK_FOLDER = "model"

PEAK_FLOPS = 989e12
"""Peak FLOP/s of one NVIDIA H100 or H200 (bf16, dense matrices). MFU is the used share of it."""


def fit_language_model(
    folder: Path,
    data: TrainingData,
    parts: Texts,
    train: FitData,
    config: TrainConfig,
    init: Init | None,
    conductor: Conductor,
    progress: Progress,
) -> tuple[Predictor, list[str]]:
    """Prepare the run if needed, fit it with all processes; return the best model, with notes.

    Raises:
        BadInput: A file of an earlier start's ``prepared/`` was changed, or its token cache cannot
            be written again as it was (see ``prepare``); or it was prepared with other initial
            weights than ``init``.
    """
    weights = None if init is None else init.folder.resolve()
    tokens = folder / PREPARED_FOLDER / TOKENS_FOLDER
    if not (tokens / FACTS_FILE).is_file():
        prepare(folder, data, parts, train, config, init, progress)
    else:
        check_prepared(folder / PREPARED_FOLDER, init)  # once, before the other processes open it
    with conductor.gathered(folder) as ranks:
        best = fit_prepared(folder, ranks, weights, progress, interrupted=conductor.stop.asked)
    return predictor_of(folder, best, config, ranks, weights), prompt_notes(
        read_json(folder / PREPARED_FOLDER / SPEC_FILE)
    )


def fit_prepared(
    folder: Path,
    ranks: Ranks,
    init: Path | None,
    progress: Progress,
    *,
    interrupted: threading.Event | None = None,
) -> Path:
    """Fit the prepared run, or resume its newest checkpoint; all ranks must call it together.

    Args:
        folder: the run.
        ranks: the process group.
        init: the folder of ``--init``; None starts from random weights.
        progress: receives lines about the fit, on rank 0.
        interrupted: event by which another thread ends the fit; signals end it, too.

    Returns:
        The folder of the best checkpoint.

    Raises:
        BadInput: A file in ``prepared/`` is damaged, or the checkpoints were made with other tokens
            than ``prepared/`` holds.
        FitFailed: The loss is not a finite number, or a checkpoint cannot be written.
        Interrupted: A signal ended the fit; the state is saved.
    """
    record = read_json(folder / CONFIG_FILE)
    config = TrainConfig.from_mapping(record["config"])
    store = open_token_store(folder / PREPARED_FOLDER / TOKENS_FOLDER)
    model = initial_model(folder, store, config, init)
    if blocks_are_compiled(ranks.device.type, config.optimiser):
        model.compile_blocks()
    source = store_source(
        store, model.spec, config.packing, seed=config.train.seed, device=ranks.device
    )
    result = fit(
        model,
        FitPlan(
            source=source,
            validation=source.validation(),
            optimiser=config.optimiser,
            checkpoint=config.checkpoint,
            log=config.log,
            folder=folder / FIT_FOLDER,
            identity=record["config_hash"] + record["dataset_id"],
            seed=config.train.seed,
            tokens=store.digest,
            peak_flops=PEAK_FLOPS if ranks.device.type == "cuda" else None,
        ),
        ranks,
        progress=progress,
        interrupted=interrupted,
    )
    return result.best


def blocks_are_compiled(device_type: str, optimiser: OptimiserConfig) -> bool:
    """Return whether a fit compiles the backbone's blocks: on a GPU, except with ZeRO-3.

    ZeRO-3's hooks fetch the weights of the modules in a block, but a compiled block skips hooks.
    """
    return device_type == "cuda" and optimiser.zero_stage < 3


def predictor_of(
    folder: Path, best: Path, config: TrainConfig, ranks: Ranks, init: Path | None
) -> RegressorPredictor:
    """Return the model with a checkpoint's weights; on a GPU, after saving and loading it."""
    prepared = folder / PREPARED_FOLDER
    model = initial_model(folder, open_token_store(prepared / TOKENS_FOLDER), config, init)
    load_weights(best, model)
    offset = read_json(prepared / SPEC_FILE)["offset"]
    fitted = RegressorPredictor(
        model=model.eval(),
        encoder=Encoder.load(prepared / PROMPT_FOLDER),
        packing=config.packing,
        offset=None if offset is None else load_model(offset, prepared / OFFSET_FOLDER),
    )
    return fitted if ranks.device.type == "cpu" else fitted.read_back(prepared / READ_BACK_FOLDER)


def initial_model(
    folder: Path, store: TokenStore, config: TrainConfig, init: Path | None
) -> Regressor:
    """Return the model of a prepared run before its first step.

    Its weights are random, or those of the command's ``--init``. The path of the weights that
    ``prepared/`` records is not opened, because the run may come from an untrusted author. Features
    and target are standardised by the train part.
    """
    prepared = folder / PREPARED_FOLDER
    content = read_json(prepared / SPEC_FILE)
    with reading(f"{prepared / SPEC_FILE}"):
        spec = RegressorSpec.from_json(content["spec"])
    check_ids(store, prepared / TOKENS_FOLDER, vocabulary=spec.vocabulary, num_slots=spec.num_slots)
    model = built(spec, config.train.seed, init)
    rows, targets = store.train_rows, store.targets
    residual = targets.log2_ns[rows].astype(np.float64) - targets.offset_log2_ns[rows]
    if model.spec.feature_names:
        model.head.fit_features(targets.features[rows].astype(np.float64))
    model.head.fit_target(residual, targets.weight[rows].astype(np.float64))
    return model
