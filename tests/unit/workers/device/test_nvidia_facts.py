"""Facts of the CUDA driver: from attributes by number to fields of ``Device``; what is missing is None."""

from __future__ import annotations

import dataclasses

import pytest

from llmperf_common.records import Device
from workers.device.nvidia.cache import NvidiaFacts, facts_of, l2_cache_bytes, nvidia_facts

H200 = {
    10: 32, 32: 1, 33: 0x1B, 34: 0, 36: 3_201_000, 37: 6144, 38: 62_914_560, 39: 2048, 50: 0, 75: 9, 76: 0,
    81: 233_472, 82: 65_536, 106: 32,
}  # fmt: skip
WHOLE = NvidiaFacts(
    compute_capability="9.0", warp_size=32, registers_per_unit=65_536, local_memory_per_unit_bytes=233_472,
    max_work_items_per_unit=2048, max_work_groups_per_unit=32, memory_bus_bits=6144,
    max_memory_clock_mhz=3201.0, has_ecc=True, pci_bus_id="00000000:1B:00.0",
)  # fmt: skip


def test_every_fact_is_a_field_of_the_record():
    fields = {field.name for field in dataclasses.fields(Device)}
    assert {field.name for field in dataclasses.fields(NvidiaFacts)} <= fields


def test_a_card_that_tells_everything():
    assert facts_of(H200.get) == WHOLE


@pytest.mark.parametrize(
    ("attribute", "name"),
    [(75, "compute_capability"), (36, "max_memory_clock_mhz"), (32, "has_ecc"), (33, "pci_bus_id"), (106, "max_work_groups_per_unit")],
)  # fmt: skip
def test_what_a_driver_does_not_know_is_none(attribute, name):
    left = {number: value for number, value in H200.items() if number != attribute}
    assert facts_of(left.get) == dataclasses.replace(WHOLE, **{name: None})


def test_no_such_card():
    unknown = "00000000-0000-0000-0000-000000000001"
    assert nvidia_facts(unknown) == NvidiaFacts()
    assert l2_cache_bytes(unknown) is None
