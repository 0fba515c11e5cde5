"""A few measured launches of a kernel: the error falls, intervals cover, floors and outliers do no harm."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pyarrow as pa
import pytest

from llmperf.prediction.analysing import Analyst, Known
from llmperf.prediction.filling import planned_filler
from llmperf.prediction.model import Model
from llmperf_common.statistics.conformal import Band
from tests.support.factories.synthetic_dataset import DEVICE, make_dataset, take_out, trained
from trainer.data.dataset import TrainingData, data_from_tables
from trainer.errors import BadInput, RunExists
from trainer.evaluation.evaluate import evaluate
from trainer.prediction.calibrate import calibrate_run, factor_of, few_shot_of_run
from trainer.prediction.few_shot import Launches, fit_few_shot, posterior
from trainer.prediction.predict import predict
from trainer.prediction.request import PredictRequest
from trainer.run.folder_lock import locked
from trainer.run.kernel_factors import (
    FewShot,
    KernelFactor,
    KernelFactors,
    corrected,
    rescaled,
    work_share,
)
from trainer.run.loaded import LoadedRun, load_run
from trainer.run.shipped import shipped_run

FLOOR_NS = 5000.0


def launches(num_kernels: int, seed: int, *, per_kernel: int = 30, odd: float = 0.05) -> Launches:
    """Kernels off by a factor of their own (one of twenty by 16 and more), some launches at the floor."""
    generator = np.random.default_rng(seed)
    bias = generator.normal(0, 0.5, num_kernels)
    far = generator.random(num_kernels) < odd
    bias[far] = -generator.uniform(4, 7, int(far.sum()))
    kernel = np.repeat(np.arange(num_kernels), per_kernel)
    predicted = np.log2(FLOOR_NS + 2 ** generator.uniform(4, 24, len(kernel)))
    share = work_share(predicted, FLOOR_NS)
    change, _ = rescaled(share, bias[kernel])
    measured = predicted + change + generator.standard_t(4, len(kernel)) * 0.08
    return Launches(
        log2_measured=measured,
        log2_predicted=predicted,
        share=share,
        kernel=kernel,
        family=kernel,
    )


@pytest.fixture(scope="module")
def learnt() -> FewShot:
    return fit_few_shot(launches(80, 0), level=0.9, source="calibration")


def corrected_errors(few_shot: FewShot, known: Launches, number: int) -> tuple[np.ndarray, ...]:
    """Errors and half widths of the launches that were not measured, and their kernels."""
    place = np.arange(len(known.kernel)) % np.bincount(known.kernel)[0]
    first, rest = np.flatnonzero(place < number), np.flatnonzero(place >= number)
    num_kernels = int(known.kernel.max()) + 1
    found = posterior(few_shot, known.take(first), num_kernels)
    errors, halves = [], []
    for kernel in range(num_kernels):
        rows = rest[known.kernel[rest] == kernel]
        factor = KernelFactor(
            kernel_id=str(kernel),
            device_class="d",
            log2_factor=float(found.median[kernel]),
            sd_log2=float(found.sd[kernel]),
            num_launches=number,
        )
        own = corrected(few_shot, factor, known.log2_predicted[rows], FLOOR_NS)
        errors.append(known.log2_measured[rows] - own.log2_ns)
        halves.append(own.half_width_log2)
    return np.concatenate(errors), np.concatenate(halves), known.kernel[rest]


def macro_mape(errors: np.ndarray, kernel: np.ndarray) -> float:
    ape = np.abs(np.exp2(-errors) - 1)
    return float(np.mean(np.bincount(kernel, ape) / np.bincount(kernel)))


def test_the_error_falls_with_each_launch_and_the_intervals_cover(learnt):
    known = launches(150, 1)
    before = macro_mape(known.log2_measured - known.log2_predicted, known.kernel)
    found = {number: corrected_errors(learnt, known, number) for number in (1, 3, 5, 10)}
    mapes = [macro_mape(errors, kernel) for errors, _, kernel in found.values()]
    assert mapes[0] < 0.6 * before
    assert mapes[-1] < 0.15 * before
    assert mapes == sorted(mapes, reverse=True)
    for errors, half, kernel in found.values():
        inside = np.bincount(kernel, np.abs(errors) <= half) / np.bincount(kernel)
        assert 0.86 <= inside.mean() <= 0.97
    widths = [np.median(half) for _, half, _ in found.values()]
    assert widths[-1] < widths[0]


def test_the_prior_finds_the_noise_and_the_odd_kernels(learnt):
    assert 0.05 <= learnt.noise_log2 <= 0.12
    weight = dict(zip(learnt.scales_log2, learnt.weights, strict=True))
    assert 0.02 <= weight[3.2] + weight[6.4] <= 0.2
    assert sum(learnt.weights) == pytest.approx(1)
    assert {band.guarantee for band in learnt.bands.values()} == {"groups"}


def one_kernel(measured_ns, predicted_ns) -> Launches:
    predicted = np.log2(np.asarray(predicted_ns, dtype=np.float64))
    zeros = np.zeros(len(predicted), dtype=np.int64)
    return Launches(
        log2_measured=np.log2(np.asarray(measured_ns, dtype=np.float64)),
        log2_predicted=predicted,
        share=work_share(predicted, FLOOR_NS),
        kernel=zeros,
        family=zeros,
    )


def test_launches_at_the_floor_say_nothing_of_a_factor(learnt):
    at_floor = posterior(learnt, one_kernel([5010.0] * 5, [5005.0] * 5), 1)
    assert abs(at_floor.median[0]) < 0.1
    assert (
        at_floor.sd[0] > 0.45
    )  # kernels differ by 0.5; only factors that would show at the floor are out
    # One large launch at twice the time outweighs them.
    with_large = posterior(learnt, one_kernel([5010.0] * 5 + [2e6], [5005.0] * 5 + [1e6]), 1)
    assert with_large.median[0] == pytest.approx(1, abs=0.15)
    assert with_large.sd[0] < 0.3


def test_a_launch_at_the_floor_that_was_predicted_long_says_much(learnt):
    found = posterior(learnt, one_kernel([5000.0] * 2, [5e6] * 2), 1)
    assert found.median[0] < -6


def test_one_odd_launch_among_many_moves_little(learnt):
    clean = posterior(learnt, one_kernel([2e6] * 6, [1e6] * 6), 1)
    spoilt = posterior(learnt, one_kernel([2e6] * 6 + [64e6], [1e6] * 7), 1)
    assert abs(spoilt.median[0] - clean.median[0]) < 0.1


def test_no_launch_gives_no_factor_and_a_noisy_one_is_shrunk(learnt):
    assert posterior(learnt, one_kernel([], []), 1).median[0] == pytest.approx(0, abs=0.03)
    once = posterior(learnt, one_kernel([1.1e6], [1e6]), 1).median[0]
    often = posterior(learnt, one_kernel([1.1e6] * 12, [1e6] * 12), 1).median[0]
    assert 0 < once < often <= np.log2(1.1) + 0.02


def test_small_launches_keep_their_floor_under_a_large_factor(learnt):
    factor = KernelFactor(
        kernel_id="k", device_class="d", log2_factor=3.0, sd_log2=0.1, num_launches=3
    )
    own = corrected(learnt, factor, np.log2(np.array([5050.0, 5e7])), FLOOR_NS)
    assert np.exp2(own.log2_ns[0]) < 1.4 * 5050
    assert np.exp2(own.log2_ns[1]) == pytest.approx(8 * 5e7, rel=0.01)


def test_records_survive_json_and_damage_is_bad_input(learnt, tmp_path):
    assert FewShot.from_json(json.loads(json.dumps(learnt.to_json()))) == learnt
    factor = KernelFactor(
        kernel_id="k",
        device_class="d",
        log2_factor=0.5,
        sd_log2=0.1,
        num_launches=2,
        sample_ids=("a", "b"),
    )
    factors = KernelFactors(few_shot=learnt, factors={factor.key: factor})
    factors.save(tmp_path)
    assert KernelFactors.load(tmp_path) == factors
    assert [path.name for path in tmp_path.iterdir()] == ["kernel_factors.json"]
    (tmp_path / "kernel_factors.json").write_text('{"schema": 1}')
    with pytest.raises(BadInput, match="llmperf calibrate"):
        KernelFactors.load(tmp_path)
    assert KernelFactors.load(tmp_path / "none") is None
    for name, value in (
        ("log2_factor", 5000),
        ("sd_log2", "wide"),
        ("num_launches", None),
        ("kernel_id", ["x"]),
    ):
        factors.save(tmp_path)
        path = tmp_path / "kernel_factors.json"
        content = json.loads(path.read_text())
        content["factors"][0][name] = value
        path.write_text(json.dumps(content))
        with pytest.raises(BadInput, match=rf"{name} is |is not an id"):
            KernelFactors.load(tmp_path)


def test_a_band_of_fewer_launches_stands_in():
    bands = {
        number: Band(half_width_log2=float(number), num_rows=1, num_groups=1, guarantee="groups")
        for number in (2, 5)
    }
    shot = FewShot(
        scales_log2=(1.0,), weights=(1.0,), noise_log2=0.1, level=0.9, bands=bands, source="x"
    )
    assert [shot.band(number).half_width_log2 for number in (1, 2, 4, 5, 99)] == [2, 2, 2, 5, 5]


@pytest.fixture
def run(tmp_path) -> LoadedRun:
    shutil.copytree(trained()[2].folder, tmp_path / "run")
    return load_run(tmp_path / "run")


def slow_copy(*, factor: float, device_class: str = "synth", keep=slice(None)) -> TrainingData:
    """Unseen kernels that take ``factor`` times as long as the law that the run learnt."""
    dataset = make_dataset(num_kernels=6, num_configs=24, seed=3, first=700)
    samples = dataset.samples_table
    place = samples.column_names.index("median_ns")
    field = samples.schema.field("median_ns")
    median = samples.column("median_ns").cast(pa.float64()).to_numpy()
    samples = samples.set_column(
        place, field, pa.array(median * factor, field.type, mask=np.isnan(median))
    )
    tables = [
        samples.take(pa.array(np.arange(len(samples))[keep])),
        dataset.kernels_table,
        dataset.devices_table,
    ]
    moved = []
    for table in tables:
        at = table.column_names.index("device_class")
        moved.append(
            table.set_column(
                at, table.schema.field("device_class"), pa.array([device_class] * len(table))
            )
        )
    return data_from_tables(*moved, identity={"plan_hashes": ["x"], "manifest_version": 1})


def test_calibrate_writes_factors_that_evaluate_uses_on_the_other_launches(run, tmp_path):
    data = slow_copy(factor=3.0)
    before = (run.folder / "model" / "trees.txt").read_bytes()
    summary = calibrate_run(run, data, launches=8)
    assert len(summary.factors) == 6
    assert all(1.2 < 2**one.log2_factor < 6 for one in summary.factors)
    assert summary.num_launches == 48
    assert (run.folder / "model" / "trees.txt").read_bytes() == before
    again = load_run(run.folder)
    assert again.factors is not None
    assert set(again.factors.factors) == {one.key for one in summary.factors}
    found = evaluate(again, data, "test", tmp_path / "out")
    models = found.metrics["parts"]["test"]
    own, plain = models["gbdt"]["all"], models["gbdt-as-trained"]["all"]
    assert own["macro_mape_percent"] < 0.5 * plain["macro_mape_percent"]
    assert own["family_coverage"] > plain["family_coverage"]
    assert found.num_rows == len(data) - 48
    assert any("llmperf calibrate" in note for note in found.metrics["notes"])
    assert any("48 rows are not scored" in note for note in found.metrics["notes"])


def test_launches_that_made_the_factors_are_no_test(run, tmp_path):
    data = slow_copy(factor=3.0)
    summary = calibrate_run(run, data)
    assert summary.num_left_out == int(np.sum(~data.single_launch))
    only = data_from_tables(
        data.rows.samples.filter(pa.array(data.single_launch)),
        data.rows.kernels,
        data.devices,
        identity=dict(data.identity),
    )
    with pytest.raises(BadInput, match="--launches N"):
        evaluate(load_run(run.folder), only, "test", tmp_path / "out")


def test_factors_of_other_kernels_stay(run):
    data = slow_copy(factor=3.0)
    kernels = data.texts("kernel_id")
    half = np.isin(kernels, np.unique(kernels)[:3])
    parts = [
        data_from_tables(
            data.rows.samples.filter(pa.array(mask)),
            data.rows.kernels,
            data.devices,
            identity=dict(data.identity),
        )
        for mask in (half, ~half)
    ]
    for part in parts:
        calibrate_run(load_run(run.folder), part, launches=3)
    factors = load_run(run.folder).factors
    assert factors is not None
    assert len(factors.factors) == 6


def test_rows_that_say_nothing_are_refused(run):
    with pytest.raises(BadInput, match="rows are of h200, but the model was trained on synth"):
        calibrate_run(run, slow_copy(factor=1.0, device_class="h200"))
    data = slow_copy(factor=1.0)
    batched = data_from_tables(
        data.rows.samples.filter(pa.array(~data.single_launch)),
        data.rows.kernels,
        data.devices,
        identity=dict(data.identity),
    )
    with pytest.raises(BadInput, match="several launches in one reading"):
        calibrate_run(run, batched)
    assert not (run.folder / "kernel_factors.json").exists()


def asked(data: TrainingData, row: int = 0) -> dict[str, str]:
    kernels = data.rows.kernels.slice(row, 1).to_pylist()[0]
    return {key: kernels[key] for key in ("kernel_id", "name", "source")}


def test_measured_launches_of_one_kernel_or_why_there_are_none(run):
    data = slow_copy(factor=3.0)
    one = asked(data)
    found = factor_of(run, data, **one, device="synth")
    assert list(found.factors) == [(one["kernel_id"], "synth")]
    rebuilt = factor_of(run, data, **{**one, "kernel_id": "with other options"}, device="synth")
    (again,) = rebuilt.factors.values()
    (factor,) = found.factors.values()
    assert again.log2_factor == factor.log2_factor
    with pytest.raises(BadInput, match="measured on synth only"):
        factor_of(run, data, **one, device="h200")
    with pytest.raises(BadInput, match="no row of this kernel; its kernels are"):
        factor_of(run, data, kernel_id="x", name="unknown", source="none", device="synth")
    with pytest.raises(BadInput, match="a kernel of this name, but no ok launch"):
        factor_of(run, data, kernel_id="x", name=one["name"], source="other", device="synth")
    batched = dataclasses.replace(data, single_launch=np.zeros(len(data), dtype=bool))
    with pytest.raises(BadInput, match="several launches in one reading"):
        factor_of(run, batched, **one, device="synth")


def test_predict_says_that_it_corrects(run):
    data = slow_copy(factor=3.0)
    kernel = make_dataset(num_kernels=6, num_configs=24, seed=3, first=700).kernels[0].kernel
    size = {"global_size": 2**20, "local_size": 128, "args": {"n": 2**20}}
    buffers = {"x": 2**20, "y": 2**20}
    size["args"] |= buffers
    plain = Model(run, Analyst(run.kernels, may_probe=False)).predict(kernel.source, **size)
    model = Model(run, Analyst(run.kernels, may_probe=False), data)
    own = model.predict(kernel.source, **size)
    assert own.time_ns > 1.5 * plain.time_ns
    assert any("own factor" in warning for warning in own.warnings)
    assert not any("own factor" in warning for warning in plain.warnings)
    swept = model.predict(kernel.source, **size, sweep=True)
    assert swept["time_ns"] == own.time_ns
    assert DEVICE.device_class == own["device"]


def test_a_sweep_has_the_factor_and_its_interval_in_every_row(run):
    data = slow_copy(factor=3.0)
    kernel = make_dataset(num_kernels=6, num_configs=24, seed=3, first=700).kernels[0].kernel
    request = PredictRequest(
        kernel=kernel.name,
        signature=kernel.signature,
        global_size=(2**20,),
        local_size=(128,),
        filler=planned_filler(kernel, DEVICE, {}, Known(analysis=None, said="")),
        kernel_id=kernel.kernel_id,
        source=kernel.source,
        sweep=True,
    )
    measured = dataclasses.replace(run, factors=factor_of(run, data, **asked(data), device="synth"))
    assert asked(data)["kernel_id"] == kernel.kernel_id
    own, plain = predict(measured, request), predict(run, request)
    times = [
        {tuple(row["local_size"]): row["time_ns"] for row in one["sweep"]} for one in (own, plain)
    ]
    assert all(1.5 < times[0][size] / times[1][size] < 6 for size in times[1])
    known = [row for row in own["sweep"] if row["low_ns"] is not None]
    assert known
    assert all(row["low_ns"] < row["time_ns"] < row["high_ns"] for row in known)
    assert own["interval"]["level"] == 0.9
    assert any("without guarantee" in warning for warning in own["warnings"])  # five families


def test_an_earlier_run_learns_from_its_predictions(run):
    assert run.few_shot is not None
    take_out(run.folder, "few_shot.json")
    old = load_run(run.folder)
    assert old.few_shot is None
    assert few_shot_of_run(old) == run.few_shot
    take_out(run.folder, "predictions.parquet")
    with pytest.raises(BadInput, match="train the run again"):
        few_shot_of_run(old)


def test_launches_that_disagree_widen_the_interval_and_say_so(learnt):
    """Before, half of them decided, and the interval was as narrow as if all of them agreed."""
    agreeing = posterior(learnt, one_kernel([1e6] * 12, [1e6] * 12), 1)
    torn = posterior(learnt, one_kernel([1e6, 1e7] * 6, [1e6] * 12), 1)
    assert agreeing.scatter[0] < 0.05
    assert posterior(learnt, one_kernel([3e6], [1e6]), 1).scatter[0] < 0.2, "one launch agrees"
    halves = []
    for found in (agreeing, torn):
        factor = KernelFactor(
            kernel_id="k", device_class="d", log2_factor=float(found.median[0]),
            sd_log2=float(found.sd[0]), num_launches=12, scatter_log2=float(found.scatter[0]),
        )  # fmt: skip
        own = corrected(learnt, factor, np.log2([1e6]), FLOOR_NS)
        halves.append((own.log2_ns[0], own.half_width_log2[0]))
        assert ("of these launches are still" in factor.said()) == (found is torn)
    (_, narrow), (centre, wide) = halves
    assert wide > 5 * narrow
    assert centre - wide < np.log2(1e6)
    assert centre + wide > np.log2(1e7), "both halves lie in the interval"


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize(("predicted_ns", "ratio"), [(FLOOR_NS + 100, 3000.0), (1e7, 2.0**20)])
def test_launches_that_no_factor_explains_are_seen(learnt, number, predicted_ns, ratio):
    """One launch, too: as an outlier it would leave the factor at 1, with a narrow interval."""
    times = one_kernel([predicted_ns * ratio] * number, [predicted_ns] * number)
    assert posterior(learnt, times, 1).is_beyond[0]


def test_a_factor_that_explains_its_launches_is_used_at_the_end_of_the_grid_too(learnt):
    times = one_kernel([200 * 5100.0] * 5, [5100.0] * 5)  # 5 % of work: 2^12 times more of it
    found = posterior(learnt, times, 1)
    assert not found.is_beyond[0]
    assert found.scatter[0] < 0.3


@pytest.mark.parametrize("factor", [2.0**20, 2.0**-30])
def test_a_kernel_beyond_all_factors_gets_none(run, factor):
    """Before, it got the factor at the end of the grid and a narrow interval around a wrong time."""
    data = slow_copy(factor=factor)
    with pytest.raises(BadInput, match="no factor of the predicted work"):
        factor_of(run, data, **asked(data), device="synth")
    with pytest.raises(BadInput, match=r"--data: no factor of the predicted work"):
        calibrate_run(run, data)
    assert not (run.folder / "kernel_factors.json").exists()
    calibrate_run(load_run(run.folder), slow_copy(factor=3.0))
    with pytest.raises(BadInput, match="no factor"):
        calibrate_run(load_run(run.folder), data)
    known = KernelFactors.load(run.folder)
    assert known is not None
    assert not known.factors, "an earlier factor of such a kernel goes"


def test_calibrations_at_once_keep_each_others_factors(run):
    """Each process has loaded the run before the other one writes."""
    data = slow_copy(factor=3.0)
    kernels = data.texts("kernel_id")
    half = np.isin(kernels, np.unique(kernels)[:3])
    loaded = [load_run(run.folder) for _ in range(2)]
    for one, mask in zip(loaded, (half, ~half), strict=True):
        part = data_from_tables(
            data.rows.samples.filter(pa.array(mask)), data.rows.kernels, data.devices,
            identity=dict(data.identity),
        )  # fmt: skip
        calibrate_run(one, part, launches=3)
    factors = load_run(run.folder).factors
    assert factors is not None
    assert len(factors.factors) == 6


def test_a_run_that_another_process_changes_is_not_calibrated(run, monkeypatch):
    monkeypatch.setattr("trainer.prediction.calibrate._LOCK_WAIT_S", 0.1)
    data = slow_copy(factor=3.0)
    with (
        locked(run.folder, "free"),
        pytest.raises(RunExists, match="another process changes this run"),
    ):
        calibrate_run(run, data)
    marker = run.folder / "published.json"
    predict_rows = type(run.model).predict

    def trained_anew(model, rows):
        marker.write_text(marker.read_text() + "\n")
        return predict_rows(model, rows)

    monkeypatch.setattr(type(run.model), "predict", trained_anew)
    with pytest.raises(BadInput, match="was trained anew meanwhile"):
        calibrate_run(run, data)
    assert not (run.folder / "kernel_factors.json").exists()


def test_the_shipped_model_takes_measured_launches_and_stays_as_it_is():
    shipped = shipped_run()
    assert shipped is not None
    run = load_run(shipped)
    assert few_shot_of_run(run).bands[5].guarantee == "groups"
    with pytest.raises(BadInput, match="comes with LLMPerf and is not changed"):
        calibrate_run(run, slow_copy(factor=1.0))
