"""``quintet cluster``: what it refuses before Ray is asked for anything."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from quintet import deploy
from quintet.backends.native.wire.sources import ModelSource
from quintet.backends.toy import ToyTokenizer
from quintet.cli import cluster
from quintet.cli.app import app
from quintet.cli.console import OptionError
from quintet.deploy.scaling import Sizing

PROXIED = {"--uds": "/tmp/a", "--admin-listen": "127.0.0.1:9", "--tls-cert": "a.pem", "--max-connections": "9", "--drain-timeout": "9"}
PROXIED["--watchdog"] = "9"


@pytest.mark.parametrize("option", PROXIED)
def test_what_serves_proxy_has_no_place_for_is_refused_rather_than_ignored(option: str) -> None:
    with pytest.raises(OptionError, match=f"^{option} is nothing to Ray Serve's proxy; leave it out"):
        app(["cluster", "--toy", "--ray-proxy", option, PROXIED[option]], standalone_mode=False)


def test_fewer_replicas_at_most_than_at_least_are_refused() -> None:
    with pytest.raises(OptionError, match="^--max-replicas must be at least --replicas, 3, got 2"):
        app(["cluster", "--toy", "--replicas", "3", "--max-replicas", "2"], standalone_mode=False)


def test_a_key_file_alone_and_port_0_are_nothing_to_the_proxy_either() -> None:
    with pytest.raises(OptionError, match="^--tls-key is nothing to Ray Serve's proxy; leave it out"):
        app(["cluster", "--toy", "--ray-proxy", "--tls-key", "a.pem"], standalone_mode=False)
    with pytest.raises(OptionError, match="^--port must be above 0 with --ray-proxy, .* got 0"):
        app(["cluster", "--toy", "--ray-proxy", "--port", "0"], standalone_mode=False)


@pytest.mark.parametrize("option", ["--replicas", "--max-replicas"])
def test_more_replicas_than_a_front_can_have_are_refused(option: str) -> None:
    with pytest.raises(click.BadParameter, match="1000"):
        app(["cluster", "--toy", option, "999999999"], standalone_mode=False)


@pytest.mark.parametrize("cpus", ["nan", "inf", "0.00001", "1e300"])
def test_what_ray_cannot_reserve_is_refused(cpus: str) -> None:
    with pytest.raises(OptionError, match="^--cpus-per-replica must be 0, or a number from 0.0001 to 1000000, got "):
        app(["cluster", "--toy", "--cpus-per-replica", cpus], standalone_mode=False)


def test_sigterm_while_ray_is_started_ends_as_it_does_later() -> None:
    def start(**_: object) -> int:
        sys.exit(signal.SIGTERM)  # as Ray's handler of the signal does

    serve = click.Command("serve", callback=start, params=[click.Option(["--threads"]), click.Option(["--toy"])])
    before = signal.getsignal(signal.SIGTERM)
    assert cluster.command(serve).main(["--threads", "1"], standalone_mode=False) == 0
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_replica_larger_than_this_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploy, "ray", SimpleNamespace(cpus=lambda: 2.0), raising=False)
    fleet: Any = SimpleNamespace(plans=[SimpleNamespace(threads=3)], models=[])
    asked: Any = SimpleNamespace(references=[])
    for cpus, option, got in ((None, "--threads", "3"), (2.5, "--cpus-per-replica", "2.5")):
        options = cluster.ClusterOptions("", Sizing(1, 1, 1.0, 1.0), cpus, False)
        with pytest.raises(OptionError, match=f"^{option} must be at most 2, the CPUs that Ray counts on this machine, got {got}[.]"):
            cluster.distributed(fleet, options, asked)


def test_relative_paths_are_those_of_where_the_command_was_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A replica's process is in a folder that Ray gives it."""
    told: list[Any] = []
    stand_in = SimpleNamespace(devices=lambda: 0, make_engine=lambda source, files, *_, **__: told.extend((source, files)))
    stand_in.Files = stand_in.Needs = lambda *given: given
    monkeypatch.setattr(deploy, "ray", stand_in, raising=False)
    monkeypatch.setattr("quintet.deploy.pool.Pool", lambda make, *_: make())
    monkeypatch.chdir(tmp_path)
    source = ModelSource(path="m.gguf", threads=1, context=None, name="m", vision="v.gguf", draft="/models/d.gguf")
    plan: Any = SimpleNamespace(vllm=None, source=source, draft_reference="d", tokenizer=ToyTokenizer, config=None, threads=1)
    cluster._pool(plan, "m.gguf", cluster.ClusterOptions("", Sizing(1, 1, 1.0, 1.0), 1.0, False), offline=True)
    assert told[0] == replace(source, path=f"{tmp_path}/m.gguf", vision=f"{tmp_path}/v.gguf")
    assert told[1] == (f"{tmp_path}/m.gguf", "m.gguf", True, "/models/d.gguf", "d")
