"""From the options of ``quintet serve`` to its models: which ones, under which names, with what share of the memory."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path

from quintet import machine
from quintet.backends.native.front.spawn import Ahead
from quintet.cli import drafts, engines, loras, references, vllm
from quintet.cli.console import OptionError
from quintet.cli.plans import Plan
from quintet.engines.adapters import LoraConfig
from quintet.engines.entry import Model
from quintet.engines.names import Names, name_models
from quintet.engines.registry import Registry
from quintet.errors import ModelError, shorten
from quintet.inputs.images.addresses import is_entry
from quintet.models import bundled, store
from quintet.models.files import Report, expanded, human
from quintet.moderation import template
from quintet.moderation.format import Format
from quintet.moderation.formats import FORMATS

_OWN_NAMES = (engines.TOY, bundled.NAME)
"""References that are names."""

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """What the user asked for.

    Args:
        references: of the models, each with ``NAME=`` before it or not; the first is the default.
        engine: for each of them; ``model`` does not count, and ``kv_bytes`` is for all together.
        names: of the first model, instead of its own.
        aliases: ``NAME=MODEL``.
        lazy: load each model at its first request.
        pins: names of models that are loaded at the start and stay.
        idle: seconds after which a model that nobody asks for is unloaded; 0 = never.
        moderation: ``NAME=FORMAT`` of models that judge texts; a format's name, or its file.
        image_hosts: from which images may be fetched.
        drafts: ``[NAME=]REFERENCE`` of draft models; without a name the first model's.
        loras: ``NAME=MODEL:PATH`` of LoRA adapters.
    """

    references: tuple[str, ...]
    engine: engines.EngineOptions
    _: KW_ONLY
    names: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    lazy: bool = False
    pins: tuple[str, ...] = ()
    idle: float = 0.0
    moderation: tuple[str, ...] = ()
    image_hosts: tuple[str, ...] = ()
    drafts: tuple[str, ...] = ()
    loras: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fleet:
    """Models that can be served.

    Args:
        plans: of each, in the order of ``models``.
    """

    plans: tuple[Plan, ...]
    models: tuple[Model, ...]
    names: Names
    idle: float
    image_hosts: tuple[str, ...]

    def begin(self, ahead: Ahead) -> Fleet:
        """With engines that begin to load now those that are not lazy, in processes of their own; ``open`` gives them their requests."""
        begun = []
        for model, plan in zip(self.models, self.plans, strict=True):
            begun.append(model if model.lazy else replace(model, start=plan.begin(ahead)))
        return replace(self, models=tuple(begun))

    def open(self) -> Registry:
        """Begin to load those that are not lazy; call it on the event loop that will serve."""
        return Registry(self.models, self.names, idle=self.idle, free=machine.memory_available, image_hosts=self.image_hosts)


def parse_seconds(text: str, option: str) -> float:
    """Seconds of an ``option`` such as ``90s``, ``10m`` or ``1.5h``; a bare number is seconds.

    Raises:
        OptionError: not a time.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip(), re.ASCII)
    if found is None:
        raise OptionError(f"{option} must be a number with a unit s, m or h, got {shorten(text)}.")
    return float(found[1]) * _SECONDS[found[2]]


def check(options: FleetOptions) -> None:
    """What can be told without the models.

    Raises:
        OptionError: a malformed option, or one that is nothing to any of the models, as far as their engines are known.
        ModelError: names contradict, as far as they are known.
    """
    wrong = next((text for text in options.image_hosts if not is_entry(text)), None)
    if wrong is not None:
        rule = "must be a host such as example.org, *.example.org or *, or one with a port from 1 to 65535 such as example.org:8080"
        raise OptionError(f"--allow-image-urls {rule}, got {shorten(wrong)}.")
    for text in options.references:
        references.split(text)
    for text in options.aliases:
        _alias(text)
    for text in options.moderation:
        _role(text)
    if drafts.by_model(options.drafts) and not options.engine.speculation:
        raise OptionError("--draft needs --speculation auto.")
    for text in options.loras:
        loras.parse(text)
    given = [references.split(text) for text in options.references]
    kinds = {engines.kind(reference, options.engine.engine) for _, reference in given}
    if all(kinds):
        vllm.require_use(options.engine.given, kinds)
    _named([name or (reference if reference in _OWN_NAMES else "") for name, reference in given], options)


