"""From options to an engine: which model, how much of it, on what."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from quintet import machine
from quintet.backends.base import Backend
from quintet.backends.native.core.cpu import isas
from quintet.backends.native.core.loader import PAGE, Loader, longest
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.front.process import ProcessLink
from quintet.backends.native.front.spawn import Ahead
from quintet.backends.native.wire.messages import ModelSource, VllmSource
from quintet.backends.native.worker.load import load_tokenizer, native_loader
from quintet.backends.vllm import arguments
from quintet.cli import vllm
from quintet.cli.console import OptionError
from quintet.cli.describe import check_context, describe, kv_per_token, total
from quintet.cli.drafts import require_same_tokens
from quintet.cli.encoders import find_encoder
from quintet.config import CacheFolder, EngineConfig, EngineName, KvType, Quantize, VllmConfig
from quintet.errors import ModelError, shorten
from quintet.executor import FairExecutor
from quintet.guides.check import GuideCheck
from quintet.inputs.images.reader import ImageReader
from quintet.inputs.prepare import Preparer
from quintet.inputs.tokenizer import Tokenizer
from quintet.models import store
from quintet.models.files import Report, StoredModel, human, pack_dir
from quintet.models.opening import open_model
from quintet.models.quantize import least, settled, words

TOY = "toy"
"""The reference of a deterministic model without weights."""

_TOY_KV_BYTES = 4 << 20
MAX_TAGS = 128

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the user asked for.

    Args:
        model: a reference, or ``TOY``.
        ctx_size: tokens; 0 = the model's context, or what the KV cache holds if that is less.
        threads: 0 = one per CPU this process may use.
        kv_bytes: memory for the KV cache.
        max_choices: most sequences of a request.
        max_waiting: most sequences in the queue.
        think_tags: what the model writes around its thinking; ``None`` = what its file tells.
        suffix_first: see ``Preparer``.
        speculation: see ``EngineConfig``.
        pack_bytes: most bytes of kept packed weights; 0 = none are kept.
        quantize: what becomes of float matrices.
        longest_edge: most pixels of the longer edge of images that a model cuts into tiles; 0 = as the model has it.
        prefixes: see ``EngineConfig``.
        mmproj: file of an image encoder; empty = the model's folder, or a file beside it, if there is one; ``NO_ENCODER`` = none.
        draft: reference of a draft model; empty = there is none.
        engine: what computes; ``auto`` = the native core where it knows the model, else vLLM where it is installed.
        vllm: for vLLM.
        given: options of one engine alone that the user gave.
        kv_type: of keys and values, a draft model's too.
        elsewhere: it computes on other machines, whose memory is not known here.
    """

    model: str
    ctx_size: int
    threads: int
    kv_bytes: int
    offline: bool
    max_choices: int = 1024
    max_waiting: int = 1024
    think_tags: tuple[str, str] | None = None
    suffix_first: bool = False
    speculation: bool = True
    pack_bytes: int = 0
    quantize: Quantize = "q8"
    longest_edge: int = 0
    mmproj: str = ""
    draft: str = ""
    prefixes: CacheFolder | None = None
    engine: EngineName = "native"
    vllm: VllmConfig = field(default_factory=VllmConfig)
    given: tuple[str, ...] = ()
    kv_type: KvType = "f16"
    elsewhere: bool = False


def parse_size(text: str, option: str = "--kv-cache") -> int:
    """Bytes of an ``option`` such as ``512MiB``, ``2G`` or ``1.5 GB``; a bare number is bytes.

    Raises:
        OptionError: not a size, less than a byte, or more than any file or memory has.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", text.strip(), re.IGNORECASE)
    unit = found[2].lower() if found else "?"
    if found is None or unit not in _UNITS or float(found[1]) == 0:
        raise OptionError(f"{option} must be a number above 0 with a unit such as MiB or GB, got {shorten(text)}.")
    size = float(found[1]) * _UNITS[unit]
    if not 1 <= size < 1 << 63:
        raise OptionError(f"{option} must be at least a byte, and less than 2^63, got {shorten(text)}.")
    return int(size)


def pack_bytes(wanted: bool, size: str) -> int:
    """Most bytes of kept packed weights, of ``--pack-cache`` and ``--pack-cache-size``; 0 = none are kept.

    Raises:
        OptionError: not a size.
    """
    most = parse_size(size, "--pack-cache-size")
    return most if wanted else 0


def prefix_cache(folder: Path | None, size: str) -> CacheFolder | None:
    """Of ``--prefix-cache-dir`` and ``--prefix-cache-size``.

    Raises:
        OptionError: not a size.
    """
    most = parse_size(size, "--prefix-cache-size")
    return CacheFolder(str(folder.absolute()), most) if folder else None


def parse_tags(text: str | None) -> tuple[str, str] | None:
    """The two texts of ``--think-tags``.

    Raises:
        OptionError: not two different texts with a comma between them.
    """
    if text is None:
        return None
    start, _, end = text.partition(",")
    if not start or not end or "," in end or start == end or len(text) > MAX_TAGS:
        rule = f"must be a start and an end tag with a comma between them, such as <think>,</think>, in at most {MAX_TAGS} characters"
        raise OptionError(f"--think-tags {rule}, got {shorten(text)}.")
    return start, end


def thread_count(wanted: int) -> int:
    """``wanted``, or one per CPU this process may use, and no more than a container's quota is for."""
    return wanted or machine.cpus()


