"""Training of a language model: prepare, fit, and make its ``Predictor``.

Owns the content of ``prepared/``, which is written before the first step. A resumed fit and all
other processes read it. If its token cache was removed, the next start writes ``prepared/`` again.

::

    RUN/prepared/
      regressor.json   spec of the regressor; bytes and sha256 of the token store's files
      tokens/          the token store of the train and validation rows
      prompt/          form of the prompt, and tokenizer
      offset/          the model that the regressor corrects, if any
      model/           the fitted model during publishing, if it predicts on a GPU
"""

from __future__ import annotations

import dataclasses
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np

from llmperf_common.features.features import feature_names
from llmperf_common.statistics.splits import Part
from trainer.config import TrainConfig
from trainer.data.dataset import Texts, TrainingData
from trainer.data.foreign_files import reading
from trainer.data.token_store import (
    FACTS_FILE,
    Targets,
    TokenStore,
    check_ids,
    open_token_store,
    write_token_store,
)
from trainer.errors import BadInput
from trainer.fit.checkpoint import load_weights
from trainer.fit.loop import FitPlan, fit
from trainer.fit.ranks import Ranks
from trainer.fit.store_source import store_source
from trainer.interface import FitData, Predictor, Progress
from trainer.life.conductor import Conductor
from trainer.life.identity import Init
from trainer.life.offset import fitted_offset
from trainer.life.prompt_notes import prompt_notes, said_of_prompts
from trainer.prompt.encode import Encoder, new_encoder
from trainer.prompt.numeric import NUM_SLOTS
from trainer.prompt.prompt_statistics import prompt_statistics
from trainer.registry import load_model
from trainer.regressor.backbones.codegen import codegen_config
from trainer.regressor.model import Regressor, build_regressor
from trainer.regressor.predictor import OFFSET_FOLDER, PROMPT_FOLDER, RegressorPredictor
from trainer.regressor.spec import RegressorSpec
from trainer.regressor.weights import build_pretrained, read_backbone_config
from trainer.regressor_config import OptimiserConfig, RegressorConfig
from trainer.run.folder import (
    CONFIG_FILE,
    FIT_FOLDER,
    PREPARED_FOLDER,
    PREPARING_FOLDER,
    read_json,
    write_json,
)

SPEC_FILE = "regressor.json"
TOKENS_FOLDER = "tokens"
READ_BACK_FOLDER = "model"

_ROTARY_DIMS = 64
"""Number of rotated dimensions of a head, as in the published models. A head that has no more
dimensions than this rotates half as many."""

