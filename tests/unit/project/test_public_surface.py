"""What users and their tools rely on, frozen: a change here is a decision, and a line in CHANGELOG.md.

Also what importing the package and asking for help may load: nothing heavy.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys

import pytest

import llmperf
from cluster.config import ClusterCollectConfig
from cluster.telemetry.metrics import METRICS
from llmperf.exits import Exit, exit_code_of
from llmperf.reference import api as reference_api
from llmperf.reference.commands import commands, option_names
from llmperf_common import errors
from llmperf_common.config import key_names, preset_names
from llmperf_common.failures import FailureCode
from llmperf_common.schemas import SCHEMA_VERSION, TABLES
from tests.support.wheel import PACKAGES, REPOSITORY
from trainer.config import TrainConfig
from trainer.evaluation.scoring import PREDICTIONS
from workers.collect.events import EVENT_KINDS
from workers.config import CollectConfig

OPTIONS = {
    "llmperf doctor": "--again --json",
    "llmperf collect": "--corpus --out --device --samples-per-kernel --strategy --seed --max-time --max-failures --preset --config --set --cluster --ledger --ledger-file",
    "llmperf status": "[DIR] --ledger --ledger-file --watch --json",
    "llmperf train": "--data --out --preset --init --cluster --workers --config --set --json",
    "llmperf evaluate": "[RUN] --data --out --split --allow-seen --json",
    "llmperf calibrate": "[RUN] --data --launches --json",
    "llmperf predict": "[FILE.cl] --global-size --local-size --configs --out --kernel --model --device --arg --sweep --measured --work --json",
    "llmperf report": "[DIR] --out --evaluation --kernel --kernels --accesses",
    "llmperf kernels": "--copy --json",
    "llmperf corpus build": "[SRC...] --out --suite --analyse --device",
    "llmperf corpus stats": "[CORPUS.parquet] --json",
    "llmperf dataset verify": "[DIR] --json",
    "llmperf dataset stats": "[DIR] --json",
    "llmperf dataset card": "[DIR]",
    "llmperf dataset merge": "[DIR...] --out",
    "llmperf dataset repair": "[DIR] --dry-run --json",
    "llmperf dataset compact": "[DIR] --target-rows --target-mib --json",
    "llmperf dataset export": "[DIR] --out --format",
}
COLLECT_KEYS = """
    plan.strategies plan.samples_per_kernel plan.seed plan.plain_share plan.sampler plan.local_sizes
    plan.sibling_share plan.idle_share plan.under_share plan.max_groups_per_unit
    plan.max_work_items plan.max_launch_bytes timing.warmups timing.min_readings
    timing.max_readings timing.relative_standard_error timing.sample_budget_ms
    timing.max_launch_ms timing.cold_readings timing.batch_step_share timing.spin_up_ms
    timing.sentinel_every_tasks timing.payload_checks timing.one_processor timing.poll_hz limits.build_timeout_s
    limits.analysis_timeout_s limits.analysis_device limits.check_reach limits.work limits.work_timeout_s limits.config_timeout_s limits.task_timeout_s limits.task_budget_s limits.deaths_to_quarantine
    limits.faults_to_end_strategy limits.kernel_resources limits.compile_children limits.allow_busy_gpu limits.max_time_s limits.max_failures store.commit_interval_s
    store.publish_interval_s store.max_shard_rows ledger.lease_ttl_s ledger.away_limit_s ledger.claim_ahead
"""
CLUSTER_KEYS = """
    cluster.pools cluster.device_classes cluster.start_timeout_s cluster.scan_interval_s cluster.restart_delay_s
    cluster.max_restarts cluster.drain_throttled_share cluster.drain_sentinel_drift cluster.drift_pause_s
    cluster.drift_patience_s cluster.drain_faulty_tasks
"""
METRIC_NAMES = """
    llmperf_samples llmperf_tasks_done llmperf_tasks_in_hand llmperf_ok_samples_per_second llmperf_device_busy_share
    llmperf_device_temperature_celsius llmperf_device_throttled_share llmperf_worker_state llmperf_seat_state
    llmperf_ledger_seconds llmperf_commit_seconds
