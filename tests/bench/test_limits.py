"""What a machine allows, against sums done by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.common.plan import Plan
from bench.engines.limits import Rates, Step, compiler_options, steps
from bench.engines.model import Work

WORK = Work(bytes=100, expert_bytes=0, expert_share=1.0, layer_macs=1000, head_macs=500, attention_macs=10, kv_bytes=4, context=4096)


def test_a_prompt_reads_the_weights_once_and_half_its_length_a_token() -> None:
    plan = Plan("", 2, prefill=20, batches=(), deep=0)
    assert list(steps(plan, WORK)) == [Step("prefill", 20, 100, 20 * 1000 + 500, 20 * 10 * 10)]


def test_sequences_share_the_weights_and_each_reads_its_own_keys_and_values() -> None:
    plan = Plan("", 2, prefill=20, batches=(4,), context=30, steps=20)
    found = {step.column: step for step in steps(plan, WORK)}["b4"]
    assert found == Step("b4", 4, 100 + 4 * 40 * 4, 4 * 1500, 4 * 40 * 10)


def test_experts_are_read_that_any_token_takes() -> None:
    plan = Plan("", 2, prefill=20, batches=(1, 2, 32), context=30, steps=20, deep=0)
    experts = replace(WORK, bytes=40, expert_bytes=800, expert_share=0.125, kv_bytes=0)
    read = {step.column: step.read for step in steps(plan, experts)}
    assert (read["b1"], read["b2"]) == (40 + 100, 40 + 100 + 100 * 0.875)
    assert read["b32"] == pytest.approx(40 + 800 * (1 - 0.875**32))
    assert read["prefill"] == pytest.approx(40 + 800 * (1 - 0.875**20))


def test_the_times_of_both_kinds_of_multiplication_add_up() -> None:
    step = Step("b4", 4, read=2e9, integers=3e9, floats=1e9)
    rates = Rates(read=1.0, integers=6.0, blocks=3.0, floats=2.0)
    assert step.by_reading(rates) == pytest.approx(2.0)
    assert step.by_multiplying(rates.integers, rates.floats) == pytest.approx(4.0)
    assert step.by_multiplying(rates.blocks, rates.floats) == pytest.approx(4 / 1.5)


def test_the_rate_of_four_bits_counts_where_it_is_another() -> None:
    measured: dict[str, dict[str, float | str]] = {"int8": {"how": "", "2": 5.0}, "read_GBps": {"2": 1.0}}
    assert Rates.of(measured, 2, 1) == Rates(1.0, 5.0, 0.0, 0.0)
    assert Rates.of(measured | {"int4x8": {"2": 7.0}}, 2, 1).integers == 7.0


def test_tiles_count_from_as_many_rows_on_as_they_have() -> None:
    bare: dict[str, dict[str, float | str]] = {"int8": {"2": 5.0}, "int8 in blocks": {"2": 4.0}}
    measured = bare | {"int8 in tiles": {"2": 9.0}, "int8 in tiles in blocks": {"2": 6.0}}
    assert [Rates.of(measured, 2, rows) for rows in (15, 16)] == [Rates(0.0, 5.0, 4.0, 0.0), Rates(0.0, 9.0, 6.0, 0.0)]
    assert Rates.of(bare, 2, 16) == Rates(0.0, 5.0, 4.0, 0.0)


@pytest.mark.parametrize(
    ("isas", "options"),
    [
        (("",), ()),
        (("amx", "avx512"), ()),
        (("avx512",), ("-U__AMX_INT8__",)),
        (("avx2",), ("-mno-avx512f", "-mno-avxvnni", "-U__AMX_INT8__")),
        (("avxvnni", "avx2"), ("-mno-avx512f", "-U__AMX_INT8__")),
        (("avx2", "avx512"), ("-U__AMX_INT8__",)),
        (("avx2", "amx"), ()),
    ],
)
def test_limits_are_those_of_the_widest_instruction_set_that_is_measured(isas: tuple[str, ...], options: tuple[str, ...]) -> None:
    assert compiler_options(isas) == options