PEAK_FLOPS = 989e12
"""Peak FLOP/s of one NVIDIA H100 or H200 in bf16, dense: the reference of MFU."""


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
        BadInput: The token cache of an earlier start was changed, or cannot be written again as it
            was (see ``prepare``).
    """
    tokens = folder / PREPARED_FOLDER / TOKENS_FOLDER
    if not (tokens / FACTS_FILE).is_file():
        prepare(folder, data, parts, train, config, init, progress)
    else:
        if init is not None:
            _moved(folder / PREPARED_FOLDER / SPEC_FILE, init)
        open_token_store(tokens, check_content=True)  # once, before the other processes open it
    with conductor.gathered(folder) as ranks:
        best = fit_prepared(folder, ranks, progress, interrupted=conductor.stop.asked)
    return predictor_of(folder, best, config, ranks), prompt_notes(
        read_json(folder / PREPARED_FOLDER / SPEC_FILE)
    )


def _moved(file: Path, init: Init) -> None:
    """Record the current path of the checkpoint, which may have moved since the first start."""
    content, place = read_json(file), str(init.folder.resolve())
    if content["init"] != place:
        write_json(file, content | {"init": place})


def prepare(
    folder: Path,
    data: TrainingData,
    parts: Texts,
    train: FitData,
    config: TrainConfig,
    init: Init | None,
    progress: Progress,
) -> None:
    """Write ``prepared/``, atomically; one without a token cache is replaced by its equal.

    Raises:
        BadInput: A kernel's source is missing, no prompt fits, or the checkpoint cannot be used; or
            the replaced ``prepared/`` had other tokens.
    """
    temporary, prepared = folder / PREPARING_FOLDER, folder / PREPARED_FOLDER
    shutil.rmtree(temporary, ignore_errors=True)  # written by a process that was killed here
    temporary.mkdir()
    try:
        _write_prepared(temporary, data, parts, train, config, init, progress)
        if prepared.exists():
            _check_same(prepared / SPEC_FILE, temporary / SPEC_FILE)
            shutil.rmtree(prepared)
        temporary.rename(prepared)
    finally:
        if temporary.exists():
            shutil.rmtree(temporary)


def _check_same(before: Path, now: Path) -> None:
    """Check that data was prepared as before, because the checkpoints belong to those tokens."""
    if not before.exists():
        return
    old, new = read_json(before), read_json(now)
    names = [name for name in new.keys() & old.keys() if name != "init" and new[name] != old[name]]
    if names:
        raise BadInput(
            f"{before.parent}: the token cache was removed, and what is written now differs from "
            f"what the run began with ({', '.join(sorted(names))}; another version of LLMPerf or "
            "of a library may have written that): name a new folder for the run"
        )


def _write_prepared(
    place: Path,
    data: TrainingData,
    parts: Texts,
    train: FitData,
    config: TrainConfig,
    init: Init | None,
    progress: Progress,
) -> None:
    """Write the files of ``prepared/`` to the folder ``place``."""
    encoder = new_encoder(train.rows, config.prompt, None if init is None else init.folder)
    train_rows = np.flatnonzero(parts == Part.TRAIN)
    offset, offset_log2_ns = fitted_offset(config, data, train_rows, train, progress)
    if offset is not None:
        (place / OFFSET_FOLDER).mkdir()
        offset.save(place / OFFSET_FOLDER)
    index = np.flatnonzero(
        (parts == Part.TRAIN) | ((parts == Part.VALIDATION) & data.single_launch)
    )
    encoded = encoder.encode(data.rows.take(index))
    statistics = prompt_statistics(encoded)
    progress(said_of_prompts(statistics))
    index = index[encoded.kept]
    is_train = parts[index] == Part.TRAIN
    if not is_train.any():
        raise BadInput(
            "no launch of the train part fits into "
            f"prompt.max_tokens = {config.prompt.max_tokens}: raise this number, or give --set "
            "prompt.too_long=truncate"
        )
    weight = np.ones(len(index))
    weight[is_train] = train.weight[np.isin(train_rows, index)]
    _, family = np.unique(data.family_id[index], return_inverse=True)
    targets = Targets(
        features=data.rows.features[index],
        log2_ns=data.log2_ns[index],
        offset_log2_ns=offset_log2_ns[index],
        weight=weight,
        is_validation=~is_train,
        family=family,
    )
    write_token_store(place / TOKENS_FOLDER, tokens=encoded.tokens, targets=targets)
    (place / PROMPT_FOLDER).mkdir()
    encoder.save(place / PROMPT_FOLDER)
    spec = _spec(encoder, config, init)
    weights = None if init is None else init.folder.resolve()
    if weights is not None:
        # rejects an unusable checkpoint before the first step
        _built(spec, config.train.seed, weights)
    content: dict[str, Any] = {
        "spec": spec.to_json(),
        "init": None if weights is None else str(weights),
        "offset": offset.name if offset else None,
        "prompts": dataclasses.asdict(statistics),
        "tokens": read_json(place / TOKENS_FOLDER / FACTS_FILE)["files"],
    }
    write_json(place / SPEC_FILE, content)


def fit_prepared(
    folder: Path, ranks: Ranks, progress: Progress, *, interrupted: threading.Event | None = None
) -> Path:
    """Fit the prepared run, or resume its newest checkpoint; all ranks must call it together.

    Args:
        folder: the run.
        ranks: the process group.
        progress: receives lines about the fit, on rank 0.
        interrupted: event by which another thread ends the fit; signals end it, too.

    Returns:
        The folder of the best checkpoint.

    Raises:
        BadInput: A file in ``prepared/`` is damaged.
        FitFailed: The loss is not a finite number, or a checkpoint cannot be written.
        Interrupted: A signal ended the fit; the state is saved.
    """
    record = read_json(folder / CONFIG_FILE)
    config = TrainConfig.from_mapping(record["config"])
    store = open_token_store(folder / PREPARED_FOLDER / TOKENS_FOLDER)
    model = initial_model(folder, store, config)
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


def predictor_of(folder: Path, best: Path, config: TrainConfig, ranks: Ranks) -> RegressorPredictor:
    """Return the model with a checkpoint's weights; on a GPU, after saving and loading it."""
    prepared = folder / PREPARED_FOLDER
    model = initial_model(folder, open_token_store(prepared / TOKENS_FOLDER), config)
    load_weights(best, model)
    offset = read_json(prepared / SPEC_FILE)["offset"]
    fitted = RegressorPredictor(
        model=model.eval(),
        encoder=Encoder.load(prepared / PROMPT_FOLDER),
        packing=config.packing,
        offset=None if offset is None else load_model(offset, prepared / OFFSET_FOLDER),
    )
    return fitted if ranks.device.type == "cpu" else fitted.read_back(prepared / READ_BACK_FOLDER)