def memory_words() -> str:
    """Whose memory ``machine.memory_total`` is, and how much."""
    return f"{'this machine' if machine.memory_limit() is None else 'this container'}'s memory, {human(machine.memory_total())}"


def chosen_isa() -> str:
    """The instruction set the native core takes on this CPU: ``QUINTET_ISA``, or the best.

    Raises:
        OptionError: ``QUINTET_ISA`` names one that this build or CPU does not have.
    """
    found = isas()
    wanted = os.environ.get("QUINTET_ISA") or found[0]
    if wanted not in found:
        raise OptionError(f"QUINTET_ISA must be one of {', '.join(found)} here, got {shorten(wanted)}.")
    return wanted


@dataclass(frozen=True, slots=True)
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

    def supervise(self) -> Engine:
        """Likewise in a process of its own, which is started again when it dies or hangs."""
        return Engine(self._link(), self.config)

    def begin(self, ahead: Ahead) -> Callable[[], Engine]:
        """Start a worker that loads the model while there is no event loop yet.

        Returns:
            What is called in place of ``supervise``. The first engine that it makes takes over this worker; each later one, as when the
            model was unloaded meanwhile, starts a worker of its own.
        """
        links = [self._link()]
        links[0].begin(ahead)
        return lambda: Engine(links.pop() if links else self._link(), self.config)

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
        of = self.source
        if self.vllm is not None:
            raise ModelError(f"{self.name}: vLLM runs in a process of its own, and this command has none: use quintet serve.")
        if of.path:
            settings = of.threads, of.context, of.name, of.isa, of.packs, of.quantize
            vision, draft = (Path(path) if path else None for path in (of.vision, of.draft))
            return native_loader(Path(of.path), *settings, vision, draft, of.kv_type, of.wanted)
        from quintet.backends import toy  # computes with numpy, which a server's front does not carry otherwise

        return toy.toy_loader()

    def tokenizer(self) -> Tokenizer:
        """The model's, from its file."""
        tags = self.think_tags
        if self.source.path:
            return load_tokenizer(Path(self.source.path), tags, any_model=self.vllm is not None)
        from quintet.backends import toy

        return toy.ToyTokenizer(tags)


def plan(options: EngineOptions, report: Report) -> Plan:
    """Find the model, fetching it if need be, and check that what was asked for fits.

    Raises:
        ModelError: the model cannot be had or read, ``quantize`` is not for it, or the context does not fit the model or the KV cache; or
            the same of its draft model, which must have the same tokens too.
        OptionError: a KV cache that the machine cannot hold, or a draft model for one that nothing drafts for.
    """
    if options.model == TOY:
        return _toy(options)
    if options.kv_bytes > machine.memory_total() and not options.elsewhere:
        raise OptionError(f"--kv-cache of {human(options.kv_bytes)} is more than {memory_words()}.")
    model = store.resolve(options.model, report, offline=options.offline)
    if vllm.computes(options.engine, model, report):
        return _vllm(options, model, report)
    file = open_model(model.path)
    about = describe(file, options.quantize, options.kv_type)
    if told := words(file.tensors, options.quantize):
        report.note(f"{model.name}: {told}")
    draft = find_draft(model, options.draft, report, options.kv_type, offline=options.offline) if options.draft else None
    kv_tokens = options.kv_bytes // ((about.kv_per_token + (draft.kv_per_token if draft else 0)) * PAGE) * PAGE
    most = longest(about.spec.context, kv_tokens, about.spec.window)
    asked_for = check_context(options.ctx_size, about.spec.context)
    context = _fit(asked_for, about.spec.context, kv_tokens, most)
    threads = thread_count(options.threads)
    packs = CacheFolder(str(pack_dir()), options.pack_bytes) if options.pack_bytes else None
    vision, encoder = find_encoder(options.mmproj, model.path, about.spec.hidden, options.quantize, report)
    drafts = str(draft.model.path) if draft else ""
    files = packs, options.quantize, vision, drafts, options.kv_type
    source = ModelSource(str(model.path), threads, context, model.name, "", *files, asked_for or about.spec.context)
    config = _config(options, options.kv_bytes)
    sizes = context, about.spec.context, chosen_isa(), threads, kv_tokens
    asked = options.suffix_first, options.longest_edge, draft.model.name if draft else "", options.draft
    weights = about.weights + encoder + (draft.weights if draft else 0)
    return Plan(model.name, about.quant, *sizes, source, config, options.think_tags, weights, *asked)


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """A draft model, and what it needs: bytes of its weights, and of the keys and values of a token."""

    model: StoredModel
    weights: int
    kv_per_token: int


