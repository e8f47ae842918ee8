"""An engine that lacks half of what there is: the toy's, told to say so, and strict about what it is given."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from quintet.backends.base import Backend, Health
from quintet.events import TokenEvent
from quintet.inputs.capabilities import Capabilities, Control, Feature, Supported
from quintet.inputs.sequence import Prepared, PreparedSequence
from quintet.inputs.tokenizer import Tokenizer
from quintet.request import Sampling

POOR = Supported(frozenset({Control.TEMPERATURE, Control.TOP_P}), frozenset({Feature.LOGPROBS}), frozenset())
MOST = 2
"""Its alternatives per token."""


@dataclass(eq=False)
class PoorEngine:
    """``engine``, less everything but ``supported``: no guides, penalties, seeds, echo, thinking budgets; few alternatives."""

    engine: Backend
    supported: Supported = POOR

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.engine.capabilities, model="poor", supported=self.supported, max_logprobs=MOST)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    @property
    def live(self) -> int:
        return self.engine.live

    @property
    def failure(self) -> Exception | None:
        return self.engine.failure

    def require_room(self, count: int, tenant: str = "", *, begun: bool = False) -> None:
        self.engine.require_room(count, tenant, begun=begun)

    def submit(self, prepared: Prepared) -> AsyncIterator[Sequence[TokenEvent]]:
        for sequence in prepared.sequences:
            self._require_within(sequence)
        return self.engine.submit(prepared)

    def _require_within(self, given: PreparedSequence) -> None:
        """Nothing that it lacks may get here, by whatever way."""
        if self.supported == POOR:
            plain = Sampling(given.sampling.temperature, given.sampling.top_p, given.sampling.seed)
            assert given.sampling == plain and not given.bad_words, "a control that it lacks"
        assert Feature.ECHO in self.supported.features or not given.echo
        assert Feature.LOGPROBS in self.supported.features or given.logprobs is None
        assert Feature.PROMPT_LOGPROBS in self.supported.features or not given.echo or given.logprobs is None
        assert given.logprobs is None or given.logprobs <= MOST
        assert self.supported.guides or not given.grammar
        assert Feature.THINKING_BUDGET in self.supported.features or given.thinking is None or given.thinking.budget is None

    def abort(self, request_id: int, seq: int | None = None) -> None:
        self.engine.abort(request_id, seq)

    def health(self) -> Health:
        return self.engine.health()

    def drain(self) -> None:
        self.engine.drain()

    async def close(self) -> None:
        await self.engine.close()