def initial_model(folder: Path, store: TokenStore, config: TrainConfig) -> Regressor:
    """Return the model of a prepared run before its first step.

    Its weights are random, or those of ``--init``. Its features and target are standardised by the
    train part.
    """
    prepared = folder / PREPARED_FOLDER
    content = read_json(prepared / SPEC_FILE)
    with reading(f"{prepared / SPEC_FILE}"):
        place = None if content["init"] is None else Path(content["init"])
        spec = RegressorSpec.from_json(content["spec"])
    check_ids(store, prepared / TOKENS_FOLDER, vocabulary=spec.vocabulary, num_slots=spec.num_slots)
    model = _built(spec, config.train.seed, place)
    rows, targets = store.train_rows, store.targets
    residual = targets.log2_ns[rows].astype(np.float64) - targets.offset_log2_ns[rows]
    if model.spec.feature_names:
        model.head.fit_features(targets.features[rows].astype(np.float64))
    model.head.fit_target(residual, targets.weight[rows].astype(np.float64))
    return model


def _built(spec: RegressorSpec, seed: int, init: Path | None) -> Regressor:
    if init is not None:
        return build_pretrained(spec, init, seed=seed)
    return build_regressor(spec, seed=seed)


def _spec(encoder: Encoder, config: TrainConfig, init: Init | None) -> RegressorSpec:
    regressor = config.regressor
    backbone = {}
    if regressor.backbone != "small":
        backbone = (
            _random_backbone(regressor)
            if init is None
            else read_backbone_config(init.folder, regressor)
        )
    return RegressorSpec(
        config=regressor,
        vocabulary=encoder.tokenizer.num_tokens,
        num_slots=NUM_SLOTS if config.prompt.form == "numeric" else 0,
        feature_names=feature_names() if regressor.features else (),
        context=config.prompt.max_tokens,
        backbone=backbone,
    )


def _random_backbone(config: RegressorConfig) -> dict[str, Any]:
    """Return the backbone's config for ``--init random``."""
    if config.backbone != "codegen":
        raise BadInput(
            f"--init random: regressor.backbone={config.backbone} takes its shape from a "
            "checkpoint; name a checkpoint's folder"
        )
    return codegen_config(
        width=config.width,
        depth=config.depth,
        heads=config.heads,
        rotary_dims=_ROTARY_DIMS
        if config.width // config.heads > _ROTARY_DIMS
        else _ROTARY_DIMS // 2,
    )
