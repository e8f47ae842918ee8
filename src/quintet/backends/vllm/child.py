"""vLLM in a process of ours: ``python -m quintet.backends.vllm.child FD PARENT LEVEL FORM``, started by
``native/front/spawn``."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace

from quintet.backends.native.wire.messages import Died, Load, LoadVllm, Progress, Ready, ToProcess, ToWorker, Vocabulary
from quintet.backends.native.worker.parent import Parent, inherited
from quintet.backends.vllm.arguments import MAX_LOGPROBS
from quintet.backends.vllm.core import VllmCore
from quintet.backends.vllm.processor import probe
from quintet.backends.vllm.sidecar import Sidecar
from quintet.backends.vllm.values import About, Asked, Processed
from quintet.backends.vllm.wire import Choose, encode_choose
from quintet.backends.vllm.worker import VllmWorker
from quintet.errors import ModelError
from quintet.inputs.capabilities import EVERYTHING, Feature, Supported
from quintet.inputs.images.value import PreparedImage
from quintet.inputs.sequence import PreparedSequence
from quintet.request import Sampling

SUPPORTED = Supported(EVERYTHING.controls, EVERYTHING.features - {Feature.CHOSEN_LOGPROBS}, EVERYTHING.guides)
"""Not the log-probabilities of given tokens: in vLLM's batch one who asks for them changes what his neighbours get."""

BEAT_S = 5.0
"""While vLLM loads, which tells nothing of it, the front is told so often that the process is there."""

TRIED = 256
"""Tokens of the prompt that is tried before vLLM is taken to be ready."""

_log = logging.getLogger(__name__)


class Child:
    """Two threads: the main one runs the event loop, the other reads the socket."""

    def __init__(self, parent: Parent) -> None:
        self._parent = parent
        self._load: Future[LoadVllm] = Future()
        self._vocabulary: Future[Vocabulary] = Future()
        self._early: deque[ToWorker] = deque()
        self._worker: VllmWorker | None = None
        self._lock = threading.Lock()

    def run(self) -> None:
        """Until the parent goes away, or vLLM ends."""
        self._parent.listen(self._receive)
        end = asyncio.run(self._serve())
        self._parent.send(end)

    async def _serve(self) -> Died:
        load = self._load.result()
        sidecar = Sidecar()
        sidecar.accept(self._vocabulary.result)
        try:
            with self._beating():
                core, worker = await self._start(load, sidecar)
        except ModelError as refused:
            return Died.of(refused)
        except Exception as fault:
            _log.exception("vLLM does not start")
            return Died.of(fault)
        finally:
            sidecar.close()
        with self._lock:
            self._worker = worker
            for message in self._early:
                worker.receive(message)
        end = await worker.run()
        core.close()
        return end

    async def _start(self, load: LoadVllm, sidecar: Sidecar) -> tuple[VllmCore, VllmWorker]:
        source, config = load.source, load.config
        core = VllmCore(source, config, sidecar.path, lambda step: worker.stepped(step))
        worker = VllmWorker(sidecar, time.monotonic, self._parent.send, self._vocabulary.result().eos_ids)
        worker.attach(core)
        about = core.about
        step_s = await _largest_step_s(core)
        self._parent.send(
            Ready(
                model=source.name,
                context=about.context,
                vocab=about.vocab,
                max_logprobs=min(MAX_LOGPROBS, about.vocab),
                max_sequences=min(config.max_sequences, config.live_limit),
                fingerprint=about.fingerprint,
                step_s=step_s,
                images=about.images,
                supported=SUPPORTED,
                processor=about.processor,
            )
        )
        return core, worker

    def _receive(self, message: ToProcess) -> None:
        match message:
            case LoadVllm():
                self._load.set_result(message)
            case Vocabulary():
                self._vocabulary.set_result(message)
            case Load():
                raise TypeError("a native model is not for this process")
            case _:
                with self._lock:
                    if self._worker is None:
                        self._early.append(message)
                        return
                self._worker.hear(message)

    @contextmanager
    def _beating(self) -> Iterator[None]:
        done = threading.Event()

        def beat() -> None:
            while not done.wait(BEAT_S):
                self._parent.send(Progress(0.0))

        thread = threading.Thread(target=beat, name="quintet-beat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


async def _largest_step_s(core: VllmCore) -> float:
    """Compute a prompt and a token, and images if it sees any; seconds that the largest step may take, estimated from it."""
    about: About = core.about
    tokens = (0,) * max(1, min(TRIED, about.context - 1))
    await _seconds_of(core, "logprobs", tokens, logprobs=1)  # what the first log-probabilities take, none after them do
    step_s = await _seconds_of(core, "0", tokens) * -(-about.most_tokens // len(tokens))
    if (traits := about.images) is not None:
        each = traits.tokens_per_tile
        for name in ("1", "2"):  # what the first of them takes, none after it does
            place, pixels = (0, each), bytes([int(name)]) * traits.tile_bytes
            image = PreparedImage(name.encode(), (place,), place, (1, traits.tile, traits.tile), pixels)
            tile_s = await _seconds_of(core, name, (0,) * (each + 1), (image,))
        step_s += tile_s * -(-about.most_tokens // each)
    return step_s + await _processor_step_s(core)


async def _processor_step_s(core: VllmCore) -> float:
    """Have vLLM's own processor show the model an image, if it has one; seconds that the largest step may take with images alone."""
    if core.processor is None:
        return 0.0
    most, image_s = max(core.about.most_tokens, core.processor.most_embeddings), 0.0  # a step takes an image whole
    for level in (1, 2):  # what the first of them takes, none after it does
        image = probe(level)
        made = core.processor.process((image,))
        tokens = made[0].expansion.tokens
        if len(tokens) < core.about.context:
            placed = replace(image, places=made[0].expansion.places, span=(0, len(tokens)), pixels=b"")
            image_s = await _seconds_of(core, str(level), tokens, (placed,), made) * -(-most // len(tokens))
    return image_s


async def _seconds_of(
    core: VllmCore,
    name: str,
    tokens: tuple[int, ...],
    images: tuple[PreparedImage, ...] = (),
    processed: tuple[Processed, ...] = (),
    logprobs: int | None = None,
) -> float:
    """Seconds for a prompt and a token."""
    sampling = Sampling(temperature=0.0, top_p=1.0, seed=0)
    choose = Choose(0, len(tokens), PreparedSequence(tokens, 1, sampling, None, echo=False))
    begin = time.monotonic()
    asked = Asked(name, tokens, 1, b"quintet".hex(), logprobs, logprobs, (), encode_choose(choose), images=images, processed=processed)
    async for _ in core.run(asked):
        pass
    return time.monotonic() - begin


def main() -> None:
    """The process."""
    parent = inherited()
    Child(parent).run()
    parent.leave()


if __name__ == "__main__":
    main()
