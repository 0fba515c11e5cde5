"""The token cache: what is written is read, and nothing else passes for it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.factories.packing_cases import realistic
from trainer.data.token_store import (
    ARRAYS,
    FACTS_FILE,
    Targets,
    TokenStore,
    check_ids,
    open_token_store,
    write_token_store,
)
from trainer.data.tokens import Tokens
from trainer.errors import BadInput
from trainer.packing.schedule import pack_schedule
from trainer.regressor_config import PackingConfig

TOKENS = realistic(12, per_kernel=9)


def targets_of(num_launches: int, num_features: int = 7) -> Targets:
    rng = np.random.default_rng(1)
    features = rng.normal(size=(num_launches, num_features))
    features[0, :2] = np.nan
    return Targets(
        features=features,
        log2_ns=rng.normal(12, 3, num_launches),
        offset_log2_ns=np.zeros(num_launches),
        weight=rng.random(num_launches),
        is_validation=rng.random(num_launches) < 0.2,
        family=rng.integers(0, 5, num_launches),
    )


TARGETS = targets_of(len(TOKENS))


def arrays_of(record: Tokens | Targets) -> dict[str, np.ndarray]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "cache" / "tokens"
    write_token_store(path, tokens=TOKENS, targets=TARGETS, about={"prompt": "numeric"})
    return path


def test_what_is_written_is_read(folder: Path) -> None:
    store = open_token_store(folder, check_content=True)
    read = arrays_of(store.tokens) | arrays_of(store.targets)
    written = arrays_of(TOKENS) | arrays_of(TARGETS)
    assert list(read) == list(ARRAYS) == list(written)
    for name, array in read.items():
        assert array.dtype == ARRAYS[name]
        assert np.array_equal(
            array, written[name].astype(ARRAYS[name]), equal_nan=name == "features"
        )
    assert len(store) == len(TOKENS)
    assert store.facts["about"] == {"prompt": "numeric"}
    assert store.facts["num_launches"] == len(TOKENS)
    assert store.facts["num_kernels"] == 12
    assert sorted([*store.train_rows, *store.validation_rows]) == list(range(len(TOKENS)))
    assert np.all(store.targets.is_validation[store.validation_rows])
    assert sorted(path.name for path in folder.parent.iterdir()) == ["tokens"]


def test_arrays_are_mapped_and_read_only(folder: Path) -> None:
    store = open_token_store(folder)
    for array in (*arrays_of(store.tokens).values(), *arrays_of(store.targets).values()):
        assert isinstance(array.base, np.memmap)
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_packing_reads_the_store_as_it_reads_arrays(folder: Path) -> None:
    store = open_token_store(folder)

    def batch_of(tokens: Tokens) -> np.ndarray:
        schedule = pack_schedule(
            tokens,
            train=store.train_rows,
            validation=store.validation_rows,
            config=PackingConfig(),
            seed=0,
        )
        return next(schedule.batches(1)).ids

    assert np.array_equal(batch_of(store.tokens), batch_of(TOKENS))


def test_a_store_is_replaced_by_a_newer_one(folder: Path) -> None:
    older = open_token_store(folder)
    fewer = replace(TARGETS, weight=np.zeros(len(TOKENS)))
    write_token_store(folder, tokens=TOKENS, targets=fewer)
    assert not open_token_store(folder).targets.weight.any()
    assert older.targets.weight.any()  # a process that has it open still reads what it opened
    assert sorted(path.name for path in folder.parent.iterdir()) == ["tokens"]


def test_a_store_that_could_not_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'family' has 3 rows"):
        write_token_store(
            tmp_path / "tokens", tokens=TOKENS, targets=replace(TARGETS, family=np.zeros(3))
        )
    with pytest.raises(TypeError, match="JSON"):
        write_token_store(
            tmp_path / "tokens", tokens=TOKENS, targets=TARGETS, about={"set": {1, 2}}
        )
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "tokens").mkdir()
    with pytest.raises(BadInput, match="not a token cache"):
        write_token_store(tmp_path / "tokens", tokens=TOKENS, targets=TARGETS)


def test_launches_without_features_or_prefixes_are_stored(tmp_path: Path) -> None:
    tokens = replace(
        TOKENS,
        prefix_ids=np.zeros(0, np.int32),
        prefix_start=np.zeros(TOKENS.num_groups + 1, np.int64),
    )
    targets = targets_of(len(tokens), num_features=0)
    write_token_store(tmp_path / "tokens", tokens=tokens, targets=targets)
    store = open_token_store(tmp_path / "tokens", check_content=True)
    assert store.targets.features.shape == (len(tokens), 0)
    assert store.tokens.prefix_lengths.sum() == 0


def rewrite_facts(folder: Path, change: Callable[[dict[str, object]], object]) -> None:
    path = folder / FACTS_FILE
    facts = json.loads(path.read_text())
    change(facts)
    path.write_text(json.dumps(facts))


def flip_a_bit(folder: Path) -> None:
    path = folder / "log2_ns.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def other_type(folder: Path) -> None:
    path = folder / "family.npy"
    np.save(path, np.load(path).astype(np.float32))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no array": (lambda folder: (folder / "group.npy").unlink(), "group.npy: No such file"),
    "truncated": (
        lambda folder: (folder / "features.npy").open("r+b").truncate(300),
        "features.npy has 300 bytes",
    ),
    "no facts": (lambda folder: (folder / FACTS_FILE).unlink(), "not a token cache"),
    "facts cut": (lambda folder: (folder / FACTS_FILE).write_text('{"schema": 1'), "damaged"),
    "facts no object": (lambda folder: (folder / FACTS_FILE).write_text("[]"), "schema None"),
    "no files": (
        lambda folder: rewrite_facts(folder, lambda facts: facts.pop("files")),
        "no files",
    ),
    "another schema": (
        lambda folder: rewrite_facts(folder, lambda facts: facts.update(schema=7)),
        "schema 7.*reads schema 1",
    ),
    "another type": (other_type, "family.npy holds float32"),
    "changed": (flip_a_bit, "log2_ns.npy has another sha256"),
}


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.filterwarnings("ignore:unclosed file")
def test_a_damaged_store_is_refused(folder: Path, name: str) -> None:
    damage, message = DAMAGE[name]
    damage(folder)
    with pytest.raises(BadInput, match=f"tokens.*{message}"):
        open_token_store(folder, check_content=name == "changed")


def header_of(folder: Path, name: str, text: bytes) -> None:
    """Give an array another header, with its length as ``store.json`` says."""
    path = folder / f"{name}.npy"
    body = b"\x93NUMPY\x01\x00" + (len(text) + 1).to_bytes(2, "little") + text + b"\n"
    path.write_bytes(body.ljust(path.stat().st_size, b"\0")[: max(path.stat().st_size, len(body))])
    size = path.stat().st_size
    rewrite_facts(folder, lambda facts: facts["files"][name].update(bytes=size))  # type: ignore[index]


def array_of(folder: Path, name: str, change: Callable[[np.ndarray], object]) -> None:
    array = np.load(folder / f"{name}.npy")
    change(array)
    np.save(folder / f"{name}.npy", array)


ABSURD: dict[str, Callable[[Path], object]] = {
    "a shape of 2^60": lambda f: header_of(
        f, "group", b"{'descr': '<i8', 'fortran_order': False, 'shape': (1152921504606846976,)}"
    ),
    "a shape of 2^70": lambda f: header_of(
        f, "group", b"{'descr': '<i8', 'fortran_order': False, 'shape': (1180591620717411303424,)}"
    ),
    "a negative shape": lambda f: header_of(
        f, "group", b"{'descr': '<i8', 'fortran_order': False, 'shape': (-5,)}"
    ),
    "a long header": lambda f: header_of(
        f,
        "group",
        b"{'descr': '<i8', 'fortran_order': False, 'shape': (1,)}" + b" " * 20_000,
    ),
    "a header that nests": lambda f: header_of(f, "group", b"(" * 9_000 + b")" * 9_000),
    "a header of calls": lambda f: header_of(f, "group", b"__import__('os').abort()"),
    "objects": lambda f: header_of(
        f, "group", b"{'descr': '|O', 'fortran_order': False, 'shape': (9,)}"
    ),
    "facts that nest": lambda f: (f / FACTS_FILE).write_text("[" * 100_000),
    "facts in a pipe": lambda f: ((f / FACTS_FILE).unlink(), os.mkfifo(f / FACTS_FILE)),
    "an array in a pipe": lambda f: ((f / "group.npy").unlink(), os.mkfifo(f / "group.npy")),
    "an array without end": lambda f: (
        (f / "group.npy").unlink(), (f / "group.npy").symlink_to("/dev/zero"),
    ),
    "files of no form": lambda f: rewrite_facts(
        f, lambda facts: facts.update(files=dict.fromkeys(ARRAYS, 7))
    ),
    "places that go back": lambda f: array_of(f, "suffix_start", lambda a: a.__setitem__(3, 10**9)),
    "places below 0": lambda f: array_of(f, "prefix_start", lambda a: a.__setitem__(0, -5)),
    "a group that is none": lambda f: array_of(f, "group", lambda a: a.__setitem__(0, 10**12)),
    "a group below 0": lambda f: array_of(f, "group", lambda a: a.__setitem__(0, -1)),
}  # fmt: skip


@pytest.mark.parametrize("name", ABSURD)
@pytest.mark.filterwarnings("ignore:unclosed file")
def test_an_absurd_store_is_refused(folder: Path, name: str) -> None:
    ABSURD[name](folder)
    with pytest.raises(BadInput, match="tokens: the token cache is damaged"):
        open_token_store(folder)


@pytest.mark.parametrize(
    ("name", "token"), [("prefix_ids", -1), ("suffix_ids", 10**6), ("suffix_ids", -(10**6))]
)
def test_a_token_that_the_model_has_not_is_refused(folder: Path, name: str, token: int) -> None:
    store = open_token_store(folder)
    highest = max(store.tokens.prefix_ids.max(), store.tokens.suffix_ids.max())
    num_slots = int(max(0, -store.tokens.suffix_ids.min()))
    check_ids(store, folder, vocabulary=int(highest) + 1, num_slots=num_slots)
    array_of(folder, name, lambda array: array.__setitem__(2, token))
    with pytest.raises(
        BadInput, match=f"array '{name}' has a token that the tokenizer does not produce"
    ):
        check_ids(
            open_token_store(folder), folder, vocabulary=int(highest) + 1, num_slots=num_slots
        )


def test_arrays_that_disagree_are_refused(folder: Path) -> None:
    path = folder / "suffix_start.npy"
    starts = np.load(path)
    np.save(path, np.full_like(starts, 1))
    with pytest.raises(BadInput, match=r"damaged .*suffix_start"):
        open_token_store(folder)


def test_a_store_says_its_length() -> None:
    store = TokenStore(tokens=TOKENS, targets=TARGETS, facts={})
    assert len(store) == len(TOKENS)