"""
EVENTS = "claimed timed finished committed refused published lost seat log"
TRAIN_KEYS = """
model train.seed train.num_threads train.balance train.device train.rows train.overwrite split.kind split.seed
split.held_out_share split.public_suites gbdt.num_rounds gbdt.early_stopping_rounds gbdt.learning_rate
gbdt.num_leaves gbdt.min_rows_in_leaf gbdt.feature_share gbdt.row_share gbdt.l2 gbdt.tune
gbdt.tune_min_families gbdt.tune_folds gbdt.tune_rows feature_network.networks feature_network.width
feature_network.blocks feature_network.terms feature_network.steps feature_network.kernels_per_step
feature_network.configs_per_kernel feature_network.learning_rate feature_network.weight_decay
feature_network.dropout feature_network.noise feature_network.log_share feature_network.bfloat16
feature_ensemble.trees feature_ensemble.num_leaves feature_ensemble.min_rows_in_leaf
feature_ensemble.learning_rate feature_ensemble.feature_share feature_ensemble.row_share feature_ensemble.l2
feature_ensemble.configs_per_kernel feature_ensemble.caution feature_ensemble.min_counted_kernels
feature_ensemble.base log_linear.ridge conformal.level
conformal.by_regime conformal.cross_folds judge.bootstrap_replicates judge.min_configs prompt.form
prompt.max_tokens prompt.too_long prompt.vocabulary packing.lengths packing.configs_per_kernel
packing.tokens_per_step packing.tokens_per_pass regressor.backbone regressor.reads regressor.width
regressor.depth regressor.heads regressor.lora_rank regressor.activation_checkpointing regressor.features
regressor.head regressor.head_width regressor.offset optimiser.loss optimiser.learning_rate
optimiser.backbone_learning_rate optimiser.schedule optimiser.final_share optimiser.warmup_steps
optimiser.max_steps optimiser.weight_decay optimiser.beta_2 optimiser.clip_norm optimiser.precision
optimiser.zero_stage optimiser.evaluate_every_steps optimiser.patience checkpoint.every_steps checkpoint.keep
checkpoint.keep_after log.every_steps log.tensorboard cluster.start_timeout_s cluster.max_restarts
"""
CODES = """
    build_error build_timeout compiler_crash launch_error device_fault hang out_of_memory
    unsupported over_time_budget node_lost quarantined internal_error
