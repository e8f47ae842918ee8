"""From options to an engine: which model, how much of it, on what."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from quintet import machine
from quintet.backends.native.core.cpu import isas
from quintet.backends.native.core.loader import PAGE, longest
from quintet.backends.native.wire.sources import ModelSource, VllmSource
from quintet.backends.vllm import arguments
from quintet.cli import vllm
from quintet.cli.console import OptionError
from quintet.cli.describe import check_context, describe, kv_per_token, total
from quintet.cli.drafts import require_same_tokens
from quintet.cli.encoders import find_encoder
from quintet.cli.plans import Plan
from quintet.config import CacheFolder, EngineConfig, EngineName, KvType, Quantize, VllmConfig
from quintet.errors import ModelError, shorten
from quintet.models import store
from quintet.models.files import Report, StoredModel, human, pack_dir
from quintet.models.opening import open_model
from quintet.models.quantize import least, settled, words

TOY = "toy"
"""The reference of a deterministic model without weights."""

_TOY_KV_BYTES = 4 << 20
MAX_TAGS = 128

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}


@dataclass(frozen=True, slots=True, kw_only=True)
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


def pack_bytes(size: str, *, wanted: bool) -> int:
    """Most bytes of kept packed weights, of ``--pack-cache-size`` and ``--pack-cache``; 0 = none are kept.

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


def kind(reference: str, engine: EngineName) -> str:
    """``Plan.kind`` of a model, as far as that follows from how it is asked for; empty = its files tell.

    Raises:
        OptionError: vLLM is to compute the toy model.
    """
    if reference != TOY:
        return "" if engine == "auto" else engine
    if engine == "vllm":
        raise OptionError("--engine vllm is nothing to the toy model, which has no weights; leave it out.")
    return "toy"


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
    return _native(options, model, report)


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
    try:
        draft = store.resolve(reference, report, offline=offline)
        file = open_model(draft.path)
    except ModelError as error:
        raise ModelError(f"--draft: {error}") from None
    require_same_tokens(model, draft)
    return DraftPlan(draft, total(least(file.tensors)), kv_per_token(file.spec, kv_type))


def _native(options: EngineOptions, model: StoredModel, report: Report) -> Plan:
    file = open_model(model.path)
    about = describe(file, options.quantize, options.kv_type)
    if told := words(file.tensors, options.quantize):
        report.note(f"{model.name}: {told}")
    draft = find_draft(model, options.draft, report, options.kv_type, offline=options.offline) if options.draft else None
    kv_tokens = options.kv_bytes // ((about.kv_per_token + (draft.kv_per_token if draft else 0)) * PAGE) * PAGE
    most = longest(about.spec.context, kv_tokens, about.spec.window)
    asked_for = check_context(options.ctx_size, about.spec.context)
    context = _fit(asked_for, about.spec.context, kv_tokens, most)
    vision, encoder = find_encoder(options.mmproj, model.path, about.spec.hidden, options.quantize, report)
    source = ModelSource(
        path=str(model.path),
        threads=thread_count(options.threads),
        context=context,
        name=model.name,
        packs=CacheFolder(str(pack_dir()), options.pack_bytes) if options.pack_bytes else None,
        quantize=options.quantize,
        vision=vision,
        draft=str(draft.model.path) if draft else "",
        kv_type=options.kv_type,
        wanted=asked_for or about.spec.context,
    )
    return Plan(
        name=model.name,
        quant=about.quant,
        context=context,
        full_context=about.spec.context,
        isa=chosen_isa(),
        threads=source.threads,
        kv_tokens=kv_tokens,
        source=source,
        config=_config(options, options.kv_bytes),
        think_tags=options.think_tags,
        weights=about.weights + encoder + (draft.weights if draft else 0),
        suffix_first=options.suffix_first,
        longest_edge=options.longest_edge,
        draft=draft.model.name if draft else "",
        draft_reference=options.draft,
    )


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
    source = VllmSource(
        path=str(model.path),
        name=model.name,
        context=check_context(options.ctx_size, full or options.ctx_size),
        options=asked,
        vision=sight,
    )
    return Plan(
        name=model.name,
        quant=asked.dtype,
        context=options.ctx_size or full,
        full_context=full,
        isa="",
        threads=0,
        kv_tokens=0,
        source=ModelSource(path=str(model.path), threads=0, context=source.context, name=model.name),
        config=_config(options, kv_bytes),
        think_tags=options.think_tags,
        suffix_first=options.suffix_first,
        longest_edge=options.longest_edge,
        vllm=source,
    )


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

    settled(TOY, {}, options.quantize)
    if options.draft:
        raise OptionError("--draft: nothing drafts for the toy model.")
    return Plan(
        name=TOY,
        quant="",
        context=toy.CONTEXT,
        full_context=toy.CONTEXT,
        isa=chosen_isa(),
        threads=1,
        kv_tokens=_TOY_KV_BYTES // 4,
        source=ModelSource(path="", threads=1, context=None, name=TOY),
        config=_config(options, _TOY_KV_BYTES),
        think_tags=options.think_tags,
        suffix_first=options.suffix_first,
        longest_edge=options.longest_edge,
    )
