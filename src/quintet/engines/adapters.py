"""LoRA adapters: each has a name of its own beside the models' names, and comes and goes while its model is served."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from quintet.errors import BadRequest, shorten
from quintet.inputs.sequence import Adapter


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Which adapters a model takes.

    Args:
        most: at once.
        check: of a folder's path; what tells its files from others'. Raises ``ModelError`` where no engine of the model could load it.
        given: names and paths of those that are there from the start.
    """

    most: int
    check: Callable[[str], str]
    given: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True, eq=False)
class Lora:
    """An adapter of a model.

    Args:
        model: the model's first name.
        users: requests that need it now.
    """

    model: str
    adapter: Adapter
    users: int = 0

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """As long as a request needs it: its place is nobody else's meanwhile, though its name may be gone."""
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1


@dataclass(slots=True)
class Adapters:
    """Those of all models, by name. An engine loads one when a request first needs it, and lets go of what nobody uses for another."""

    named: dict[str, Lora] = field(default_factory=dict)
    _leaving: list[Lora] = field(default_factory=list)
    _coming: dict[str, Lora] = field(default_factory=dict)
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def begin(self, model: str, config: LoraConfig) -> None:
        """Those that are there from the start."""
        for name, path in config.given:
            self.named[name] = Lora(model, Adapter(next(self._ids), path, config.check(path)))

    @contextlib.contextmanager
    def coming(self, name: str, model: str, path: str, digest: str, most: int) -> Iterator[Lora]:
        """One that is to be tried; nobody else gets its name or its place meanwhile. It is there if nothing raises.

        Raises:
            BadRequest: there are as many as the model has room for, or another of this name is being tried.
        """
        self._leaving = [lora for lora in self._leaving if lora.users]
        taken = [lora for lora in (*self.named.values(), *self._leaving, *self._coming.values()) if lora.model == model]
        if len(taken) >= most:
            rule = f"cannot be loaded: {shorten(model)} has as many adapters as --max-loras says, {most}; unload one first"
            raise BadRequest("lora_name", rule, shorten(name))
        if name in self._coming:
            raise BadRequest("lora_name", "is being loaded", shorten(name))
        lora = self._coming[name] = Lora(model, Adapter(next(self._ids), path, digest))
        try:
            yield lora
            self.named[name] = lora
        finally:
            del self._coming[name]

    def leave(self, name: str) -> None:
        """It has no name any more, and ends with the last request that uses it."""
        self._leaving.append(self.named.pop(name))
