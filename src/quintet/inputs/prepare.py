"""From a request's sequences to what an engine is given, above every engine.

What can be refused is refused here, before anything starts: what the engine lacks (``supported``), the prompt's ids and length, ranges of
controls (``resolve``), and, in processes that may crash, images (``ImageReader``) and guides (``GuideCheck``). This is the part that waits:
long texts are tokenised in a thread, images read and guides checked elsewhere. It holds nothing for a request but the pixels of its images,
as long as there are any, so what it gives may simply be dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar, cast

from quintet.errors import BadRequest, PromptTooLong, Unsupported, counted
from quintet.executor import FairExecutor
from quintet.guides.check import GuideCheck
from quintet.inputs.capabilities import Capabilities
from quintet.inputs.encoding import encode_all, encode_special, encode_without_special, portions
from quintet.inputs.images.expansion import (
    Expander,
    Expansion,
    ExpansionPlacer,
    ProcessorTraits,
    UnprocessableError,
    bitmap,
    expansion_placer_of,
)
from quintet.inputs.images.places import Picture, Placer, missing_words, placer_of
from quintet.inputs.images.reader import ImageReader
from quintet.inputs.images.value import Placed, PreparedImage
from quintet.inputs.infill import infill, texts_of
from quintet.inputs.mixed import Mixed, joined
from quintet.inputs.mixed import texts_of as texts_among
from quintet.inputs.resolve import (
    Known,
    inside_texts,
    least_tokens,
    prompt_names,
    prompt_texts,
    require_fitting,
    require_length,
    resolve,
    size_of,
    without_second_bos,
)
from quintet.inputs.sequence import PreparedSequence, SequenceSpec
from quintet.inputs.stopwatch import Stopwatch
from quintet.inputs.supported import fills_in, require_supported
from quintet.inputs.think_tags import Tags, tags_of
from quintet.inputs.tokenizer import Tokenizer, separator_of
from quintet.request import Gap
from quintet.turns import Turns

INLINE_CHARS = 4096
"""Most characters tokenised, or ids checked, on the event loop itself; that takes about as long as handing them to a thread."""

SEQUENCE_CHARS = 32
"""Characters whose tokenising takes as long as looking at a sequence, of which a few bytes may ask for a thousand."""

LARGE_CHARS = 1 << 17
"""Most characters of a request's texts for which it need not wait until larger ones of others are ids."""

T = TypeVar("T")


class Model(Protocol):
    """For whom requests are prepared; a ``Backend`` is one."""

    @property
    def capabilities(self) -> Capabilities:
        """Raises ``Loading`` before there are any."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises what refuses every request while the model takes none."""
        ...


