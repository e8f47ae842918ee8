"""Shared by all tests."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# A shell has its background jobs ignore Ctrl-C, and so would the commands that are tested.
signal.signal(signal.SIGINT, signal.default_int_handler)

# However slow the machine is, that alone fails nothing.
# Nor does a draw of inputs that are large by chance.
SPARED = (HealthCheck.too_slow, HealthCheck.data_too_large)
settings.register_profile("any speed", settings.default, deadline=None, suppress_health_check=SPARED)
settings.load_profile("any speed")

# Tests run side by side, one on each CPU; threads that numpy has for each of them would wait for each other. Set before it is imported.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
# No test may reach a hub or read the tokens of whoever runs it; set before huggingface_hub is imported anywhere.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
# Nor does one write packed weights where those of whoever runs it are.
os.environ["QUINTET_PACK_CACHE"] = "false"
# Nor goes on with batches that whoever runs it has left.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="quintet-tests-")
for _name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "QUINTET_API_KEY"):
    os.environ.pop(_name, None)

collect_ignore = ["browser"]
"""Those run in an environment of their own (``make test-browser``), which has playwright."""


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["XDG_STATE_HOME"], ignore_errors=True)


@pytest.fixture(autouse=True, scope="session")
def patience() -> Iterator[None]:
    """A machine that is busy with other things gives little of its time to processes that are thrown away, and stands still at times: that
    alone ends no work."""
    from quintet.deploy import host
    from quintet.forks.parent import Forks

    init = Forks.__init__

    def patient(self: Forks, module: str, wall_s: float, what: str) -> None:
        init(self, module, 120.0, what)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Forks, "__init__", patient)
        patched.setattr(host, "HELLO_S", 30.0)
        yield
