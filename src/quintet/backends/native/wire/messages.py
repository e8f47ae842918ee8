"""What the event loop's side of the engine and its worker tell each other: one closed set of small frozen values. Plain code.

::

    front                                             worker
      Load, Vocabulary   ------------------------->     (a process of its own only: what to load, and the ends of sequence)
                         <-------------------------   Progress ... Progress, Ready
      Submit, Abort      ------------------------->
                         <-------------------------   Started, Stepped, Started, Stepped ...
                         <-------------------------   Wanted
      Pixels             ------------------------->   (of an image of a request, when it is its turn to be encoded)
      Expand             ------------------------->   (images of a prompt, to an engine with a processor of its own, before ``Submit``)
                         <-------------------------   Expanded
      Shed               ------------------------->   (when memory runs short)
      Ping               ------------------------->   (to one without work)
                         <-------------------------   Stepped
      Stop               ------------------------->
                         <-------------------------   Died

The same values go through both links: as they are to a worker in a thread, as frames (``codec``) to one in a process. So none holds what
could not cross: no objects with behaviour, no tokenizer, no exception, nothing that could be code. What the front knows anyway does not
cross either: a token's bytes, and what other samples of a request were told.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quintet.backends.base import Counts, Pages
from quintet.backends.native.wire.samples import Images, Prompt, Sample, pack, unpack
from quintet.backends.native.wire.sources import ModelSource, VllmSource
from quintet.config import EngineConfig
from quintet.errors import EngineFailed, ModelError
from quintet.events import NO_DRAFTS, Blame, DraftCounts, Finish, TokenEvent
from quintet.inputs.capabilities import EVERYTHING, Supported
from quintet.inputs.images.expansion import Expansion, ProcessorTraits
from quintet.inputs.images.layout import ImageTraits
from quintet.inputs.images.value import PreparedImage
from quintet.inputs.sequence import Adapter, PreparedSequence, Urgency


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True, gc=False):
    """Base of all messages: as bytes, an array of the type's name and the fields."""


# ---- to the worker


class Load(Message, frozen=True):
    """The first message: what to load, and how to run it."""

    source: ModelSource
    config: EngineConfig


class LoadVllm(Message, frozen=True):
    """The same for vLLM."""

    source: VllmSource
    config: EngineConfig


class Vocabulary(Message, frozen=True):
    """What the worker needs of the tokenizer, which only the front has.

    Args:
        blob, ends: the bytes of all token ids, and the memory of where each one's end; see ``Pieces``.
    """

    blob: bytes
    ends: bytes
    eos_ids: frozenset[int]


class Submit(Message, frozen=True):
    """Run a request's sequences, checked by ``prepare``; made by ``of``.

    Args:
        at: seconds, on the clock that the worker uses too.
        prompts: each once, however many samples it has.
        asked: what else is asked, each once, as of the first sample that has it.
        samples: what each sequence has for itself.
        images: of each prompt, without their pixels, which are sent when they are ``Wanted``; empty = no prompt has any.
        tenant, weight, adapter, urgency: see ``Prepared``; no adapter is for the native core, which has no room for any.

    Raises:
        ValueError: a sample names what is not there.
    """

    request_id: int
    at: float
    tenant: str
    weight: int
    prompts: tuple[Prompt, ...]
    asked: tuple[PreparedSequence, ...]
    samples: tuple[Sample, ...]
    images: tuple[Images, ...] = ()
    adapter: Adapter | None = None
    urgency: Urgency = Urgency.NOW

    def __post_init__(self) -> None:
        prompts, asked = len(self.prompts), len(self.asked)
        if not all(0 <= sample.prompt < prompts and 0 <= sample.asked < asked for sample in self.samples):
            raise ValueError("a prompt is missing, or what is asked")
        if self.images and len(self.images) != len(self.prompts):
            raise ValueError("a prompt's images are missing")

    @classmethod
    def of(
        cls,
        request_id: int,
        sequences: Sequence[PreparedSequence],
        at: float,
        *,
        tenant: str = "",
        weight: int = 1,
        adapter: Adapter | None = None,
        urgency: Urgency = Urgency.NOW,
    ) -> Submit:
        """A request's sequences, with what is equal put together."""
        prompts, asked, samples, images = pack(sequences)
        return cls(
            request_id=request_id,
            at=at,
            tenant=tenant,
            weight=weight,
            prompts=prompts,
            asked=asked,
            samples=samples,
            images=images if any(images) else (),
            adapter=adapter,
            urgency=urgency,
        )

    def sequences(self) -> tuple[PreparedSequence, ...]:
        """The sequences as they were, but for their images' pixels."""
        return tuple(unpack(self.prompts, self.asked, self.samples, self.images))


class Pixels(Message, frozen=True):
    """An image that was ``Wanted``; see ``PreparedImage``."""

    digest: bytes
    pixels: bytes


class Expand(Message, frozen=True):
    """What would stand for these images of a prompt? Asked before there is a request.

    Args:
        number: of the question.
        salt, images: see ``Expander.expand``.
    """

    number: int
    salt: bytes
    images: tuple[PreparedImage, ...]


