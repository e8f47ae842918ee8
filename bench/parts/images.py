"""What an image costs, and how long others wait for their next token meanwhile: an encoder of SmolVLM-256M's size beside the bundled model.

    python -m bench.parts.images                     a photo of 4:3: 13 tiles
    python -m bench.parts.images --tiles 1 --threads 1

Weights of the encoder are random; what an image is seen as does not matter here. One sequence decodes; then comes a prompt with an image.
Gaps are times between two tokens of the first, seen where the engine gives them out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from tests.reference.as_mmproj import write_mmproj
from tests.reference.transformers_vision import IMAGE, SeeingModel
from tests.support.bundled import bundled_path
from tests.support.loading import native_loader

from quintet.backends.native.front.engine import Engine
from quintet.config import EngineConfig
from quintet.inputs.images.value import PreparedImage
from quintet.inputs.sequence import Prepared, PreparedSequence
from quintet.request import Sampling

HIDDEN, LAYERS, FFN, TILE, PATCH, SCALE = 768, 12, 3072, 512, 16, 4
TOKENS = (TILE // PATCH // SCALE) ** 2
TEXT = 64
"""Tokens before and after the image, and of the other prompt."""


def encoder_shapes(out: int) -> dict[str, tuple[int, ...]]:
    """Of its tensors, by their names in a folder."""
    at = "model.vision_model."
    shapes: dict[str, tuple[int, ...]] = {
        f"{at}embeddings.patch_embedding.weight": (HIDDEN, 3, PATCH, PATCH),
        f"{at}embeddings.patch_embedding.bias": (HIDDEN,),
        f"{at}embeddings.position_embedding.weight": ((TILE // PATCH) ** 2, HIDDEN),
        f"{at}post_layernorm.weight": (HIDDEN,),
        f"{at}post_layernorm.bias": (HIDDEN,),
        "model.connector.modality_projection.proj.weight": (out, HIDDEN * SCALE**2),
    }
    for layer in range(LAYERS):
        inside = f"{at}encoder.layers.{layer}."
        for norm in ("layer_norm1", "layer_norm2"):
            shapes |= {f"{inside}{norm}.weight": (HIDDEN,), f"{inside}{norm}.bias": (HIDDEN,)}
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= {f"{inside}self_attn.{part}.weight": (HIDDEN, HIDDEN), f"{inside}self_attn.{part}.bias": (HIDDEN,)}
        shapes |= {f"{inside}mlp.fc1.weight": (FFN, HIDDEN), f"{inside}mlp.fc1.bias": (FFN,)}
        shapes |= {f"{inside}mlp.fc2.weight": (HIDDEN, FFN), f"{inside}mlp.fc2.bias": (HIDDEN,)}
    return shapes


def write_encoder(path: Path, out: int) -> Path:
    """An mmproj file of SmolVLM-256M's sizes."""
    vision: dict[str, float] = {"hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": 12}
    vision |= {"image_size": TILE, "patch_size": PATCH, "layer_norm_eps": 1e-6}
    config = {"model_type": "idefics3", "vision_config": vision, "text_config": {"hidden_size": out}, "scale_factor": SCALE}
    return write_mmproj(path, SeeingModel("idefics3", config, encoder_shapes(out), 1), Type.F16)


def with_image(tiles: int) -> PreparedSequence:
    """A prompt of text, an image and text."""
    random = np.random.RandomState(3)
    pixels = random.randint(0, 256, (tiles, TILE, TILE, 3)).astype(np.uint8).tobytes()
    tokens = (*range(100, 100 + TEXT), *(IMAGE,) * (TOKENS * tiles), *range(300, 300 + TEXT))
    places = tuple((TEXT + TOKENS * tile, TOKENS) for tile in range(tiles))
    image = PreparedImage(bytes([tiles]) * 32, places, (TEXT, TOKENS * tiles), (tiles, TILE, TILE), pixels)
    return PreparedSequence(tokens, 2, Sampling(0.0, 1.0, 0), None, echo=False, images=(image,))


async def times(engine: Engine, number: int, sequence: PreparedSequence) -> list[float]:
    """When each batch of events came."""
    return [time.perf_counter() async for _ in engine.submit(Prepared(number, (sequence,)))]


async def measure(mmproj: Path, tiles: int, threads: int) -> dict[str, float]:
    engine = Engine(
        native_loader(bundled_path(), threads=threads, context=4096, vision=mmproj), EngineConfig(kv_bytes=1 << 28, speculation=False)
    )
    while engine.health().state.value != "ready":
        await asyncio.sleep(0.05)
    endless = Sampling(1.0, 1.0, 1, ignore_eos=True)
    reading = asyncio.create_task(times(engine, 1, PreparedSequence(tuple(range(500, 500 + TEXT)), 3000, endless, None, echo=False)))
    await asyncio.sleep(1.0)
    begin = time.perf_counter()
    seen = await times(engine, 2, with_image(tiles))
    end = time.perf_counter()
    await asyncio.sleep(0.5)
    engine.abort(1)
    gaps = np.diff([at for at in await reading if at < begin]), np.diff([at for at in await reading if begin <= at <= end])
    alone = time.perf_counter()
    first = (await times(engine, 3, with_image(tiles - 1 or 1)))[0] - alone
    again = time.perf_counter()
    cached = (await times(engine, 4, with_image(tiles)))[0] - again
    await engine.close()
    return {
        "tiles": tiles,
        "threads": threads,
        "first_token_beside_another_s": round(seen[0] - begin, 2),
        "first_token_alone_s": round(first, 2),
        "first_token_cached_s": round(cached, 3),
        "gap_before_ms_p50": round(float(np.median(gaps[0])) * 1000, 1),
        "gap_meanwhile_ms_p50": round(float(np.median(gaps[1])) * 1000, 1),
        "gap_meanwhile_ms_p99": round(float(np.percentile(gaps[1], 99)) * 1000, 1),
        "gap_meanwhile_ms_max": round(float(gaps[1].max()) * 1000, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiles", type=int, default=13)
    parser.add_argument("--threads", type=int, default=2)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mmproj = write_encoder(Path(folder) / "mmproj.gguf", 576)
        print(json.dumps(asyncio.run(measure(mmproj, wanted.tiles, wanted.threads))))


if __name__ == "__main__":
    main()
