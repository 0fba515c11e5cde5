"""The life of a language model between the dataset and its ``Predictor``: prepare, fit, read back.

Owns what lies in ``prepared/``: the prompt with its tokenizer, the tokens of the rows that are fitted and chosen on, the
offset's model, and the spec of the regressor. All of it is written before the first step; a restart and every other
process read it.

::

    RUN/prepared/
      regressor.json   the model to build         tokens/   the token store
      prompt/          form and tokenizer         offset/   the model that is corrected, where there is one
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path

import numpy as np

from llmperf_common.features import feature_names
from llmperf_common.splits import Part
from trainer.config import TrainConfig
from trainer.data.dataset import Texts, TrainingData
from trainer.data.token_store import Targets, open_token_store, write_token_store
from trainer.errors import BadInput
from trainer.fit.checkpoint import load_weights
from trainer.fit.loop import FitPlan, fit
from trainer.fit.ranks import Ranks
from trainer.fit.store_source import store_source
from trainer.interface import FitData, Predictor, Progress
from trainer.life.conductor import Conductor
from trainer.life.identity import Init
from trainer.life.offset import fitted_offset
from trainer.prompt.encode import Encoder, new_encoder
from trainer.prompt.numeric import NUM_SLOTS
from trainer.registry import load_model
from trainer.regressor.model import Regressor, build_regressor
from trainer.regressor.predictor import OFFSET_FOLDER, PROMPT_FOLDER, RegressorPredictor
from trainer.regressor.spec import RegressorSpec
from trainer.regressor.weights import load_backbone, read_backbone_config
from trainer.run.folder import CONFIG_FILE, FIT_FOLDER, PREPARED_FOLDER, read_json, write_json

SPEC_FILE = "regressor.json"
TOKENS_FOLDER = "tokens"

PEAK_FLOPS = 989e12
"""Of one NVIDIA H100 or H200 in bf16, dense: what MFU is counted against."""


def fit_language_model(
    folder: Path,
    data: TrainingData,
    parts: Texts,
    train: FitData,
    config: TrainConfig,
    init: Init | None,
    conductor: Conductor,
    progress: Progress,
) -> Predictor:
    """Prepare the run if it is not, fit it with all processes, and return the best model."""
    if not (folder / PREPARED_FOLDER).exists():
        prepare(folder, data, parts, train, config, init, progress)
    with conductor.gathered(folder) as ranks:
        best = fit_prepared(folder, ranks, progress)
    return predictor_of(folder, best, config, ranks)


def prepare(
    folder: Path,
    data: TrainingData,
    parts: Texts,
    train: FitData,
    config: TrainConfig,
    init: Init | None,
    progress: Progress,
) -> None:
    """Write ``prepared/``, whole or not at all.

    Raises:
        BadInput: A kernel's source is missing, no prompt fits, or the checkpoint cannot be used.
    """
    temporary = Path(tempfile.mkdtemp(prefix=".preparing-", dir=folder))
    try:
        encoder = new_encoder(train.rows, config.prompt, None if init is None else init.folder)
        offset, offset_log2_ns = fitted_offset(config, data, parts, train, progress)
        if offset is not None:
            (temporary / OFFSET_FOLDER).mkdir()
            offset.save(temporary / OFFSET_FOLDER)
        index = np.flatnonzero(
            (parts == Part.TRAIN) | ((parts == Part.VALIDATION) & data.single_launch)
        )
        encoded = encoder.encode(data.rows.take(index))
        progress(encoded.statistics().line())
        index = index[encoded.kept]
        is_train = parts[index] == Part.TRAIN
        if not is_train.any():
            raise BadInput(
                f"no launch of the train part fits into prompt.max_tokens = {config.prompt.max_tokens}: "
                "raise it, or say --set prompt.too_long=truncate"
            )
        weight = np.ones(len(index))
        weight[is_train] = train.weight[np.isin(np.flatnonzero(parts == Part.TRAIN), index)]
        _, family = np.unique(data.family_id[index], return_inverse=True)
        targets = Targets(
            features=data.rows.features[index],
            log2_ns=data.log2_ns[index],
            offset_log2_ns=offset_log2_ns[index],
            weight=weight,
            is_validation=~is_train,
            family=family,
        )
        write_token_store(temporary / TOKENS_FOLDER, tokens=encoded.tokens, targets=targets)
        (temporary / PROMPT_FOLDER).mkdir()
        encoder.save(temporary / PROMPT_FOLDER)
        spec = _spec(encoder, config, init)
        build_initial(spec, config, init)  # a checkpoint that does not fit is refused now, not after
        content = {"spec": spec.to_json(), "init": None if init is None else str(init.folder)}
        write_json(temporary / SPEC_FILE, content | {"offset": offset.name if offset else None})
        temporary.chmod(0o755)
        temporary.rename(folder / PREPARED_FOLDER)
    finally:
        if temporary.exists():
            shutil.rmtree(temporary)


def fit_prepared(folder: Path, ranks: Ranks, progress: Progress) -> Path:
    """Fit what is prepared in ``folder``, from its newest checkpoint if there is one; all processes call it.

    Returns:
        The folder of the best checkpoint.

    Raises:
        BadInput: What is prepared is damaged.
        FitFailed: The loss is no number, or a checkpoint cannot be written.
        Interrupted: A signal ended it; the state is saved.
    """
    prepared = folder / PREPARED_FOLDER
    record = read_json(folder / CONFIG_FILE)
    config = TrainConfig.from_mapping(record["config"])
    spec, init = _prepared_spec(prepared)
    store = open_token_store(prepared / TOKENS_FOLDER)
    model = build_initial(spec, config, init)
    train_rows = store.train_rows
    residual = store.targets.log2_ns[train_rows] - store.targets.offset_log2_ns[train_rows]
    model.head.fit_features(store.targets.features[train_rows].astype(np.float64))
    model.head.fit_target(residual.astype(np.float64), store.targets.weight[train_rows])
    if ranks.device.type == "cuda":
        model.compile_blocks()
    source = store_source(
        store, spec, config.packing, seed=config.train.seed, device=ranks.device
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
    )
    return result.best


def predictor_of(folder: Path, best: Path, config: TrainConfig, ranks: Ranks) -> RegressorPredictor:
    """Return the fitted model with the weights of a checkpoint."""
    prepared = folder / PREPARED_FOLDER
    spec, init = _prepared_spec(prepared)
    store = open_token_store(prepared / TOKENS_FOLDER)
    model = build_initial(spec, config, init)
    train_rows = store.train_rows
    residual = store.targets.log2_ns[train_rows] - store.targets.offset_log2_ns[train_rows]
    model.head.fit_features(store.targets.features[train_rows].astype(np.float64))
    model.head.fit_target(residual.astype(np.float64), store.targets.weight[train_rows])
    load_weights(best, model)
    offset = read_json(prepared / SPEC_FILE)["offset"]
    return RegressorPredictor(
        model=model.to(ranks.device).eval(),
        encoder=Encoder.load(prepared / PROMPT_FOLDER),
        packing=config.packing,
        offset=None if offset is None else load_model(offset, prepared / OFFSET_FOLDER),
    )


def build_initial(spec: RegressorSpec, config: TrainConfig, init: Path | None) -> Regressor:
    """Return the model before its first step: random, or with the checkpoint's weights."""
    model = build_regressor(spec, seed=config.train.seed)
    if init is not None:
        load_backbone(model, init)
    return model


def _spec(encoder: Encoder, config: TrainConfig, init: Init | None) -> RegressorSpec:
    regressor = config.regressor
    backbone = {}
    if regressor.backbone != "small":
        backbone = random_backbone(config) if init is None else read_backbone_config(init.folder, regressor)
    return RegressorSpec(
        config=regressor,
        vocabulary=encoder.tokenizer.num_tokens,
        num_slots=NUM_SLOTS if config.prompt.form == "numeric" else 0,
        feature_names=feature_names() if regressor.features else (),
        context=config.prompt.max_tokens,
        backbone=backbone,
    )