def find_draft(model: StoredModel, reference: str, report: Report, kv_type: KvType, *, offline: bool) -> DraftPlan:
    """The draft model for a model, fetched if need be.

    Raises:
        ModelError: it cannot be had or read, or has other tokens.
        OptionError: it has no weights.
    """
    if reference == TOY:
        raise OptionError("--draft: the toy model drafts for nobody.")
    draft = store.resolve(reference, report, offline=offline)
    file = open_model(draft.path)
    require_same_tokens(model, draft)
    return DraftPlan(draft, total(least(file.tensors)), kv_per_token(file.spec, kv_type))


def _vllm(options: EngineOptions, model: StoredModel, report: Report) -> Plan:
    from quintet.backends.vllm.images import hidden_size  # asyncio and numpy, for those who have vLLM

    for option, value in (("--draft", options.draft), ("--mmproj", options.mmproj)):
        if value:
            raise OptionError(f"{option} is nothing to the vLLM engine, which computes {model.name}; leave it out.")

    full = vllm.context(model.path)
    kv_bytes = options.kv_bytes if "kv_cache" in options.given else 0
    asked = replace(options.vllm, kv_bytes=kv_bytes)
    sight: Literal["", "layout", "processor"] = ""
    if arguments.given(options.vllm.vllm_arg).get("language_model_only") is not True:  # a wrong one is told before anything is loaded
        path, _ = find_encoder(options.mmproj, model.path, hidden_size(model.path), options.quantize, report)
        sight = "layout" if path else "processor"
    source = VllmSource(str(model.path), model.name, check_context(options.ctx_size, full or options.ctx_size), asked, sight)
    config, sizes = _config(options, kv_bytes), (options.ctx_size or full, full, "", 0, 0)
    here = ModelSource(str(model.path), 0, source.context, model.name)
    own = options.think_tags, 0, options.suffix_first, options.longest_edge
    return Plan(model.name, asked.dtype, *sizes, here, config, *own, vllm=source)


def _fit(wanted: int, trained: int, kv_tokens: int, most: int) -> int:
    """The context: what was asked for, or as much as model and KV cache allow.

    Raises:
        ModelError: the KV cache holds too little.
    """
    if wanted > most or kv_tokens == 0:
        raise ModelError(
            f"the KV cache holds {kv_tokens} tokens, fewer than the context of {wanted or trained}; "
            f"raise --kv-cache{f' or use --ctx-size {kv_tokens}' if kv_tokens else ''}."
        )
    return wanted or most


def _config(options: EngineOptions, kv_bytes: int) -> EngineConfig:
    return EngineConfig(
        kv_bytes=kv_bytes,
        max_waiting=options.max_waiting,
        max_sequences=options.max_choices,
        speculation=options.speculation,
        prefixes=options.prefixes,
    )


def _toy(options: EngineOptions) -> Plan:
    from quintet.backends import toy

    if options.engine == "vllm":
        raise OptionError("--engine vllm is nothing to the toy model, which has no weights; leave it out.")
    settled(TOY, {}, options.quantize)
    if options.draft:
        raise OptionError("--draft: nothing drafts for the toy model.")
    config = _config(options, _TOY_KV_BYTES)
    kv_tokens = _TOY_KV_BYTES // 4
    source = ModelSource("", 1, None, TOY)
    sizes = toy.CONTEXT, toy.CONTEXT, chosen_isa(), 1, kv_tokens
    return Plan(TOY, "", *sizes, source, config, options.think_tags, 0, options.suffix_first, options.longest_edge)
