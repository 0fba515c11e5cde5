"""Predictions: the record, the arguments, the choice of local size, what is out of distribution."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from llmperf.prediction.analysing import Analyst, Known
from llmperf.prediction.filling import planned_filler
from llmperf_common.analysis import Analysis, Extent, Polynomial, Term
from llmperf_common.config import ConfigError
from llmperf_common.records import Access, Argument, ArgumentKind, LaunchArgument, Signature
from llmperf_common.store.tables.analysis_rows import analysis_columns
from tests.support.factories.synthetic_dataset import (
    DEVICE,
    buffer_argument,
    local_argument,
    make_launch,
    scalar_argument,
    trained,
)
from trainer.data.training_range import out_of_distribution, training_range, unlike_training
from trainer.interface import Predicted
from trainer.prediction.arguments import Filled, read_arguments
from trainer.prediction.predict import BadInput, PredictRequest, predict
from trainer.prediction.request import device_of, divisors, legal_local_sizes
from trainer.run.loaded import LoadedRun, load_run
from workers.plan.strategies.rules import SimpleRule

NOTHING_KNOWN = Known(analysis=None, said="")
KEYS = [
    "kernel",
    "device",
    "time_ns",
    "interval",
    "local_size_best",
    "bound",
    "ood",
    "work",
    "warnings",
]


@pytest.fixture(scope="module")
def run() -> LoadedRun:
    return load_run(trained()[2].folder)


def request(number: int = 5, *, args=(), known=NOTHING_KNOWN, **changes) -> PredictRequest:
    """A question about a kernel of the training data; ``args`` by name, as a user gives them."""
    kernel = trained()[0].kernels[number].kernel
    signature = changes.get("signature", kernel.signature)
    given = read_arguments(signature, dict(args))
    base = PredictRequest(
        kernel=kernel.name,
        signature=kernel.signature,
        global_size=(2**18,),
        local_size=(64,),
        filler=planned_filler(
            dataclasses.replace(kernel, signature=signature), DEVICE, given, known
        ),
        kernel_id=kernel.kernel_id,
    )
    return dataclasses.replace(base, **changes)


def fill(signature, given, known, global_size, local_size) -> Filled:
    kernel = dataclasses.replace(trained()[0].kernels[5].kernel, signature=signature)
    return planned_filler(kernel, DEVICE, given, known).fill(global_size, local_size)


def with_signature(*, args=(), **changes) -> PredictRequest:
    return request(args=args, signature=dataclasses.replace(request().signature, **changes))


def test_the_record_has_exactly_its_keys(run):
    record = predict(run, request())
    assert list(record) == KEYS
    assert list(record["interval"]) == ["level", "low_ns", "high_ns"]
    assert record["kernel"] == "kernel_5"
    assert record["device"] == "synth"
    assert record["interval"]["level"] == 0.9
    assert record["interval"]["low_ns"] < record["time_ns"] < record["interval"]["high_ns"]
    assert record["bound"] in {"latency", "bandwidth", "compute"}
    assert record["ood"] is False
    assert json.loads(json.dumps(record)) == record


def test_sweep_is_there_only_when_asked_and_agrees_with_single_questions(run):
    record = predict(run, request(sweep=True))
    assert list(record) == [*KEYS, "sweep"]
    assert all(
        list(entry) == ["local_size", "time_ns", "low_ns", "high_ns"] for entry in record["sweep"]
    )
    sizes = [entry["local_size"][0] for entry in record["sweep"]]
    assert sorted(sizes) == [2**power for power in range(11)]
    times = [entry["time_ns"] for entry in record["sweep"]]
    assert times == sorted(times)
    # Groups of 32 to 512 were trained on: smaller and larger ones are shown but not recommended.
    known = [entry for entry in record["sweep"] if 32 <= entry["local_size"][0] <= 512]
    assert record["local_size_best"] == known[0]["local_size"]
    for entry in record["sweep"]:
        alone = predict(run, request(local_size=tuple(entry["local_size"])))
        assert alone["time_ns"] == entry["time_ns"]
        assert alone["interval"]["low_ns"] == entry["low_ns"]
        assert alone["local_size_best"] in [
            other["local_size"] for other in known if other["time_ns"] == known[0]["time_ns"]
        ]


def test_the_best_local_size_is_near_the_true_one(run):
    dataset, _, _ = trained()
    losses = []
    for number in range(40):
        kernel = dataset.kernels[number]
        best = tuple(predict(run, request(number, global_size=(2**22,)))["local_size_best"])
        truth = min(kernel.time_ns((2**22,), (2**power,)) for power in range(11))
        losses.append(kernel.time_ns((2**22,), best) / truth - 1)
    assert np.median(losses) < 0.1


def test_time_grows_with_the_global_size(run):
    times = [
        predict(run, request(global_size=(2**power,)))["time_ns"] for power in (12, 16, 20, 24)
    ]
    assert times == sorted(times)
    assert times[-1] > 10 * times[0]


def test_predictions_are_near_the_law(run):
    dataset, _, _ = trained()
    errors = [
        abs(
            np.log2(
                predict(run, request(number, global_size=(2**20,)))["time_ns"]
                / dataset.kernels[number].time_ns((2**20,), (64,))
            )
        )
        for number in range(40)
    ]
    assert np.median(errors) < 0.35


def test_a_prediction_equals_the_dataset_row_s(run):
    """The same launch, asked with all arguments, gives the time written in predictions.parquet."""
    dataset, data, _ = trained()
    row = int(np.flatnonzero(data.texts("kernel_id") == dataset.kernels[5].kernel.kernel_id)[0])
    expected = float(np.exp2(run.model.predict(data.rows.take(np.array([row]))).log2_ns)[0])
    sample = data.rows.samples.slice(row, 1).to_pylist()[0]
    items = sample["global_size"][0]
    record = predict(
        run,
        request(
            global_size=(items,),
            local_size=tuple(sample["local_size"]),
            args={"x": items, "y": items, "n": items},
        ),
    )
    assert record["time_ns"] == expected
    assert record["warnings"] == []


def test_missing_arguments_are_filled_and_said(run):
    signature = dataclasses.replace(
        request().signature,
        arguments=(
            buffer_argument(0, "x", Access.READ),
            scalar_argument(1, "n", "uint"),
            scalar_argument(2, "alpha", "float"),
            local_argument(3, "tile"),
            scalar_argument(4, "flag", "uchar"),
        ),
    )
    record = predict(run, request(signature=signature, args={"x": 5000}))
    said = " | ".join(record["warnings"][:4])
    assert "'n' not given: using value 262144" in said
    assert "'alpha' not given: using value 1.0" in said
    assert "'tile' not given: using 64 elements (one element per work-item of a work-group)" in said
    assert "'flag' not given: using value 255" in said  # as far as the type goes
    assert "'x'" not in said


def extent(position: int, constant: int, *factors: str, cap: tuple[str, ...] = ()) -> Extent:
    """``extent(0, 2, "n", cap=("m", "m"))``: min(2 + n, m * m) elements."""
    return Extent(
        position=position,
        form=Polynomial(constant=constant, terms=(Term(factors=factors, coefficient=1),)),
        cap=Polynomial(constant=0, terms=(Term(factors=cap, coefficient=1),)) if cap else None,
        validated=True,
    )


def analysed(*extents: Extent) -> Known:
    return Known(analysis=Analysis(extents=extents), said="a memory analysis")


def test_buffers_take_the_fitted_extent():
    known = analysed(extent(0, 2, "global_size_0", cap=("n", "n")))
    filled = fill(request().signature, {2: 7}, known, (100,), (10,))
    assert [item.elements for item in filled.args] == [49, 100, None]
    assert "analysis" in filled.warnings[0]
    assert "global size" in filled.warnings[1]
    assert filled.warnings[2].startswith(
        "missing arguments get the values that `llmperf collect` would use, based on"
    )
    assert filled.args[2].value == 7


def test_a_buffer_that_the_launch_overruns_is_named():
    known = analysed(extent(0, 0, "global_size_0", "global_size_1"))
    filled = fill(request().signature, {0: 5, 1: 9, 2: 1}, known, (64, 64), (8, 8))
    assert filled.warnings == ("buffer 'x' has 5 elements, but the launch accesses 4096",)
    enough = fill(request().signature, {0: 4096, 1: 9, 2: 1}, known, (64, 64), (8, 8))
    assert enough.warnings == ()


def test_local_sizes_that_overflow_an_array_of_the_kernel_are_left_out(run):
    found = Analysis(extents=(extent(0, 0, "global_size_0"),), overflowing_local_sizes=((129,),))
    known = Known(analysis=found, said="a memory analysis")
    record = predict(run, request(known=known, sweep=True))
    assert max(entry["local_size"][0] for entry in record["sweep"]) == 128
    asked = predict(run, request(known=known, local_size=(256,)))
    assert any("beyond its end" in text for text in asked["warnings"])


def test_values_are_taken_as_text_too(run):
    numbers = predict(run, request(args={"x": 4096, "n": 256}))
    texts = predict(run, request(args={"x": "4096", "n": "0x100"}))
    assert numbers == texts


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"z": 1}, "arguments are x, y, n"),
        ({"nn": 1}, "did you mean 'n'"),
        ({"n": "many"}, "takes a whole number"),
        ({"n": 1.5}, "takes a whole number"),
        ({"n": 2**40}, "holds -2147483648 to 2147483647"),
        ({"n": float("inf")}, "takes a whole number"),
        ({"x": "3.5"}, "number of elements"),
        ({"x": 0}, "at least 1 element"),
    ],
)
def test_wrong_arguments_say_what_to_do(run, args, message):
    with pytest.raises(BadInput, match=message):
        predict(run, request(args=args))


def test_a_float_scalar_takes_finite_numbers_only(run):
    for value in ("big", "nan"):
        with pytest.raises(BadInput, match="number"):
            with_signature(arguments=(scalar_argument(0, "alpha", "float"),), args={"alpha": value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "h200"}, "trained on synth"),
        ({"global_size": (0,)}, "each size must be at least 1"),
        ({"global_size": (8, 8, 8, 8), "local_size": (1, 1, 1, 1)}, "1 to 3 sizes"),
        ({"local_size": (8, 8)}, "give the same number"),
        ({"local_size": (48,)}, "48 does not divide the global size 262144; 32 does"),
        ({"local_size": (2048,)}, "more than the 1024"),
        ({"global_size": (64, 64, 256), "local_size": (1, 1, 128)}, "takes at most 64"),
    ],
)
def test_wrong_sizes_and_devices_say_what_to_do(run, changes, message):
    with pytest.raises(BadInput, match=message):
        predict(run, request(**changes))


def test_a_device_that_a_shipped_model_knows_names_that_model(run):
    """A run of the demo is the only one in runs/ then, and is asked in the shipped model's place."""
    with pytest.raises(BadInput, match="pass --model h200"):
        device_of(run, "h200")
    with pytest.raises(BadInput) as refused:
        device_of(run, "a100")
    assert "--model" not in str(refused.value), "no model of it comes with LLMPerf"


