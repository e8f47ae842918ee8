"""Whether spans and metrics are sent to an OpenTelemetry collector, and what is wrong if they cannot be."""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from quintet.cli.configuration import without_user
from quintet.cli.console import OptionError
from quintet.errors import shorten

if TYPE_CHECKING:
    from quintet.server.tracing import Tracing

_log = logging.getLogger(__name__)

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_SIGNALS = ("TRACES", "METRICS")
_SPOKEN = "http/protobuf"
_LACKING = "OpenTelemetry is not installed; pip install 'quintet[otel]'"


def check(endpoint: str, variables: Mapping[str, str]) -> bool:
    """Whether anything is to be sent: ``--otlp-endpoint`` says so, or the standard variables. These may be there for other programs'
    sake, so what is wrong with them is a warning.

    Args:
        endpoint: of the option; empty = it was not given.

    Raises:
        OptionError: the option asks for what cannot be.
    """
    if variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    named = [_ENDPOINT, *(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT" for signal in _SIGNALS)]
    variable = next((name for name in named if variables.get(name)), "")
    if not endpoint and not variable:
        return False
    wrong = _wrong(endpoint, variables)
    if wrong and endpoint:
        raise OptionError(f"--otlp-endpoint {wrong}.")
    if wrong:
        _log.warning("%s is set, and nothing is sent there: %s", variable, wrong)
    return not wrong


def tracing(endpoint: str, variables: Mapping[str, str]) -> Tracing:
    """What sends. ``OTEL_TRACES_EXPORTER=none`` and ``OTEL_METRICS_EXPORTER=none`` leave one of the two out."""
    from quintet.server.otel import OpenTelemetry  # megabytes, and a third of a second

    traces, metrics = (variables.get(f"OTEL_{signal}_EXPORTER", "").strip().lower() != "none" for signal in _SIGNALS)
    return OpenTelemetry(endpoint, time.time, traces=traces, metrics=metrics)


def _wrong(endpoint: str, variables: Mapping[str, str]) -> str:
    try:
        parts = urlsplit(endpoint)
        usable = not endpoint or (parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query)
    except ValueError:
        usable = False
    if not usable:
        return f"must be a collector's base URL such as http://127.0.0.1:4318, got {shorten(without_user(endpoint))}"
    for name in ("OTEL_EXPORTER_OTLP_PROTOCOL", *(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL" for signal in _SIGNALS)):
        if variables.get(name, _SPOKEN) not in ("", _SPOKEN):
            return f"speaks {_SPOKEN} alone, and {name} is {shorten(variables[name])}"
    try:
        found = importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http")
    except ModuleNotFoundError:
        found = None
    return "" if found else f"cannot be used: {_LACKING}"