"""
COLUMNS = {
    "samples": """
        sample_id task_id kernel_id device_id device_class global_size local_size args
        regime input_strategy input_strategies status failure_detail time_ns median_ns
        min_ns iqr_ns mean_ns first_ns cold_ns launches_per_reading stop_reason sm_clock_mhz
        temperature_c throttled checks work work_reason censor_reason seed harness_version task_attempt worker_id
        created_at
    """,
    "kernels": """
        task_id kernel_id name source source_sha256 family_id suite path dims device_class
        args required_local_size static_local_bytes invented_macros task_budget_s one_processor activity analysis data_dependent index_roles analysis_failure overflowing_local_sizes inputs build static_features registers spill_bytes shared_bytes occupancy
    """,
    "devices": """
        device_id device_class device_uuid name platform driver compute_units
        max_work_group_size max_work_item_sizes max_clock_mhz global_memory_bytes
        max_allocation_bytes local_memory_bytes last_level_cache_bytes has_fp64
        plain_work_group_size has_half timer_step_ns peak_dram_gbps peak_l2_gbps
        peak_fp32_gflops peak_fp64_gflops launch_floor_ns max_constant_buffer_bytes
        compute_capability warp_size registers_per_unit local_memory_per_unit_bytes
        max_work_items_per_unit max_work_groups_per_unit memory_bus_bits
        max_memory_clock_mhz has_ecc pci_bus_id power_limit_w peak_dram_spread peak_l2_spread peak_fp32_spread
        peak_fp64_spread
    """,
    "predictions": """
        sample_id kernel_id family_id suite split model device_class median_ns predicted_ns
        low_ns high_ns
    """,
}

HEAVY = (
    "pyarrow", "numpy", "torch", "ray", "deepspeed", "pyopencl", "lightgbm", "pydantic", "typer",
    "redis", "boto3", "botocore", "transformers", "sklearn", "scipy", "clang", "datasketch", "pynvml",
)  # fmt: skip
HEAVY_FOR_HELP = tuple(sorted(set(HEAVY) - {"typer"}))


def test_commands_and_options() -> None:
    assert {name: " ".join(option_names(command)) for name, command in commands()} == OPTIONS


def test_config_keys() -> None:
    assert list(key_names(CollectConfig)) == COLLECT_KEYS.split()
    assert list(key_names(TrainConfig)) == TRAIN_KEYS.split()
    of_cluster = [*COLLECT_KEYS.split(), *CLUSTER_KEYS.split()]
    assert list(key_names(ClusterCollectConfig)) == of_cluster


def test_metrics_and_events() -> None:
    assert [one.name for one in METRICS] == METRIC_NAMES.split()
    assert list(EVENT_KINDS) == EVENTS.split()


def test_presets() -> None:
    assert preset_names("collect") == ["400k", "default", "demo"]
    assert preset_names("train") == [
        "codegen-2b", "codegen-350m", "feature-ensemble", "feature-network", "gbdt", "log-linear", "paper-2b",
        "paper-350m", "small", "tiny",
    ]  # fmt: skip


def test_exported_names() -> None:
    wanted = [
        "CollectProgress", "LlmperfError", "Prediction", "__version__", "calibrate", "collect", "collect_on_cluster",
        "evaluate", "load_model", "open_dataset", "predict", "predict_many", "report", "train", "train_on_cluster",
        "verify",
    ]  # fmt: skip
    assert wanted == llmperf.__all__
    assert dir(llmperf) == wanted
    assert all(getattr(llmperf, name) for name in wanted)


def test_failure_codes() -> None:
    assert [str(code) for code in FailureCode] == CODES.split()


def test_columns() -> None:
    found = {table: schema.names for table, schema in TABLES.items()}
    found["predictions"] = PREDICTIONS.names
    assert found == {table: names.split() for table, names in COLUMNS.items()}
    assert SCHEMA_VERSION == 6


def test_exit_codes() -> None:
    assert {code.name: code.value for code in Exit} == {
        "DONE": 0,
        "USAGE": 2,
        "BAD_INPUT": 3,
        "NO_DEVICE": 4,
        "TOO_MANY_FAILURES": 5,
        "INTERRUPTED": 130,
    }


@pytest.mark.parametrize("command", ["collect", "train"])
def test_the_help_names_every_preset(command: str) -> None:
    options = dict(commands())[f"llmperf {command}"].params
    (text,) = [one.help for one in options if "--preset" in one.opts]
    assert [name for name in preset_names(command) if name not in text] == []


ERRORS = {
    "llmperf.exits.CommandError": 3,
    "llmperf_common.config.ConfigError": 2,
    "llmperf_common.files.outputs.OutputTaken": 2,
    "trainer.errors.RunExists": 2,
    "llmperf_common.extras.MissingExtra": 2,
    "cluster.ledger.redis_connection.LedgerUrlError": 2,
    "cluster.collect.ManyHostsError": 2,
    "cluster.pool.runtime.ClusterAddressError": 2,
    "llmperf_common.store.files.filesystem.StoreError": 3,
    "llmperf_common.store.manifests.run.ForeignRunError": 2,
    "llmperf_common.ledger.protocol.LedgerAwayError": 3,
    "workers.corpus.files.CorpusError": 3,
    "workers.source.parse_pool.ParserError": 3,
    "llmperf_common.statistics.splits.SplitError": 3,
    "trainer.errors.BadInput": 3,
    "trainer.errors.SeenRows": 3,
    "trainer.errors.FitFailed": 3,
    "trainer.errors.Interrupted": 130,
    "trainer.launch.ray.RayUnreachable": 2,
    "trainer.launch.ray.ClusterTooSmall": 4,
    "trainer.life.conductor.FirstProcessFailedError": 3,
    "workers.sandbox.run_children.DeviceLostError": 4,
    "workers.device.nvidia.gpu_lock.GpuTakenError": 4,
    "llmperf_common.files.plain_files.UnfitFileError": 3,
    "llmperf_common.installation.InstallationChanged": 3,
    "llmperf_common.features.features.UnknownFeatureError": 3,
    "workers.execution.doubtful_builds.NothingCompilesError": 5,
}
"""The tree of ``llmperf_common/errors.py`` with the exit codes."""
ALSO_VALUE_ERRORS = (
    "ConfigError", "LedgerUrlError", "ManyHostsError", "ClusterAddressError", "CorpusError",
    "SplitError", "BadInput", "RayUnreachable", "UnknownFeatureError",
)  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_a_foreseeable_error_has_the_base_and_its_code(name: str) -> None:
    module, _, kind = name.rpartition(".")
    found = getattr(importlib.import_module(module), kind)
    assert issubclass(found, llmperf.LlmperfError)
    assert found.exit_code == ERRORS[name]
    assert exit_code_of(found.__new__(found)) == ERRORS[name]
    assert kind not in ALSO_VALUE_ERRORS or issubclass(found, ValueError)


def test_no_foreseeable_error_is_left_out() -> None:
    """A class that derives from the base itself is one that a user may want to catch."""
    found = set()
    for package in PACKAGES:
        for path in (REPOSITORY / package).rglob("*.py"):
            module = ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    bases = {ast.unparse(base) for base in node.bases}
                    found |= {f"{module}.{node.name}"} if "LlmperfError" in bases else set()
    assert found - set(ERRORS) == set()


def test_the_tree_of_errors_is_drawn() -> None:
    drawn = re.findall(r"\+-- (\w+)", str(errors.__doc__))
    assert sorted(drawn) == sorted(name.rpartition(".")[2] for name in ERRORS)
    assert set(reference_api.ERRORS) == set(ERRORS)


_IMPORT = "import llmperf"
_HELP = """
import sys
sys.argv = ["llmperf", *{arguments!r}]
from llmperf.cli.main import run
try:
    run()
except SystemExit as end:
    assert end.code in (0, None), end.code
"""
_LOADED = (
    "\nimport sys; sys.stderr.write(' '.join(name for name in {heavy!r} if name in sys.modules))"
)


@pytest.mark.parametrize(
    ("program", "heavy"),
    [
        pytest.param(_IMPORT, HEAVY, id="import"),
        pytest.param(_HELP.format(arguments=["--help"]), HEAVY_FOR_HELP, id="help"),
        pytest.param(_HELP.format(arguments=["--version"]), HEAVY_FOR_HELP, id="version"),
    ],
)
def test_nothing_heavy_is_loaded(program: str, heavy: tuple[str, ...]) -> None:
    """In a process of its own: this one has everything loaded."""
    done = subprocess.run(
        [sys.executable, "-c", program + _LOADED.format(heavy=heavy)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