def test_several_device_classes_need_a_choice(run):
    other = dataclasses.replace(DEVICE, device_class="other", launch_floor_ns=None)
    both = dataclasses.replace(run, devices={"synth": DEVICE, "other": other})
    with pytest.raises(ConfigError, match="--device, one of other, synth"):  # a usage error
        predict(both, request())
    assert predict(both, request(device="other"))["device"] == "other"


def test_images_are_refused(run):
    image = Argument(
        position=0,
        name="img",
        kind=ArgumentKind.IMAGE,
        type_name="image2d_t",
        scalar_type="",
        vector_width=1,
        element_bytes=0,
        access=Access.READ,
    )
    with pytest.raises(BadInput, match="image2d_t"):
        predict(run, with_signature(arguments=(image,)))


def test_a_required_local_size_is_kept(run):
    fixed = with_signature(required_local_size=(64, 1, 1))
    record = predict(run, dataclasses.replace(fixed, sweep=True))
    assert record["local_size_best"] == [64]
    assert len(record["sweep"]) == 1
    with pytest.raises(BadInput, match="requires 64,1,1"):
        predict(run, dataclasses.replace(fixed, local_size=(128,)))


def test_local_memory_limits_the_choice(run):
    tiled = with_signature(
        arguments=(*request().signature.arguments, local_argument(3, "tile")),
        static_local_bytes=DEVICE.local_memory_bytes - 4 * 128,
    )
    record = predict(run, dataclasses.replace(tiled, sweep=True))
    assert max(entry["local_size"][0] for entry in record["sweep"]) == 128
    with pytest.raises(BadInput, match="bytes of local memory"):
        predict(run, dataclasses.replace(tiled, local_size=(256,)))