class Preparer:
    """Prepares the requests of one model, whether it is loaded yet or not.

    Args:
        guides: where guides are checked, of all models.
        executor: for what takes long, of all models.
        images: where images are read, of all models.
        longest_edge: bounds that of ``ImageTraits`` or ``ProcessorTraits``; 0 = it is the model's own.
        suffix_first: a prompt to be filled in the middle has the suffix before the prefix.
    """

    def __init__(
        self,
        model: Model,
        guides: GuideCheck,
        executor: FairExecutor,
        images: ImageReader,
        *,
        suffix_first: bool = False,
        longest_edge: int = 0,
    ) -> None:
        self._model = model
        self._guides = guides
        self._images = images
        self._longest_edge = longest_edge
        self._suffix_first = suffix_first
        self._executor = executor
        self._turns, self._large = Turns(1), Turns(1)
        self._tags: tuple[Tokenizer, Tags | None] | None = None

    async def prepare(
        self, specs: Sequence[SequenceSpec], tenant: str = "", watch: Stopwatch | None = None
    ) -> tuple[PreparedSequence, ...]:
        """Tokenise and check, in the order of the specs.

        Args:
            tenant: who asks; see ``Prepared``.
            watch: of the tokenising.

        Raises:
            BadRequest: a token id or a control out of range, an empty prompt, too many alternatives, a guide that cannot be compiled,
                an image that cannot be read, or that the engine's processor does not take.
            Unsupported: what the engine lacks, a suffix on a model without fill-in-the-middle tokens, reasoning on one that does not
                reason.
            PromptTooLong: the prompt, or the prompt plus ``max_tokens``, exceed the context.
            Overloaded, TooManyRequests: too many guides or images are being looked at, or too many of this tenant.
            Loading, EngineFailed, Overloaded: the model is not there.
        """
        tokenizer, capabilities = self._model.tokenizer, self._model.capabilities
        await self.run(tenant, SEQUENCE_CHARS * len(specs), partial(_require_possible, specs, tokenizer, capabilities))
        seeing = any(spec.images for spec in specs)
        placer = self._placer(tokenizer, capabilities, seeing)
        if placer is not None and seeing:
            specs = await self._with_images(specs, placer, tenant)
        grammars = await self._guides.translate((spec.guide for spec in specs), tenant)
        encoded, inside = prompt_texts(specs), inside_texts(specs)
        async with self._turn(tenant, encoded, inside):
            known = Known(
                encoded=await self._encoded(tokenizer.encode, encoded, tenant, watch),
                inside=await self._encoded(tokenizer.encode_inside, inside, tenant),
                grammars=grammars,
                separator=separator_of(tokenizer),
                before=tokenizer.traits.added[0],
                after=tokenizer.traits.added[1],
                infill=infill(tokenizer, self._suffix_first),
                tags=self._tags_of(tokenizer),
                image=None if placer is None else placer.image,
            )
            size = size_of(specs, known) + SEQUENCE_CHARS * len(specs)
            return await self.run(tenant, size, lambda: resolve(specs, known, capabilities))

    async def stop_tokens(self, strings: Sequence[str], tenant: str = "") -> dict[int, str]:
        """The control tokens whose text is one of the stop strings. Such a token has no text in which that could be found.

        Together's page, stop: ""</s>" will stop generation as soon as the model generates the given token."

        Raises:
            Loading, Overloaded, EngineFailed: the model is not there.
        """
        tokenizer = self._model.tokenizer
        ids = await self._encoded(tokenizer.encode_inside, strings, tenant)
        return {tokens[0]: text for text, tokens in ids.items() if len(tokens) == 1 and not tokenizer.pieces[tokens[0]]}

    async def _with_images(self, specs: Sequence[SequenceSpec], placer: Placer | ExpansionPlacer, tenant: str) -> list[SequenceSpec]:
        """The specs with their images read and placed, and token ids for prompts, the same object for all samples of one."""
        names = prompt_names(specs)
        await self._require_places(dict(zip(names, specs, strict=True)), placer, tenant)
        pictures = await self._images.read([image for spec in specs for image in spec.images], placer.traits, tenant)
        bitmaps = [bitmap(picture) for picture in pictures.values()] if isinstance(placer, ExpansionPlacer) else []
        self._images.hold(bitmaps, tenant)  # while they wait for the engine's answer
        placed: dict[str, Placed] = {}
        for spec, name in zip(specs, names, strict=True):
            if name not in placed:
                placed[name] = await self._place(spec, name, placer, [pictures[image.url] for image in spec.images], tenant)
        bitmaps.clear()
        for image in itertools.chain.from_iterable(spec.images for spec in specs):
            image.forget()
        self._images.hold([image for prompt in placed.values() for image in prompt.images], tenant)
        seeing = []
        for spec, name in zip(specs, names, strict=True):
            tokens, images = placed[name]
            seeing.append(replace(spec, prompt=tokens, images=(), seen=images) if images else spec)
        return seeing

    async def _require_places(self, prompts: Mapping[str, SequenceSpec], placer: Placer | ExpansionPlacer, tenant: str) -> None:
        """Each prompt, by its name, has a place for each of its images, and one of ids does not exceed the context without them."""
        for name, spec in prompts.items():
            if spec.images and not isinstance(spec.prompt, str):  # a text is checked once it is ids
                require_length(name, len(spec.prompt), self._model.capabilities.context, least=True)

        def match() -> None:
            for name, spec in prompts.items():
                placer.require_match(spec.prompt, len(spec.images), name)

        await self.run(tenant, sum(len(spec.prompt) for spec in prompts.values()), match)

    async def _place(
        self, spec: SequenceSpec, name: str, placer: Placer | ExpansionPlacer, pictures: Sequence[Picture], tenant: str
    ) -> Placed:
        """A prompt of this name with its pictures; nothing, where it has none."""
        if not pictures:
            return Placed((), ())
        if isinstance(placer, ExpansionPlacer):
            return await self._place_expanded(spec, name, placer, pictures, tenant)
        if isinstance(spec.prompt, str):
            tokens = await self._encode_marked(placer.text(spec.prompt, pictures), name, tenant)
            return await self.run(tenant, len(tokens), lambda: placer.place(tokens, pictures, name))
        prompt, laid = spec.prompt, [placer.laid(picture) for picture in pictures]
        ids = await self._encoded(self._model.tokenizer.encode_inside, laid, tenant)
        each = [ids[text] for text in laid]
        return await self.run(tenant, len(prompt) + sum(map(len, each)), lambda: placer.place(placer.ids(prompt, each), pictures, name))

    async def _place_expanded(
        self, spec: SequenceSpec, name: str, placer: ExpansionPlacer, pictures: Sequence[Picture], tenant: str
    ) -> Placed:
        """``_place`` as the engine's processor has it."""
        tokens: Sequence[int]
        if isinstance(spec.prompt, str):
            tokens = await self._encode_marked(placer.text(spec.prompt), name, tenant)
            placer.require_places(tokens, len(pictures), name)
        else:
            tokens = spec.prompt
        expansions = await self._expand(spec, [bitmap(picture) for picture in pictures], tenant)
        return await self.run(tenant, len(tokens), lambda: placer.place(spec.prompt, tokens, pictures, expansions))

    async def _encode_marked(self, text: str, name: str, tenant: str) -> Sequence[int]:
        """The ids of a prompt in which one stands for each tile or image, so that they are the fewest that it may come to."""
        async with self._turn(tenant, [text]):
            ids = await self._encoded(self._model.tokenizer.encode, [text], tenant)
            tokens = without_second_bos(ids[text], self._model.tokenizer.traits.added[0])
            require_length(name, len(tokens), self._model.capabilities.context, least=True)
        return tokens

    async def _expand(self, spec: SequenceSpec, images: Sequence[PreparedImage], tenant: str) -> tuple[Expansion, ...]:
        try:
            return await cast("Expander", self._model).expand(images, spec.salt, tenant)
        except UnprocessableError as error:
            param = "images" if error.index is None else spec.images[error.index].param
            raise BadRequest(param, error.rule) from None

    def _placer(self, tokenizer: Tokenizer, capabilities: Capabilities, seeing: bool) -> Placer | ExpansionPlacer | None:
        """``None`` if the model sees no images.

        Args:
            seeing: there are some. What it takes to place them is not asked of texts: those a model completes without.
        """
        traits, most = capabilities.images, self._longest_edge
        if traits is None:
            return None
        if isinstance(traits, ProcessorTraits):
            traits = replace(traits, longest_edge=most)
            return expansion_placer_of(tokenizer, traits, capabilities.model) if seeing else ExpansionPlacer(traits)
        if not seeing and missing_words(tokenizer, traits.family):
            return None
        if most:
            traits = replace(traits, longest_edge=min(traits.longest_edge, most))
        return placer_of(tokenizer, traits, capabilities.model)

    async def tokenize(self, text: str, add_special: bool, quoted: bool = False, tenant: str = "") -> Sequence[int]:
        """``tokenize_all`` of one."""
        return (await self.tokenize_all([text], add_special, quoted, tenant))[text]

    async def tokenize_all(
        self, wanted: Iterable[str], add_special: bool, quoted: bool = False, tenant: str = ""
    ) -> Mapping[str, Sequence[int]]:
        """The token ids of each text; special-token texts are recognised.

        Args:
            add_special: with the beginning- and end-of-sequence tokens that the model's metadata asks for, as ``prepare`` does it.
            quoted: they are not recognised, if they are control tokens', and none are added.

        Raises:
            Loading, Overloaded, EngineFailed: the model is not there.
        """
        tokenizer = self._model.tokenizer
        encode = tokenizer.encode_quoted if quoted else tokenizer.encode
        if not quoted and any(tokenizer.traits.added):
            encode = partial(encode_special if add_special else encode_without_special, encode, *tokenizer.traits.added)
        return await self._encoded(encode, list(dict.fromkeys(wanted)), tenant)

    async def tokenize_inside(self, text: str, tenant: str = "") -> Sequence[int]:
        """The ids of a text that stands inside a longer one: nothing is put before or after it. Raises as ``tokenize_all``."""
        return (await self._encoded(self._model.tokenizer.encode_inside, [text], tenant))[text]

    async def fill(self, gap: Gap, tenant: str = "") -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The prompt of a gap, see ``Infill.fill``, and the tokens that end what fills it, as with ``suffix``.

        Raises:
            Unsupported: the model, or its engine, cannot.
            PromptTooLong: the line, which is not cut, does not fit the context.
            Loading, Overloaded, EngineFailed: the model is not there.
        """
        form, about = infill(self._model.tokenizer, self._suffix_first), self._model.capabilities
        if form is None or not fills_in(about):
            # Source: "Infill is not supported by this model: [...] token is missing."
            lack = "it has no fill-in-the-middle tokens" if form is None else "its engine does not end at given tokens"
            raise Unsupported("", f"Infill is not supported by {about.model}: {lack}")
        wanted = texts_of(gap)
        async with self._turn(tenant, wanted, [gap.line]):
            ids: dict[str, Sequence[int]] = {}
            for text in wanted:
                # Source: only in what was typed last are special tokens' texts recognised; files are quoted.
                ids[text] = await self.tokenize(text, add_special=False, quoted=True, tenant=tenant)
                await asyncio.sleep(0)  # thousands of files must not hold up the streams of others
            line = await self.tokenize(gap.line, add_special=False, tenant=tenant)
            size = len(line) + sum(map(len, ids.values()))
            prompt = await self.run(tenant, size, lambda: form.fill(gap, ids, line, about.context))
        room = about.context - 1 - (len(prompt) - len(line))  # beside what was cut to fit, and one token to generate
        if len(line) > room:
            rule = (
                f"must have at most {counted(room, 'token')}, which is what the text around the gap leaves of the context, {about.context}"
            )
            raise PromptTooLong("prompt", rule, str(len(line)))
        return prompt, form.stops

    async def join(self, prompts: Mapping[str, Mixed], tenant: str = "") -> Sequence[tuple[int, ...]]:
        """The ids of prompts of ids and texts, each by its field's name.

        Raises:
            PromptTooLong: one exceeds the context.
            Loading, Overloaded, EngineFailed: the model is not there.
        """
        traits, context = self._model.tokenizer.traits, self._model.capabilities.context
        size = sum(map(len, prompts.values()))
        begin, later = await self.run(tenant, size, partial(texts_among, prompts, traits, context))
        async with self._turn(tenant, begin, later):
            first = await self.tokenize_all(begin, add_special=True, tenant=tenant)
            inside = await self.tokenize_all(later, add_special=False, tenant=tenant)
            size += sum(map(len, (*first.values(), *inside.values())))
            return await self.run(tenant, size, partial(joined, prompts, first, inside, context))

    async def quote(self, parts: Sequence[tuple[str, bool]], tenant: str = "") -> list[int]:
        """The ids of a prompt of texts, each by itself, without those that the model wants before a text.

        Args:
            parts: each with whether it is quoted, see ``tokenize_all``.

        Raises:
            PromptTooLong: it exceeds the context.
            Loading, Overloaded, EngineFailed: the model is not there.
        """
        traits, context = self._model.tokenizer.traits, self._model.capabilities.context
        wanted = [text for text, _ in parts]
        require_length("prompt", least_tokens("".join(wanted), traits, context), context, least=True)
        async with self._turn(tenant, wanted):
            ids: list[int] = []
            for text, quoted in parts:
                ids += await self.tokenize(text, add_special=False, quoted=quoted, tenant=tenant)
            require_length("prompt", len(ids), context)
        return ids

    @contextlib.asynccontextmanager
    async def _turn(self, tenant: str, *wanted: Sequence[str]) -> AsyncIterator[None]:
        """One request at a time has texts that are not short as ids, and one has large ones, from the first of them until what is kept of
        them is known: all that arrive together would have them while they wait for the executor, and as a list an id takes up to forty
        times the byte that it was."""
        size = sum(map(len, itertools.chain(*wanted)))
        if size <= INLINE_CHARS:
            yield
            return
        turns = self._large if size > LARGE_CHARS else self._turns
        await turns.acquire(tenant)
        try:
            yield
        finally:
            turns.release()

    async def _encoded(
        self, encode: Callable[[str], list[int]], wanted: Sequence[str], tenant: str, watch: Stopwatch | None = None
    ) -> dict[str, list[int]]:
        """The ids of each text; between portions of them it may be another tenant's turn."""
        ids: dict[str, list[int]] = {}
        for portion in portions(wanted):
            work = partial(encode_all, encode, portion)
            ids |= await self.run(tenant, sum(map(len, portion)), watch.of(work) if watch else work)
        return ids

    async def run(self, tenant: str, size: int, work: Callable[[], T]) -> T:
        """Do what takes as long as tokenising ``size`` characters: here, if that is soon done, else where it is its tenant's turn.

        Raises:
            Overloaded: see ``FairExecutor.run``.
        """
        return work() if size <= INLINE_CHARS else await self._executor.run(tenant, work)

    def _tags_of(self, tokenizer: Tokenizer) -> Tags | None:
        """Found once for a tokenizer: the end tag is encoded from each of its characters on."""
        if self._tags is None or self._tags[0] is not tokenizer:
            self._tags = tokenizer, tags_of(tokenizer)
        return self._tags[1]


def _require_possible(specs: Sequence[SequenceSpec], tokenizer: Tokenizer, capabilities: Capabilities) -> None:
    """What can be refused before anything is tokenised."""
    require_supported(specs, capabilities)
    require_fitting(specs, tokenizer.traits, capabilities.context)
