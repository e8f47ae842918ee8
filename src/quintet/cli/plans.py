"""An engine as it is planned: what can be told of it, and how it is started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from quintet.backends.base import Backend
from quintet.backends.native.core.loader import Loader
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.front.process import ProcessLink
from quintet.backends.native.front.spawn import Ahead
from quintet.backends.native.wire.sources import ModelSource, VllmSource
from quintet.backends.native.worker.load import load_tokenizer, native_loader
from quintet.config import EngineConfig
from quintet.errors import ModelError
from quintet.executor import FairExecutor
from quintet.guides.check import GuideCheck
from quintet.inputs.images.reader import ImageReader
from quintet.inputs.prepare import Preparer
from quintet.inputs.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An engine that can be started, and what to tell about it.

    Args:
        name: the model's name unless the user says another.
        quant: of the weights; empty for the toy.
        context: most tokens of prompt and completion.
        full_context: what the model itself could do.
        isa: instruction set of the compute kernels.
        kv_tokens: tokens that the KV cache holds, of the model and of its draft model alike.
        think_tags, suffix_first, longest_edge: see ``EngineOptions``.
        weights: bytes in memory, of all that is loaded; of vLLM's 0, for they may be in a device's.
        draft, draft_reference: the draft model's name, and what it was given as; empty = there is none.
        vllm: what vLLM loads; ``None`` = the native core computes.
    """

    name: str
    quant: str
    context: int
    full_context: int
    isa: str
    threads: int
    kv_tokens: int
    source: ModelSource
    config: EngineConfig
    think_tags: tuple[str, str] | None = None
    weights: int = 0
    suffix_first: bool = False
    longest_edge: int = 0
    draft: str = ""
    draft_reference: str = ""
    vllm: VllmSource | None = None

    def start(self) -> Engine:
        """Begin to load the model in a thread of this process; call it on the event loop that will use the engine."""
        return Engine(self._loader(), self.config)

    def supervise(self, *, watched: bool = False) -> Engine:
        """Likewise in a process of its own, which is started again when it dies or hangs.

        Args:
            watched: one that hangs before it is ready is killed too; else whoever started it is to see that.
        """
        return Engine(self._link(), self.config, watched=watched)

    def begin(self, ahead: Ahead) -> Callable[[], Engine]:
        """Start a worker that loads the model while there is no event loop yet.

        Returns:
            What is called in place of ``supervise``. The first engine that it makes takes over this worker; each later one, as when the
            model was unloaded meanwhile, starts a worker of its own, and is watched: no user is there who sees that it hangs.
        """
        links = [self._link()]
        links[0].begin(ahead)
        return lambda: Engine(links.pop(), self.config) if links else self.supervise(watched=True)

    @property
    def kind(self) -> Literal["vllm", "native", "toy"]:
        """What computes."""
        if self.vllm is not None:
            return "vllm"
        return "native" if self.source.path else "toy"

    @property
    def mapped(self) -> bool:
        """Its weights take no memory that others could not have."""
        return self.vllm is not None or self.source.packs is not None

    def _link(self) -> ProcessLink:
        return ProcessLink(self.vllm or self.source, self.tokenizer, self.config)

    def preparer(self, engine: Backend, guides: GuideCheck, executor: FairExecutor, images: ImageReader) -> Preparer:
        """What prepares the requests of such an engine."""
        return Preparer(engine, guides, executor, images, suffix_first=self.suffix_first, longest_edge=self.longest_edge)

    def _loader(self) -> Loader[Tokenizer]:
        source = self.source
        if self.vllm is not None:
            raise ModelError(f"{self.name}: vLLM runs in a process of its own, and this command has none: use quintet serve.")
        if source.path:
            return native_loader(source)
        from quintet.backends import toy  # computes with numpy, which a server's front does not carry otherwise

        return toy.toy_loader()

    def tokenizer(self) -> Tokenizer:
        """The model's, from its file."""
        tags = self.think_tags
        if self.source.path:
            return load_tokenizer(Path(self.source.path), tags, any_model=self.vllm is not None)
        from quintet.backends import toy

        return toy.ToyTokenizer(tags)
