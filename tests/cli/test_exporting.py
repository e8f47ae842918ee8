"""Whether anything is sent to a collector, and what is said where it cannot be."""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

import pytest

from quintet.cli import exporting
from quintet.cli.console import OptionError

URL = "http://127.0.0.1:4318"


@pytest.mark.parametrize(
    ("endpoint", "variables", "expected"),
    [
        ("", {}, False),
        (URL, {}, True),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": URL}, True),
        ("", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{URL}/v1/traces"}, True),
        ("", {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{URL}/v1/metrics"}, True),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        (URL, {"OTEL_SDK_DISABLED": "TRUE"}, False),
        (URL, {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True),
    ],
)
def test_it_is_off_unless_the_option_or_a_standard_variable_says_where(endpoint: str, variables: dict[str, str], expected: bool) -> None:
    assert exporting.check(endpoint, variables) is expected


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318", "ftp://x", "http://", "http://[", "http://x/?a=b"])
def test_what_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(OptionError, match="--otlp-endpoint must be a collector's base URL such as"):
        exporting.check(endpoint, {})


def test_a_password_in_it_is_not_told() -> None:
    with pytest.raises(OptionError, match=r"got 'ftp://\*\*\*@x'"):
        exporting.check("ftp://name:password@x", {})


def lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str, *_: Any) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


def test_without_the_extra_the_option_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking(monkeypatch)
    with pytest.raises(OptionError, match=r"pip install 'quintet\[otel\]'"):
        exporting.check(URL, {})


def test_variables_that_are_there_for_others_are_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert not exporting.check("", {"OTEL_EXPORTER_OTLP_ENDPOINT": URL, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
        lacking(monkeypatch)
        assert not exporting.check("", {"OTEL_EXPORTER_OTLP_ENDPOINT": URL})
    spoken, missing = (record.getMessage() for record in caplog.records)
    assert "speaks http/protobuf alone, and OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'" in spoken
    assert "pip install 'quintet[otel]'" in missing