def plan(options: FleetOptions, report: Report) -> Fleet:
    """Find the models, fetching them if need be, and check that what was asked for fits.

    Raises:
        ModelError: a model cannot be had or read, its context does not fit its share of the KV cache, or names contradict.
        OptionError: a malformed option, or more memory than the machine has.
    """
    check(options)
    plans = _plans(options, report)
    vllm.require_use(options.engine.given, {planned.kind for planned in plans})
    names = _named([planned.name for planned in plans], options)
    roles = _moderation(options.moderation, names)
    named = {name: _known_as(name, planned) for name, planned in zip(dict.fromkeys(names.exact.values()), plans, strict=True)}
    _require_tokens(roles, named)
    pinned = {names.exact[name] for name in options.pins}
    names, with_loras = loras.plan(options.loras, named, names)
    models = tuple(
        _model(name, planned, taken, roles.get(name), lazy=options.lazy and name not in pinned, pinned=name in pinned)
        for name, (planned, taken) in zip(named, with_loras, strict=True)
    )
    if not options.engine.elsewhere:
        _check_memory(models)
    return Fleet(
        plans=tuple(planned for planned, _ in with_loras), models=models, names=names, idle=options.idle, image_hosts=options.image_hosts
    )


def _named(own: Sequence[str], options: FleetOptions) -> Names:
    """Every name, of models with such names of their own.

    Args:
        own: of each; empty = nobody knows it yet: the model is left out, and so is what may be said of it.

    Raises:
        ModelError: names contradict.
        OptionError: what is pinned is no model.
    """
    models = [options.names or (own[0],), *((name,) for name in own[1:])]
    known = [names for names in models if all(names)]
    whole, called = len(known) == len(models), {name for names in known for name in names}
    names = name_models(known, [alias for alias in map(_alias, options.aliases) if whole or alias[1] in called])
    unknown = [name for name in options.pins if whole and name not in names.exact]
    if unknown:
        raise OptionError(f"--pin must be the name of a model, {' or '.join(names.exact)}, got {shorten(unknown[0])}.")
    return names


def _model(name: str, plan: Plan, taken: LoraConfig | None, moderation: Format | None, *, lazy: bool, pinned: bool) -> Model:
    return Model(
        name,
        partial(plan.supervise, watched=lazy),
        plan.weights,
        plan.config.kv_bytes,
        lazy=lazy,
        pinned=pinned,
        mapped=plan.mapped,
        preparer=plan.preparer,
        moderation=moderation,
        loras=taken,
        context=plan.context if plan.vllm is None or plan.vllm.context else None,  # vLLM makes more of a model's configuration
        speculative=plan.kind == "native" and plan.config.speculation,
        settings=_settings(plan),
    )


def _known_as(name: str, plan: Plan) -> Plan:
    """Its engine is told the name that clients ask for, which errors tell them; the file's would say nothing to them."""
    return replace(plan, source=replace(plan.source, name=name), vllm=plan.vllm and replace(plan.vllm, name=name))


def _settings(plan: Plan) -> str:
    """A digest of the options that change answers before the engine sees a request; empty where none was given."""
    given = plan.think_tags, plan.suffix_first, plan.longest_edge
    return hashlib.sha256(repr(given).encode()).hexdigest()[:6] if any(given) else ""


def _plans(options: FleetOptions, report: Report) -> tuple[Plan, ...]:
    """Each with its name and an even share of the KV cache; the toy's is its own."""
    given = [references.split(text) for text in options.references]
    share = options.engine.kv_bytes // max(1, sum(reference != engines.TOY for _, reference in given))
    plans = []
    drafting = _drafts(options, given, report)
    for number, (name, reference) in enumerate(given):
        mmproj = "" if number else options.engine.mmproj
        engine = replace(options.engine, model=reference, kv_bytes=share, mmproj=mmproj, draft=drafting[number])
        try:
            planned = engines.plan(engine, report)
        except ModelError as error:
            if len(given) == 1:
                raise
            raise ModelError(f"{name or reference}, with {human(share)} of KV cache as its share: {error}") from error
        plans.append(replace(planned, name=name or planned.name))
    return tuple(plans)