def test_ties_keep_what_the_user_has(run):
    class Constant:
        name = "constant"

        def predict(self, rows):
            return Predicted(log2_ns=np.full(len(rows), 12.0))

    flat = dataclasses.replace(run, model=Constant())
    assert predict(flat, request(local_size=(128,)))["local_size_best"] == [128]


def test_legal_sizes_divide_and_fit():
    wanted = request(global_size=(96, 40), local_size=(8, 8))
    found = list(legal_local_sizes(wanted, DEVICE))
    assert found[0] == (8, 8)
    assert len(found) == len(set(found))
    assert all(96 % x == 0 and 40 % y == 0 and x * y <= 1024 for x, y in found)
    assert (96, 10) in found
    cube = request(global_size=(1 << 12, 1 << 12, 1 << 12), local_size=(4, 4, 4))
    assert 100 < len(list(legal_local_sizes(cube, DEVICE))) < 1000
    assert divisors(1, at_most=64) == [1]
    assert divisors(97, at_most=64) == [1]


def test_two_dimensions_and_a_missing_one_are_said(run):
    record = predict(run, request(global_size=(512, 512), local_size=(16, 16)))
    assert len(record["local_size_best"]) == 2
    flat = predict(run, with_signature(dims=2))
    assert any("has 1 of the kernel's 2 dimensions" in text for text in flat["warnings"])


