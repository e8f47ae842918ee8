"""Where this machine's packages come from: what the settings of pip and of uv say, read without either.

What comes from there is checked by its hash, so any place may be asked, and one that does not answer is no reason to stop.
"""

from __future__ import annotations

import configparser
import contextlib
import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quintet.errors import ModelError
from quintet.models.files import expanded

PYPI = "https://pypi.org/simple"


@dataclass(frozen=True, slots=True)
class _UvOptions:
    """What uv is told.

    Args:
        main: its main index; empty = none is set.
        extra: its other indexes.
    """

    main: str = ""
    extra: tuple[str, ...] = ()
    links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sources:
    """Where to look for packages.

    Args:
        links: folders, or addresses of pages, that hold or name files (``--find-links``); asked first.
        indexes: addresses of simple indexes, in the order in which to ask them.
        certificates: a file of certificates to trust in place of the system's; empty = the system's.
        proxy: by which all is fetched; empty = as the environment says (``HTTPS_PROXY``, ``NO_PROXY``).
    """

    links: tuple[str, ...]
    indexes: tuple[str, ...]
    certificates: str = ""
    proxy: str = ""


def sources(environ: Mapping[str, str]) -> Sources:
    """What the environment and the configuration files of uv and pip say; of two main indexes, uv's, and an environment's before a file's.

    Raises:
        ModelError: a configuration file that cannot be read.
    """
    pip = _pip_options(environ)
    uv = _uv_options(environ)
    extra = [*uv.extra, *pip.get("extra-index-url", "").split()]
    if environ.get("UV_OFFLINE", "0").lower() in ("1", "true") or pip.get("no-index", "0").lower() in ("1", "true", "yes", "on"):
        extra, main = [], []
    else:
        main = [uv.main or pip.get("index-url", "").strip() or PYPI]
    return Sources(
        links=tuple(dict.fromkeys([*uv.links, *pip.get("find-links", "").split()])),
        indexes=tuple(dict.fromkeys([*main, *extra])),
        certificates=pip.get("cert", ""),
        proxy=pip.get("proxy", ""),
    )


def _pip_options(environ: Mapping[str, str]) -> dict[str, str]:
    """pip's options by their long names, the most particular of each: environment, ``PIP_CONFIG_FILE``, venv, user, system."""
    found: dict[str, str] = {}
    for path in _pip_files(environ):
        for section in ("global", "download"):
            found |= _pip_section(path, section)
    names = ("index-url", "extra-index-url", "find-links", "no-index", "cert", "proxy")
    said = {name: environ.get(f"PIP_{name.upper().replace('-', '_')}", "") for name in names}
    return found | {name: value for name, value in said.items() if value}


def _pip_section(path: Path, section: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise _unreadable(path, error) from error
    return {name.replace("_", "-"): value for name, value in parser.items(section)} if parser.has_section(section) else {}


def _pip_files(environ: Mapping[str, str]) -> list[Path]:
    """pip's configuration files, the least particular first."""
    own = environ.get("PIP_CONFIG_FILE", "")
    if own == os.devnull:
        return []
    library = Path("/Library/Application Support/pip/pip.conf")
    system = [Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf")] if sys.platform != "darwin" else [library]
    user = [*_at_home(".pip/pip.conf"), *_configured(environ, "pip/pip.conf")]
    if sys.platform == "darwin":
        user += _at_home(str(library.relative_to("/")))
    return [*system, *user, Path(sys.prefix) / "pip.conf", *([Path(own)] if own else [])]


def _configured(environ: Mapping[str, str], file: str) -> list[Path]:
    """A file of the user's settings; none, where nobody knows where these are."""
    said = Path(environ.get("XDG_CONFIG_HOME", ""))
    return [said / file] if said.is_absolute() else _at_home(f".config/{file}")


def _at_home(file: str) -> list[Path]:
    with contextlib.suppress(ModelError):
        return [expanded("~") / file]
    return []


def _uv_options(environ: Mapping[str, str]) -> _UvOptions:
    """What the environment and its configuration files say; ``UV_INDEX`` may name an index as ``name=address``."""
    main = environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL") or ""
    extra = [*environ.get("UV_INDEX", "").split(), *environ.get("UV_EXTRA_INDEX_URL", "").split()]
    links = environ.get("UV_FIND_LINKS", "").replace(",", " ").split()
    own = environ.get("UV_CONFIG_FILE", "")
    usual = [] if environ.get("UV_NO_CONFIG") else [*_configured(environ, "uv/uv.toml"), Path("/etc/uv/uv.toml")]
    for path in [Path(own)] if own else usual:
        file = _uv_file(path)
        main = main or file.main
        extra += file.extra
        links += file.links
    return _UvOptions(_address(main), tuple(map(_address, extra)), tuple(links))


def _uv_file(path: Path) -> _UvOptions:
    """The same of one configuration file. The options of ``[pip]`` are for uv's ``pip`` commands alone."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        named: list[dict[str, str]] = table.get("index", [])
        main = next((index["url"] for index in named if index.get("default")), "") or table.get("index-url", "")
        extra = [index["url"] for index in named if not index.get("default")]
        return _UvOptions(main, (*extra, *table.get("extra-index-url", [])), (*table.get("find-links", []),))
    except FileNotFoundError:
        return _UvOptions()
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise _unreadable(path, error) from error


def _address(text: str) -> str:
    name, named, address = text.partition("=")
    return address if named and "/" not in name else text


def _unreadable(path: Path, error: Exception) -> ModelError:
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return ModelError(f"{path}, which says where packages come from, cannot be read: {first}.")
