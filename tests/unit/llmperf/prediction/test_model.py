"""A loaded model: sources and sizes as users have them, many launches at once, what is read and probed once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import llmperf
from llmperf.prediction.analysing import Analyst, Known
from llmperf.prediction.analysis_cache import AnalysisCache
from llmperf.prediction.model import Launch, Model
from llmperf.prediction.record import Prediction
from llmperf.progress import cluster_observer, observers
from llmperf_common.analysis import Analysis, Extent, Polynomial, Term
from tests.support.factories.synthetic_dataset import trained
from trainer.errors import BadInput
from trainer.interface import Predicted
from workers.corpus.one_source import file_of_text, read

VADD = """__kernel void vadd(__global const float *a, __global const float *b, __global float *c, int n)
{
    int i = get_global_id(0);
    if (i < n) c[i] = a[i] + b[i];
}
"""
VADD_ARGS = {"a": 4096, "b": 4096, "c": 4096, "n": 4096}


@pytest.fixture(scope="module")
def model() -> Model:
    return llmperf.load_model(trained()[2].folder, analyse=False)


def test_a_text_a_path_and_a_string_of_a_path_are_the_same_source(model, tmp_path: Path):
    path = tmp_path / "vadd.cl"
    path.write_text(VADD)
    answers = [
        model.predict(source, global_size=4096, local_size=64, args=VADD_ARGS)
        for source in (VADD, path, str(path))
    ]
    assert answers[0] == answers[1] == answers[2]
    assert answers[0]["kernel"] == "vadd"
    again = llmperf.predict(
        VADD, global_size=(4096,), local_size=[64], args=VADD_ARGS, model=trained()[2].folder
    )
    assert again == answers[0]


def test_sizes_are_numbers_or_sequences_of_them(model):
    plain = model.predict(VADD, global_size=4096, local_size=64, args=VADD_ARGS)
    for size in ((4096,), [4096], np.int64(4096), np.array([4096])):
        assert model.predict(VADD, global_size=size, local_size=64, args=VADD_ARGS) == plain
    for size in (4096.0, "4096", (4096.5,), None):
        with pytest.raises(BadInput, match="give a whole number, or one for each dimension"):
            model.predict(VADD, global_size=size, local_size=64)


def test_many_launches_are_answered_like_each_alone(model):
    launches = [
        Launch(global_size=4096, local_size=64, args=VADD_ARGS),
        {"global_size": (2**20,), "local_size": 128, "sweep": True},
        {"global_size": 96, "local_size": 32, "args": {"n": 50}},
    ]
    together = model.predict_many(VADD, launches, best_local_size=True)
    alone = [
        model.predict(VADD, global_size=4096, local_size=64, args=VADD_ARGS),
        model.predict(VADD, global_size=2**20, local_size=128, sweep=True),
        model.predict(VADD, global_size=96, local_size=32, args={"n": 50}),
    ]
    assert together == alone
    times = model.predict_many(VADD, launches)
    assert [one.time_ns for one in times] == [one.time_ns for one in alone]
    assert [one["local_size_best"] for one in times] == [[], alone[1]["local_size_best"], []]
    assert model.predict_many(VADD, []) == []
    with pytest.raises(BadInput, match="found global_size, size"):
        model.predict_many(VADD, [{"global_size": 4096, "size": 64}])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"a": None}, "--arg a=None: a buffer's value is its number of elements"),
        ({"a": [1]}, r"--arg a=\[1\]: a buffer's value"),
        ({"n": [1]}, r"--arg n=\[1\]: 'int' takes a whole number"),
        ({3: 1}, "--arg 3: the kernel's arguments are a, b, c, n"),
        ([("n", 3)], "give a mapping of names to values"),
        (5, "args=5: give a mapping"),
    ],
)
def test_arguments_that_cannot_be_are_refused(model, args, message: str):
    with pytest.raises(BadInput, match=message):
        model.predict(VADD, global_size=4096, local_size=64, args=args)


def test_a_floating_argument_that_is_no_number_is_refused(model):
    source = "__kernel void f(float x, __global float *a) { a[get_global_id(0)] = x; }"
    for value in (None, [1], "one"):
        with pytest.raises(BadInput, match=r"--arg x=.*takes a number"):
            model.predict(source, global_size=4096, local_size=64, args={"x": value})


@pytest.mark.parametrize("source", [5, None, b"__kernel void f() {}", ["a.cl"]])
def test_a_source_of_another_type_is_refused(model, source):
    with pytest.raises(BadInput, match="give the path of an OpenCL source, or its text"):
        model.predict(source, global_size=64, local_size=64)


@pytest.mark.parametrize("launches", [5, None, "text", {"global_size": 64, "local_size": 64}])
def test_launches_that_are_no_list_are_refused(model, launches):
    with pytest.raises(BadInput, match="give a list; for one launch use predict"):
        model.predict_many(VADD, launches)
    with pytest.raises(BadInput, match="give a list; for one launch use predict"):
        model.predict_many(VADD, Launch(global_size=64, local_size=64))


def test_launches_that_cannot_be_are_refused(model):
    sizes = {"global_size": 4096, "local_size": 64}
    assert model.predict_many(VADD, [{**sizes, "args": None}]) == model.predict_many(VADD, [sizes])
    for launch in (5, None, [1, 2], "text"):
        with pytest.raises(BadInput, match="a launch has global_size, local_size and"):
            model.predict_many(VADD, [launch])


def test_the_record_is_the_json_document_and_a_table_for_notebooks(model):
    found = model.predict(VADD, global_size=2**18, local_size=64, sweep=True)
    assert isinstance(found, Prediction)
    assert json.loads(json.dumps(found)) == found
    assert found.time_ns == found["time_ns"]
    assert found.local_size_best == tuple(found["local_size_best"])
    page = found._repr_html_()
    assert page.startswith("<table><caption>vadd on synth</caption>")
    assert page.count("<tr>") == 6 + len(found["warnings"]) + len(found["sweep"])
    assert "&lt;b&gt;" in Prediction({**found, "kernel": "<b>"})._repr_html_()


def test_an_edited_file_is_read_again(model, tmp_path: Path):
    path = tmp_path / "k.cl"
    path.write_text(VADD)
    model.predict(path, global_size=64, local_size=64)
    path.write_text(VADD.replace("vadd", "other"))
    assert model.predict(path, global_size=64, local_size=64)["kernel"] == "other"


def test_a_kernel_with_buffers_is_probed_once(model, monkeypatch: pytest.MonkeyPatch):
    """Also where all is given: whether a buffer is overrun must not depend on earlier questions."""
    asked = []

    def noted(self: Analyst, kernel) -> Known:
        asked.append(kernel.name)
        return Known(analysis=None, said="no device")

    monkeypatch.setattr(Analyst, "_probed", noted)
    probing = llmperf.load_model(trained()[2].folder)
    scalars_only = "__kernel void nothing(int n) {}\n"
    probing.predict(scalars_only, global_size=4096, local_size=64, args={"n": 1})
    assert asked == []
    fresh = VADD.replace("vadd", "nothing_has_this_name")
    for args in (VADD_ARGS, VADD_ARGS, {}):
        found = probing.predict(fresh, global_size=4096, local_size=64, args=args)
        assert asked == ["nothing_has_this_name"]
    assert any("not known: no device" in text for text in found["warnings"])


@pytest.mark.parametrize("progress", [True, False, None, lambda line: None])
def test_progress_is_told_as_by_collect_and_train(progress, capsys):
    model = llmperf.load_model(trained()[2].folder, progress=progress)
    model._analyst.progress("a step begins")
    assert capsys.readouterr().err == ("a step begins\n" if progress is True else "")


def test_a_progress_that_is_none_is_refused(tmp_path: Path):
    with pytest.raises(
        llmperf.LlmperfError, match="progress='yes': give True, False, None or a function"
    ):
        llmperf.load_model(trained()[2].folder, progress="yes")
    with (
        pytest.raises(llmperf.LlmperfError, match="progress=1: give"),
        observers(1),
    ):
        pass
    with pytest.raises(llmperf.LlmperfError, match="progress=1: give"):
        cluster_observer(1)


def test_analyses_are_kept_for_later_processes(tmp_path: Path):
    (source,) = read(Path("x"), (file_of_text(VADD, "x"),))
    form = Polynomial(constant=0, terms=(Term(factors=("global_size_0",), coefficient=1),))
    found = Analysis(extents=(Extent(position=0, form=form, validated=True),), data_dependent=False)
    cache = AnalysisCache(tmp_path / "analyses")
    stored = trained()[2].folder
    assert cache.read(source.kernel.kernel_id) is None
    cache.write(source.kernel.kernel_id, found)
    known = Analyst(Model.load(stored)._run.kernels, cache=cache).knows(source.kernel)
    assert known is not None
    assert known.analysis == found
    assert "earlier prediction" in known.said
    next(iter(cache.folder.iterdir())).write_text("{")
    assert cache.read(source.kernel.kernel_id) is None
    AnalysisCache(tmp_path / "analyses" / "x.json" / "y").write("k", found)  # no folder: no cache


def test_a_failed_analysis_is_one_short_line(tmp_path: Path):
    (source,) = read(Path("x"), (file_of_text(VADD, "x"),))
    cache = AnalysisCache(tmp_path)
    extents = (Extent(position=0, form=None),)
    cache.write(
        source.kernel.kernel_id, Analysis(extents=extents, failure="Traceback\n" + "x\n" * 999)
    )
    known = Analyst(Model.load(trained()[2].folder)._run.kernels, cache=cache).knows(source.kernel)
    assert known is not None
    assert known.said.startswith("the kernel's memory analysis failed: Traceback x")
    assert "\n" not in known.said
    assert len(known.said) < 300


def test_a_time_below_what_the_bytes_take_is_raised(model):
    """3 GiB in the 4,000 ns of an empty launch would be 800 TB/s."""

    class Optimist:
        name = "optimist"

        def predict(self, rows):
            return Predicted(log2_ns=np.full(len(rows), 12.0))

    hopeful = Model(replace(model._run, model=Optimist()), model._analyst)
    found = hopeful.predict(VADD, global_size=2**28, local_size=64, sweep=True)
    least_ns = (3 * 4 * 2**28 - 2 * 2**22) / 1600
    assert found["time_ns"] == pytest.approx(least_ns)
    assert any("raised to" in text for text in found["warnings"])
    assert all(row["time_ns"] >= least_ns * 0.999 for row in found["sweep"])
    small = hopeful.predict(VADD, global_size=4096, local_size=64, args={"n": 4096})
    assert small["time_ns"] == 4096.0
    assert not any("raised" in text for text in small["warnings"])


def test_times_raised_to_the_same_bound_are_a_tie_that_the_asked_size_wins(model):
    class Optimist:
        name = "optimist"

        def predict(self, rows):
            # The asked size, the first, is the slowest.
            return Predicted(log2_ns=12.0 - 0.1 * np.arange(len(rows)))

    hopeful = Model(replace(model._run, model=Optimist()), model._analyst)
    found = hopeful.predict(VADD, global_size=2**28, local_size=64, sweep=True)
    assert len({row["time_ns"] for row in found["sweep"]}) == 1
    assert found.local_size_best == (64,)
    assert found["sweep"][0]["local_size"] == [64]
    assert not any("predicted to be the fastest" in text for text in found.warnings)


def test_there_is_no_interval_where_the_launch_is_unlike_the_training_data(model):
    far = model.predict(VADD, global_size=2**30, local_size=64, sweep=True)
    assert far["ood"] is True
    assert far["interval"] == {"level": None, "low_ns": None, "high_ns": None}
    assert far.interval_ns is None
    assert far.interval_text() == "no calibrated interval: unlike the training data"
    assert {row["low_ns"] for row in far["sweep"]} == {None}


def test_a_faster_local_size_that_training_never_had_is_named(model):
    for size in (2**18, 2**20, 2**22):
        found = model.predict(VADD, global_size=size, local_size=64, sweep=True)
        fastest = found["sweep"][0]["local_size"]
        times = {tuple(row["local_size"]): row["time_ns"] for row in found["sweep"]}
        said = [text for text in found["warnings"] if "predicted to be the fastest" in text]
        assert bool(said) == (found["sweep"][0]["time_ns"] < times[found.local_size_best])
        if said:
            assert f"local size {fastest[0]} is" in said[0]
            assert f"local_size_best is {found['local_size_best'][0]}" in said[0]