def _drafts(options: FleetOptions, given: Sequence[tuple[str, str]], report: Report) -> list[str]:
    """The reference of each model's draft model; empty = it has none.

    Raises:
        OptionError: a model that is not there, or one with two of them.
        ModelError: a model cannot be had.
    """
    by_model = drafts.by_model(options.drafts)
    first, names = by_model.pop(drafts.FIRST, ""), [name for name, _ in given]
    if by_model:
        names = [name or _own_name(reference, options, report) for name, reference in given]
    if strangers := by_model.keys() - names:
        got = next(text for text in options.drafts if references.split(text)[0] in strangers)
        raise OptionError(f"--draft must be [NAME=]REFERENCE, NAME one of {', '.join(names)}, got {shorten(got)}.")
    if first and names[0] in by_model:
        raise OptionError(f"--draft gives {shorten(names[0])}, the first model, two draft models.")
    return [by_model.get(name, "") or (first if number == 0 else "") for number, name in enumerate(names)]


def _own_name(reference: str, options: FleetOptions, report: Report) -> str:
    return reference if reference == engines.TOY else store.resolve(reference, report, offline=options.engine.offline).name


def _moderation(given: Sequence[str], names: Names) -> dict[str, Format]:
    """By the model's first name.

    Raises:
        OptionError: an unknown model, one that is given twice, or a format that is neither known nor a file.
        ModelError: a file that holds no format, or a home directory that is not there.
    """
    roles: dict[str, Format] = {}
    for text in given:
        name, form = _role(text)
        if name not in names.exact:
            raise OptionError(f"--moderation must be NAME=FORMAT, NAME one of {', '.join(names.exact)}, got {shorten(text)}.")
        if names.exact[name] in roles:
            raise OptionError(f"--moderation gives the model {shorten(names.exact[name])} two formats.")
        roles[names.exact[name]] = FORMATS[form] if form in FORMATS else _format_file(Path(form))
    return roles


def _require_tokens(roles: Mapping[str, Format], plans: Mapping[str, Plan]) -> None:
    """A format is for models that have its control tokens; asked in another's, a model would say anything.

    Raises:
        ModelError: a model lacks one.
    """
    for name, form in roles.items():
        encode = plans[name].tokenizer().encode_inside if form.control else None
        lacking = [text for text in form.control if encode and len(encode(text)) != 1]
        if lacking:
            raise ModelError(f"{name} has no token {shorten(lacking[0])}, which the moderation format {form.name} needs.")


def _format_file(path: Path) -> Format:
    try:
        with expanded(path).open("rb") as file:
            data = file.read(template.MAX_BYTES + 1)
    except OSError as error:
        known = ", ".join(FORMATS)
        raise OptionError(f"--moderation: {path} is no format ({known}) and no file to be read: {error.strerror}.") from None
    try:
        return template.read(data, path.name)
    except ModelError as error:
        raise OptionError(f"--moderation: {error}") from None


def _alias(text: str) -> tuple[str, str]:
    name, equals, model = text.rpartition("=")
    if not equals:
        raise OptionError(f"--alias must be NAME=MODEL, got {shorten(text)}.")
    return name, model


def _role(text: str) -> tuple[str, str]:
    name, equals, form = text.rpartition("=")
    if not equals:
        raise OptionError(f"--moderation must be NAME=FORMAT, got {shorten(text)}.")
    return name, form


def _check_memory(models: Sequence[Model]) -> None:
    """What is loaded at the start must fit the machine, but for weights that are mapped; what is loaded later is weighed then."""
    need = sum(one.kv + (0 if one.mapped else one.weights) for one in models if not one.lazy)
    if need > machine.memory_total():
        what = "--kv-cache needs" if all(one.mapped for one in models) else "--kv-cache and the weights need"
        raise OptionError(f"{what} {human(need)}, which is more than {engines.memory_words()}.")