class Abort(Message, frozen=True):
    """End one sequence, or with ``seq`` ``None`` all, of a request."""

    request_id: int
    seq: int | None


class Ping(Message, frozen=True):
    """Say something: are you there?"""


class Shed(Message, frozen=True):
    """Give back what memory can be spared: what is kept for requests to come."""


class Stop(Message, frozen=True):
    """Drop everything and end."""


# ---- from the worker


class Progress(Message, frozen=True):
    """Share of loading done, 0 to 1."""

    share: float


class Ready(Message, frozen=True, kw_only=True):
    """Loading is done; see ``Capabilities``.

    Args:
        step_s: seconds that the largest step may take, estimated; 0 = not measured.
        images: how it sees images; ``None`` = it does not, or as ``processor`` says.
        supported: what it has.
        processor: of its own for images; ``None`` = it has none.
    """

    model: str
    context: int
    vocab: int
    max_logprobs: int
    max_sequences: int
    fingerprint: str
    step_s: float = 0.0
    images: ImageTraits | None = None
    supported: Supported = EVERYTHING
    processor: ProcessorTraits | None = None


class Wanted(Message, frozen=True):
    """The pixels of an image of a request are needed now."""

    request_id: int
    digest: bytes


class Expanded(Message, frozen=True):
    """What stands for each of the images that were asked about.

    Args:
        number: of the question.
        refused: number of the image that is not taken (-1 = no single one is to blame), and why, for the client; ``None`` = all are.
    """

    number: int
    images: tuple[Expansion, ...] = ()
    refused: tuple[int, str] | None = None


class Started(Message, frozen=True):
    """The step that begins now computes these requests, which the one before it did not: if it kills the worker, they are suspects."""

    requests: tuple[int, ...]


class TokenRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False, tag=0):
    """A ``TokenEvent`` on its way that is a token and nothing else, as most are: 4 to 9 bytes."""

    seq: int
    token: int

    def event(self, pieces: Sequence[bytes]) -> TokenEvent:
        """With the token's bytes.

        Args:
            pieces: of each token id.
        """
        return TokenEvent(self.seq, self.token, pieces[self.token] if self.token >= 0 else b"")


class ScoredRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False, tag=2):
    """A token with its log-probability, of the prompt or generated, and nothing else: as most that are asked for have."""

    seq: int
    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]
    prompt: bool

    def event(self, pieces: Sequence[bytes]) -> TokenEvent:
        """With the token's bytes.

        Args:
            pieces: of each token id.
        """
        return TokenEvent(self.seq, self.token, pieces[self.token] if self.token >= 0 else b"", self.logprob, self.top, self.prompt)


class EventRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False, tag=1):
    """Any other: all fields of a ``TokenEvent`` but the token's bytes."""

    seq: int
    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    prompt: bool = False
    finish: Finish | None = None
    cached_tokens: int = 0
    error: str = ""
    waited: float = 0.0
    drafts: DraftCounts = NO_DRAFTS
    blame: Blame = Blame.SERVER
    computed: int = 0

    def event(self, pieces: Sequence[bytes]) -> TokenEvent:
        """With the token's bytes. One that ends its sequence has none, whatever it is elsewhere: ``stop_token_ids`` may name any.

        Args:
            pieces: of each token id.
        """
        piece = pieces[self.token] if self.token >= 0 and self.finish is not Finish.EOS else b""
        return TokenEvent(
            self.seq,
            self.token,
            piece,
            self.logprob,
            self.top,
            self.prompt,
            self.finish,
            self.cached_tokens,
            self.error,
            self.waited,
            self.drafts,
            self.blame,
            self.computed,
        )


Row = TokenRow | ScoredRow | EventRow
Events = dict[int, list[Row]]
"""Request id -> its events since it was last told of any, in order."""


class Stepped(Message, frozen=True):
    """Steps were finished (or work was ended without one, or the worker was asked).

    Args:
        running, waiting: sequences after it.
        counts: since this worker's start.
        deferred: of those that wait, see ``Health``.
    """

    running: int
    waiting: int
    counts: Counts
    pages: Pages
    events: Events
    deferred: int = 0


class Died(Message, frozen=True):
    """The worker is gone; nothing follows.

    Args:
        reason: one line; empty after ``Stop``.
        model: the model cannot be loaded, and the reason is for whoever named it; else it is a fault of ours, which the log has.
        started: there was a worker.
    """

    reason: str = ""
    model: bool = False
    started: bool = True

    @classmethod
    def of(cls, error: Exception) -> Died:
        """Because of ``error``, of which an unforeseen one may say what is nobody's business."""
        told = isinstance(error, ModelError | EngineFailed)
        reason = str(error) if told else f"the engine broke ({type(error).__name__})."
        return cls(reason, model=isinstance(error, ModelError))

    @property
    def error(self) -> Exception | None:
        """What whoever started the engine is told."""
        if not self.reason:
            return None
        return ModelError(self.reason) if self.model else EngineFailed(self.reason)


ToWorker = Submit | Pixels | Expand | Abort | Shed | Ping | Stop
ToProcess = Load | LoadVllm | Vocabulary | ToWorker
FromWorker = Progress | Ready | Wanted | Expanded | Started | Stepped | Died
