"""Settings of pip and uv, as their own documentation has them: the same words lead to the same places."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from quintet.errors import ModelError
from quintet.models.indexes import PYPI, Sources, sources


def from_environment(**environ: str) -> Sources:
    return sources({"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1", **environ})


@pytest.mark.parametrize(
    ("environ", "indexes"),
    [
        ({}, (PYPI,)),
        ({"PIP_INDEX_URL": "https://a/simple"}, ("https://a/simple",)),
        ({"PIP_EXTRA_INDEX_URL": "https://a https://b"}, (PYPI, "https://a", "https://b")),
        ({"UV_INDEX_URL": "https://old"}, ("https://old",)),
        ({"UV_DEFAULT_INDEX": "https://new", "UV_INDEX_URL": "https://old", "PIP_INDEX_URL": "https://a"}, ("https://new",)),
        ({"UV_DEFAULT_INDEX": "corp=https://new/a=b"}, ("https://new/a=b",)),
        (
            {"UV_INDEX": "corp=https://c https://d/x=y", "UV_EXTRA_INDEX_URL": "https://e"},
            (PYPI, "https://c", "https://d/x=y", "https://e"),
        ),
        ({"PIP_NO_INDEX": "true", "PIP_INDEX_URL": "https://a", "UV_INDEX": "https://c"}, ()),
        ({"UV_OFFLINE": "1"}, ()),
        ({"UV_OFFLINE": "0", "PIP_NO_INDEX": "0"}, (PYPI,)),
    ],
)
def test_indexes_of_the_environment(environ: dict[str, str], indexes: tuple[str, ...]) -> None:
    assert from_environment(**environ).indexes == indexes


def test_links_certificates_and_proxy() -> None:
    found = from_environment(UV_FIND_LINKS="/a,/b", PIP_FIND_LINKS="/b /c", PIP_CERT="/x.pem", PIP_PROXY="http://p:1")
    assert (found.links, found.certificates, found.proxy) == (("/a", "/b", "/c"), "/x.pem", "http://p:1")


def test_pip_files_are_read_as_pip_reads_them(tmp_path: Path) -> None:
    """The real pip is asked what it makes of the same files."""
    user = tmp_path / "home/.config/pip/pip.conf"
    user.parent.mkdir(parents=True)
    user.write_text("[global]\nindex-url = https://user/simple\nfind_links =\n    /a\n    /b\n[download]\nextra-index-url = https://more\n")
    own = tmp_path / "own.conf"
    own.write_text("[global]\nindex-url = https://own/simple\n[install]\nindex-url = https://other\n")
    environ = {"HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"], "UV_NO_CONFIG": "1"}
    assert read_with(environ).indexes[:2] == ("https://user/simple", "https://more")
    assert read_with(environ).links[:2] == ("/a", "/b")
    environ["PIP_CONFIG_FILE"] = str(own)
    said = subprocess.run([sys.executable, "-m", "pip", "config", "list"], env=environ, capture_output=True, text=True, check=True)
    assert f"global.index-url={read_with(environ).indexes[0]!r}" in said.stdout.splitlines()
    assert read_with(environ).indexes[0] == "https://own/simple"
    environ["PIP_INDEX_URL"] = "https://env/simple"
    assert read_with(environ).indexes[0] == "https://env/simple"


def read_with(environ: dict[str, str]) -> Sources:
    """In a process whose home is the environment's."""
    code = "import os; from quintet.models.indexes import *; print(repr(sources(os.environ)))"
    said = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    found = eval(said.stdout, {"Sources": Sources})
    assert isinstance(found, Sources)
    return found


def test_uv_files_are_read(tmp_path: Path) -> None:
    file = tmp_path / "config/uv/uv.toml"
    file.parent.mkdir(parents=True)
    file.write_text(
        'find-links = ["/wheels"]\nextra-index-url = ["https://more"]\n'
        '[[index]]\nname = "a"\nurl = "https://a"\n[[index]]\nurl = "https://main"\ndefault = true\n[pip]\nindex-url = "https://no"\n'
    )
    environ = {"PIP_CONFIG_FILE": os.devnull, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    assert sources(environ) == Sources(("/wheels",), ("https://main", "https://a", "https://more"))
    assert sources({**environ, "UV_DEFAULT_INDEX": "https://env"}).indexes[0] == "https://env"
    assert sources({**environ, "UV_NO_CONFIG": "1"}).indexes == (PYPI,)
    other = tmp_path / "other.toml"
    other.write_text('index-url = "https://other"\n')
    assert sources({**environ, "UV_CONFIG_FILE": str(other)}).indexes == ("https://other",)


def test_who_has_no_home_directory_has_the_other_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user of a container who is in no list of users."""

    def nobody(_: int) -> NoReturn:
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", nobody)
    monkeypatch.delenv("HOME", raising=False)
    assert sources({"PIP_INDEX_URL": "https://a", "UV_INDEX": "https://b"}).indexes == ("https://a", "https://b")


@pytest.mark.parametrize("text", ["index-url = [", "index = 1", 'index = ["x"]', "[[index]]\nname = 'a'"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "uv.toml"
    file.write_text(text)
    with pytest.raises(ModelError, match=rf"{file}, which says where packages come from, cannot be read"):
        sources({"PIP_CONFIG_FILE": os.devnull, "UV_CONFIG_FILE": str(file)})


def test_so_is_one_of_pip(tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text("index-url = https://a\n")
    with pytest.raises(ModelError, match=rf"{file}, which says where packages come from, cannot be read: File contains no section"):
        sources({"PIP_CONFIG_FILE": str(file), "UV_NO_CONFIG": "1"})
