"""Preparation of a language model's run: the folder ``prepared/``.

Owns the content of ``prepared/``, which is written before the first step. A resumed fit and all
other processes read it. If its token cache was removed, the next start writes ``prepared/`` again.

::

    RUN/prepared/
      regressor.json   spec of the regressor; sha256 of the files in tokens/, prompt/ and offset/
      tokens/          the token store of the train and validation rows
      prompt/          form of the prompt, and tokenizer
      offset/          the model that the regressor corrects, if any
      model/           the fitted model during publishing, if it predicts on a GPU
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from llmperf_common.features.features import feature_names
from llmperf_common.files.plain_files import UnfitFileError, check_plain
from llmperf_common.statistics.splits import Part
from trainer.config import TrainConfig
from trainer.data.dataset import Texts, TrainingData
from trainer.data.foreign_files import reading
from trainer.data.token_store import (
    FACTS_FILE,
    Targets,
    open_token_store,
    write_token_store,
)
from trainer.errors import BadInput
from trainer.interface import FitData, Progress
from trainer.life.identity import Init
from trainer.life.offset import fitted_offset
from trainer.life.prompt_notes import said_of_prompts
from trainer.prompt.encode import Encoder, new_encoder
from trainer.prompt.numeric import NUM_SLOTS
from trainer.prompt.prompt_statistics import prompt_statistics
from trainer.registry import load_model
from trainer.regressor.backbones.codegen import codegen_config
from trainer.regressor.model import Regressor, build_regressor
from trainer.regressor.predictor import OFFSET_FOLDER, PROMPT_FOLDER
from trainer.regressor.spec import RegressorSpec
from trainer.regressor.weights import build_pretrained, read_backbone_config
from trainer.regressor_config import RegressorConfig
from trainer.run.folder import (
    PREPARED_FOLDER,
    PREPARING_FOLDER,
    read_json,
    write_json,
)

SPEC_FILE = "regressor.json"
TOKENS_FOLDER = "tokens"

_MOST_BYTES = 2**32
"""Maximum bytes of a file of ``prompt/`` or ``offset/``; a sparse file could take hours to hash."""

_ROTARY_DIMS = 64
"""Number of dimensions of a head that get rotary position embedding, as in the published models. A
head with this many dimensions or fewer rotates half of them."""


def prepare(
    folder: Path,
    data: TrainingData,
    parts: Texts,
    train: FitData,
    config: TrainConfig,
    init: Init | None,
    progress: Progress,
) -> None:
    """Write ``prepared/``, atomically. One that lost its token cache is written again as it was.

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


def check_prepared(prepared: Path, init: Init | None) -> None:
    """Check each file of ``prepared/`` before the fit: some are used only after it.

    Raises:
        BadInput: A file is missing, damaged or changed, or leads out of ``prepared``; or only one
            of ``init`` and ``prepared`` names initial weights.
    """
    open_token_store(prepared / TOKENS_FOLDER, check_content=True)
    content = read_json(prepared / SPEC_FILE)
    mend = f"delete the folder {prepared} and train again, or name a new --out"
    try:
        _check_no_links(prepared)
        with reading(f"{prepared / SPEC_FILE}"):
            hashes = _recorded_hashes(content["files"]) if "files" in content else None
            offset, vocabulary = content["offset"], int(content["spec"]["vocabulary"])
            _check_init(prepared / SPEC_FILE, content["init"], init)
        if hashes is not None:  # earlier releases wrote none
            _check_hashes(prepared, hashes)
        encoder = Encoder.load(prepared / PROMPT_FOLDER)
        if encoder.tokenizer.num_tokens != vocabulary:
            raise BadInput(f"{prepared / PROMPT_FOLDER}: is not the tokenizer of the token cache")
        if offset is not None:
            load_model(offset, prepared / OFFSET_FOLDER)
    except _AdditionalFileError:
        raise
    except BadInput as error:
        raise BadInput(f"{error}: {mend}") from None


def _check_init(file: Path, recorded: object, init: Init | None) -> None:
    """Check that a run was prepared with initial weights if and only if ``--init`` names some.

    The folder may have moved: the run's identity has the digest of its files.
    """
    if init is None and recorded is not None:
        raise BadInput(
            f"{file}: names the initial weights {ascii(recorded)[:200]}, but the command has no "
            "--init, so they are not read"
        )
    if init is not None and recorded is None:
        raise BadInput(
            f"{file}: names no initial weights, but the command has --init {init.folder}"
        )


class _AdditionalFileError(BadInput):
    """A file that the run did not write; the message says how to mend that."""


def _check_no_links(prepared: Path) -> None:
    """Check that no folder of ``prepared`` is a link, because a link may lead to many files."""
    for name in (PROMPT_FOLDER, OFFSET_FOLDER):
        if (prepared / name).is_symlink():
            raise BadInput(f"{prepared / name}: is a link, not a folder of the run")


def _recorded_hashes(found: object) -> dict[str, str]:
    """Return the SHA-256 of files by their names, as ``regressor.json`` has them.

    Raises:
        TypeError: It is no table of texts.
    """
    if not isinstance(found, dict):
        raise TypeError("'files' is not a table of file names and hashes")
    for name, hashed in found.items():
        if not isinstance(name, str) or not isinstance(hashed, str):
            raise TypeError(f"the hash of the file {ascii(name)[:80]} is not a text")
    return found


def _check_hashes(prepared: Path, hashes: Mapping[str, str]) -> None:
    """Check the files of ``prompt/`` and ``offset/``; no path that ``hashes`` names is opened.

    Raises:
        BadInput: A file is missing, additional or changed, or a link leads out of ``prepared``.
    """
    try:
        now = _hashes(prepared, _names_in(prepared, PROMPT_FOLDER, OFFSET_FOLDER))
    except (UnfitFileError, OSError) as error:
        raise BadInput(str(error)) from None
    changed = sorted(
        name for name in now.keys() | hashes.keys() if now.get(name) != hashes.get(name)
    )
    if not changed:
        return
    where = f"{prepared}/{ascii(changed[0])[1:-1][:200]}"
    if changed[0] not in hashes:
        raise _AdditionalFileError(f"{where}: does not belong to the run: remove it")
    raise BadInput(f"{where}: is missing, or is not as it was written")


def _hashes(place: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of files by their paths in ``place``."""
    found: dict[str, str] = {}
    for name in names:
        path = place / name
        check_plain(path, max_bytes=_MOST_BYTES, inside=place)
        with path.open("rb") as file:
            found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _names_in(place: Path, *folders: str) -> list[str]:
    """Return the paths in ``place`` of all files of its ``folders``."""
    paths = (path for folder in folders for path in (place / folder).rglob("*") if path.is_file())
    return sorted(str(path.relative_to(place)) for path in paths)


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
        built(spec, config.train.seed, weights)
    content: dict[str, Any] = {
        "spec": spec.to_json(),
        "init": None if weights is None else str(weights),
        "offset": offset.name if offset else None,
        "prompts": dataclasses.asdict(statistics),
        "files": _hashes(place, _names_in(place, PROMPT_FOLDER, OFFSET_FOLDER)),
        "tokens": read_json(place / TOKENS_FOLDER / FACTS_FILE)["files"],
    }
    write_json(place / SPEC_FILE, content)


def built(spec: RegressorSpec, seed: int, init: Path | None) -> Regressor:
    """Return a model with random weights, or with those of the checkpoint folder ``init``."""
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
