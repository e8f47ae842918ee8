"""The scheduler's promise with the compiled core's samplers, which remember more than those that it is tested with alone."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from tests.backends.native.schedule.test_scheduler import AnyInterleaving
from tests.backends.native.worker.harness import NATIVE


class WithTheCore(AnyInterleaving):
    samplers = NATIVE


TestWithTheCore = WithTheCore.TestCase
TestWithTheCore.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