def test_far_sizes_are_out_of_distribution_and_named(run):
    far = predict(run, request(global_size=(2**30,)))
    assert far["ood"] is True
    assert any("log2_work_items" in text and "30" in text for text in far["warnings"])
    assert predict(run, request(global_size=(2**20,)))["ood"] is False


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e9, -1e9, 3.0])
def test_the_flag_and_the_warnings_of_a_range_agree(value):
    known = training_range(np.array([[1.0], [5.0]]), ["log2_work_items"], np.array([0, 0]))
    row = np.array([value])
    is_outside = bool(unlike_training(row[None], known)[0])
    assert is_outside == bool(out_of_distribution(row, known))
    assert is_outside == (abs(value) == 1e9), "what is not finite is not known"


def test_an_unlike_kernel_is_out_of_distribution_and_named(run):
    features = dict(request().signature.static_features)
    features |= {"global_atomics": 900.0, "barriers": 300.0}
    record = predict(run, with_signature(static_features=features))
    assert record["ood"] is True
    assert any("static_global_atomics" in text for text in record["warnings"])


def test_fresh_kernels_of_the_same_kind_are_mostly_inside(run):
    from tests.support.factories.synthetic_dataset import make_dataset  # noqa: PLC0415

    inside = 0
    for synthetic in make_dataset(num_kernels=20, num_configs=4, seed=5, first=900).kernels:
        kernel = synthetic.kernel
        record = predict(
            run,
            request(kernel=kernel.name, signature=kernel.signature, kernel_id=kernel.kernel_id),
        )
        inside += not record["ood"]
    assert inside >= 14


def test_the_stored_analysis_of_a_known_kernel_is_used(run):
    kernel_id = run.kernels.column("kernel_id")[0].as_py()
    kernel = next(one.kernel for one in trained()[0].kernels if one.kernel.kernel_id == kernel_id)
    stored = Analysis(extents=(extent(0, 2, "global_size_0"),))
    rows = run.kernels.to_pylist()
    rows[0] |= analysis_columns(stored)
    table = type(run.kernels).from_pylist(rows, schema=run.kernels.schema)
    known = Analyst(table, may_probe=False).find_out(kernel)
    assert known == Known(analysis=stored, said="the memory analysis stored with the model")
    stranger = dataclasses.replace(kernel, kernel_id="0" * 20)
    assert Analyst(table, may_probe=False).find_out(stranger).analysis is None
    old = table.drop_columns(["index_roles"])  # as runs of earlier versions have it
    assert Analyst(old, may_probe=False).find_out(kernel).analysis is None


@pytest.mark.parametrize(
    ("global_size", "local_size"), [((4096,), (64,)), ((64, 32), (8, 8)), ((16, 8, 8), (4, 4, 4))]
)
def test_filled_arguments_are_those_that_collection_plans(global_size, local_size):
    """What a user leaves out is asked as the simple strategy measured it."""
    signature = dataclasses.replace(
        request().signature,
        arguments=(
            buffer_argument(0, "x", Access.READ),
            scalar_argument(1, "n", "uint"),
            scalar_argument(2, "flag", "uchar"),
            scalar_argument(3, "alpha", "float"),
            local_argument(4, "tile"),
        ),
    )
    filled = fill(signature, {}, NOTHING_KNOWN, global_size, local_size)
    assert filled.args == SimpleRule(signature=signature).arguments(global_size, local_size)


def test_launch_arguments_are_complete_records():
    signature = Signature(
        arguments=(local_argument(0, "tile"),),
        dims=1,
        required_local_size=None,
        static_local_bytes=0,
        static_features={},
    )
    filled = fill(signature, {}, NOTHING_KNOWN, (64,), (16,))
    assert filled.args == (
        LaunchArgument(position=0, kind=ArgumentKind.LOCAL_BUFFER, elements=16, value=None),
    )
    assert make_launch(trained()[0].kernels[0].kernel, (64,), (16,)).num_work_groups == 4


def test_an_absurd_global_size_is_refused_at_once(run):
    with pytest.raises(BadInput, match="no device runs that"):
        predict(run, request(global_size=(10**24,), local_size=(1,)))
