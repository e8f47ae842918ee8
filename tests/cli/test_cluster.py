"""``quintet cluster``: what it refuses before Ray is asked for anything."""

from __future__ import annotations

import pytest

from quintet.cli.app import app
from quintet.cli.console import OptionError

PROXIED = {"--uds": "/tmp/a", "--admin-listen": "127.0.0.1:9", "--tls-cert": "a.pem", "--max-connections": "9", "--drain-timeout": "9"}
PROXIED["--watchdog"] = "9"


@pytest.mark.parametrize("option", PROXIED)
def test_what_serves_proxy_has_no_place_for_is_refused_rather_than_ignored(option: str) -> None:
    with pytest.raises(OptionError, match=f"^{option} is nothing to Ray Serve's proxy; leave it out"):
        app(["cluster", "--toy", "--ray-proxy", option, PROXIED[option]], standalone_mode=False)


def test_fewer_replicas_at_most_than_at_least_are_refused() -> None:
    with pytest.raises(OptionError, match="^--max-replicas must be at least --replicas, 3, got 2"):
        app(["cluster", "--toy", "--replicas", "3", "--max-replicas", "2"], standalone_mode=False)
