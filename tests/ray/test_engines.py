"""What Ray is asked for: a place with devices as one piece, a model fetched where it is not, nothing left of what is released."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import ray
from ray.util.placement_group import placement_group_table
from tests.deploy.replicas import collect, ready, spec, until
from tests.support.bundled import bundled_path

from quintet.backends.native.front.engine import Engine
from quintet.backends.native.wire.sources import ModelSource
from quintet.backends.native.worker.load import load_tokenizer
from quintet.backends.toy import ToyTokenizer
from quintet.config import EngineConfig
from quintet.deploy.ray import LOCAL, Files, Needs, disconnect, make_engine
from quintet.events import Finish

CONFIG = EngineConfig(kv_bytes=64 << 20)
TOY = ModelSource(path="", threads=1, context=None, name="toy")


@pytest.fixture(scope="module", autouse=True)
def two_devices() -> Iterator[None]:
    """A Ray that counts with two devices, which nobody uses."""
    ray.init(address="local", _node_ip_address=LOCAL, num_cpus=4, num_gpus=2, include_dashboard=False)
    yield
    disconnect()


def toy(needs: Needs) -> Engine:
    return make_engine(TOY, Files("", "toy", offline=True), ToyTokenizer, CONFIG, needs)


def test_devices_are_reserved_as_one_piece_and_freed_again() -> None:
    async def scenario() -> None:
        async with ready(toy(Needs(1, 2))) as engine:
            (group,) = [one for one in placement_group_table().values() if one["state"] == "CREATED"]
            assert group["strategy"] == "STRICT_PACK"
            assert [*group["bundles"].values()] == [{"CPU": 1.0, "GPU": 2.0}]
            assert ray.available_resources().get("GPU", 0) == 0
            assert (await collect(engine, spec()))[-1].finish is Finish.LENGTH
        await until(lambda: ray.available_resources().get("GPU", 0) == 2)
        async with ready(toy(Needs(1, 2))):  # so that another finds room
            pass

    asyncio.run(scenario())


def test_a_model_that_is_not_at_its_path_there_is_found_by_its_reference() -> None:
    path = bundled_path()
    source = ModelSource(path="/nowhere/model.gguf", threads=1, context=512, name="smollm2")

    async def scenario() -> None:
        files = Files("/nowhere/model.gguf", "smollm2", offline=True)
        async with ready(make_engine(source, files, lambda: load_tokenizer(path), CONFIG, Needs(0))) as engine:
            assert (await collect(engine, spec("The sky is")))[-1].finish is Finish.LENGTH

    asyncio.run(scenario())


def test_a_model_that_cannot_be_had_there_is_told_and_not_waited_for() -> None:
    async def scenario() -> None:
        files = Files("/nowhere/model.gguf", "/nowhere/model.gguf", offline=True)
        engine = make_engine(
            ModelSource(path="/nowhere/model.gguf", threads=1, context=512, name="x"), files, ToyTokenizer, CONFIG, Needs(0)
        )
        await until(lambda: engine.failure is not None)
        assert "/nowhere/model.gguf" in str(engine.failure)
        await engine.close()

    asyncio.run(scenario())
