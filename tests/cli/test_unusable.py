"""What the system refuses, whatever it is, is one line and an exit code too, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.reference.tiny_model import TinySpec, write_tiny

from quintet.cli.console import ConsoleReport
from quintet.keys.file import KeyFile, KeyFileError
from quintet.keys.store import KeyStore
from quintet.models.files import human

Command = Callable[..., tuple[int, str, str]]

LONG = "n" * 300
"""A name that every file system refuses: a look at such a path fails as one without permission does, but for root too."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf", TinySpec("tiny")))


@pytest.mark.parametrize(
    "words",
    [
        *(["show", f"./{LONG}{end}"] for end in ("", "/", "/m.gguf", "/x/", "/x")),
        ["pull", f"./{LONG}/m.gguf"],
        ["run", f"./{LONG}/m.gguf", "hi"],
        ["serve", f"./{LONG}/m.gguf", "--port", "0"],
        ["serve", "TINY", "--mmproj", f"./{LONG}/m.gguf", "--port", "0"],
        ["serve", "TINY", "--draft", f"./{LONG}/m.gguf", "--port", "0"],
    ],
)
def test_a_model_that_cannot_be_reached_is_one_line(words: list[str], tiny: str, command: Command) -> None:
    code, out, err = command(*(tiny if word == "TINY" else word for word in words))
    assert (code, out) == (1, "")
    option = next((f"{word}: " for word in words if word in ("--mmproj", "--draft")), "")
    assert err.startswith(f"error: {option}cannot use {LONG}")
    assert err.endswith(": File name too long.\n") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        (["show", "GONE"], ""),
        (["serve", "GONE", "--port", "0"], ""),
        (["serve", "--port", "0", "--toy", "--moderation", "toy=GONE"], ""),
        (["config", "--lora", "a=m:GONE"], ""),
        *(
            (["config"], f"{key} = {value}")
            for key, value in [
                ("keys", "'GONE'"),
                ("mmproj", "'GONE'"),
                ("models", "['a=GONE']"),
                ("draft", "['GONE']"),
                ("lora", "['a=m:GONE']"),
            ]
        ),
    ],
)
def test_the_home_directory_of_nobody_is_one_line(
    words: list[str], settings: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, file = "~there-is-nobody-of-this-name/m.gguf", tmp_path / "quintet.toml"
    if settings:
        file.write_text(settings.replace("GONE", gone))
        words = [*words, "--config", str(file)]
    told = f"error: cannot use {gone}: there is no such home directory.\n"
    assert command(*(word.replace("GONE", gone) for word in words)) == (1, "", told)
    monkeypatch.setenv("QUINTET_CACHE", gone)
    assert command("list") == (1, "", told)
    levels = {line.split()[1]: line.split()[0] for line in command("doctor")[1].splitlines()}
    assert levels["cache"] == levels["packs"] == levels["model"] == "fail"


@pytest.mark.parametrize("words", [["list"], ["show"], ["pull"], ["run", "hi"], ["serve", "--port", "0"], ["pull", "--offline"]])
def test_a_cache_that_cannot_be_reached_is_one_line(words: list[str], command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTET_CACHE", f"/{LONG}")
    code, out, err = command(*words)
    assert (code, out) == (1, "")
    assert err.startswith(f"error: cannot use /{LONG}/")
    assert err.endswith(": File name too long.\n") and err.count("\n") == 1


def test_the_doctor_tells_of_a_cache_that_cannot_be_reached_and_goes_on(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTET_CACHE", f"/{LONG}")
    code, out, err = command("doctor", "--port", "1")
    levels = {line.split()[1]: line.split()[0] for line in out.splitlines()}
    assert (code, err) == (1, "")
    assert levels["cache"] == levels["model"] == "fail"
    assert "port" in levels


@pytest.mark.parametrize("place", ["/proc/x", "FILE/x"])
@pytest.mark.parametrize("words", [["pull"], ["run", "hi"], ["doctor", "--port", "1"]])
def test_a_cache_folder_that_cannot_be_made_is_told_as_that_with_the_variable_that_moves_it(
    words: list[str], place: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    folder = place.replace("FILE", f"{tmp_path}/file")
    monkeypatch.setenv("QUINTET_CACHE", folder)
    code, out, err = command(*words)
    assert code == 1
    assert f"the cache folder {folder} cannot be made or used: " in out + err
    assert "; set QUINTET_CACHE to a folder of yours" in out + err and "quintet pull" not in out


def test_the_doctor_leaves_nothing_in_the_cache(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTET_CACHE", f"{tmp_path}/models")
    levels = {line.split()[1]: line.split()[0] for line in command("doctor", "--port", "1")[1].splitlines()}
    assert levels["cache"] in ("ok", "warn") and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("host", ["a..b", "a" * 64, ".a", "\u3002\u3002"])
@pytest.mark.parametrize("words", [["top"], ["bench"], ["check", "--as", "openai"]])
def test_a_host_that_can_have_no_name_is_one_sentence_without_pythons_codec(words: list[str], host: str, command: Command) -> None:
    code, out, err = command(words[0], *words[1:], f"http://{host}")
    assert (code, out) == (1, "")
    assert err.startswith("error: URL must be a server's base URL such as http://127.0.0.1:8000/v1, got 'http://") and err.count("\n") == 1


def test_a_file_whose_name_has_a_newline_is_told_on_one_line(tmp_path: Path, command: Command, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a\nb.gguf"
    write_tiny(file, TinySpec("tiny"))
    _, out, _ = command("show", str(file))
    assert out.splitlines()[1].endswith(f"{tmp_path}/a\\nb.gguf, {human(file.stat().st_size)}")
    assert all(line[:13].strip() for line in out.splitlines())
    assert command("show", str(tmp_path / "c\nd.gguf"))[2].count("\n") == 1
    ConsoleReport().note("a\nb: BF16 matrices become q8")
    assert capfd.readouterr().err == "a\\nb: BF16 matrices become q8\n"


def test_a_ledger_that_cannot_be_reached_is_one_line(command: Command) -> None:
    assert command("usage", "--ledger", f"{LONG}/k") == (1, "", f"error: --ledger {LONG}/k: File name too long.\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve", "--toy", "--keys", "GONE"], "--keys GONE"),
        (["serve", "--toy", "--api-key-file", "GONE"], "--api-key-file GONE"),
        (["serve", "--toy", "--api-key-file", "KEYS", "--keys", "KEYS.db"], "--keys KEYS.db"),
        (["serve", "--toy", "--tls-cert", "GONE", "--tls-key", "KEYS"], "--tls-cert GONE"),
        (["keys", "list", "--keys", "GONE"], "--keys GONE"),
    ],
)
def test_a_file_of_keys_that_is_not_there_is_told_with_its_option(words: list[str], said: str, tmp_path: Path, command: Command) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a-key\n")
    keys.chmod(0o600)
    *words, said = (word.replace("GONE", f"{tmp_path}/gone").replace("KEYS", str(keys)) for word in (*words, said))
    code, out, err = command(*words)
    assert (code, out, err.partition(";")[0].rstrip(".\n")) == (1, "", f"error: {said}: No such file or directory")


# --- standard streams


def piped(*words: str, stdin: bytes = b"", stdout: int = subprocess.PIPE, **environment: str) -> tuple[int, bytes, bytes]:
    """Run the command as a shell does: (exit code, stdout, stderr)."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "quintet", *words]
    done = subprocess.run(command, input=stdin, stdout=stdout, stderr=subprocess.PIPE, env={**own, **environment}, timeout=120, check=False)
    return done.returncode, done.stdout or b"", done.stderr


FULL = Path("/dev/full")
full_disk = pytest.mark.skipif(not FULL.exists(), reason="the system has no disk that is always full")


@full_disk
@pytest.mark.parametrize("words", [["list"], ["config"], ["--version"], ["completion", "bash"]])
def test_a_full_disk_on_stdout_is_one_line(words: list[str], tmp_path: Path) -> None:
    with FULL.open("wb") as full:
        found = piped(*words, stdout=full.fileno(), QUINTET_CACHE=str(tmp_path))
    assert found == (1, b"", b"error: standard output: No space left on device.\n")


@full_disk
def test_a_key_that_cannot_be_shown_is_not_in_force(tmp_path: Path) -> None:
    store = tmp_path / "keys.db"
    with FULL.open("wb") as full:
        assert piped("keys", "add", "alice", "--keys", str(store), stdout=full.fileno())[0] == 1
    assert [(key.name, key.revoked is None) for key in KeyStore(store).read()] == [("alice", False)]
    assert piped("keys", "add", "alice", "--keys", str(store))[0] == 0


@pytest.mark.parametrize("way", [">&-", "> /dev/null"])
def test_a_key_that_nobody_would_read_is_not_made(way: str, tmp_path: Path) -> None:
    store = tmp_path / "keys.db"
    command = ["sh", "-c", f'exec "$@" {way}', "sh", sys.executable, "-m", "quintet", "keys", "add", "alice", "--keys", str(store)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    said = "error: a key is printed once, and standard output is closed, or is /dev/null.\n"
    assert (done.returncode, done.stderr, store.exists()) == (1, said, False)


def test_a_reader_that_has_gone_is_told_nothing(tmp_path: Path) -> None:
    theirs, ours = os.pipe()
    os.close(theirs)
    with os.fdopen(ours, "wb") as gone:
        assert piped("list", stdout=gone.fileno(), QUINTET_CACHE=str(tmp_path)) == (1, b"", b"")


def test_a_character_that_the_encoding_lacks_is_written_out(tmp_path: Path) -> None:
    code, out, err = piped("list", QUINTET_CACHE=f"{tmp_path}/\u65e5", HF_HOME=str(tmp_path), PYTHONIOENCODING="ascii", PYTHONUTF8="1")
    assert (code, err) == (0, b"") and out.startswith(b"no models in ") and b"/\\u65e5 or " in out


@pytest.mark.parametrize(
    ("words", "text"),
    [(["caf\udce9"], "the prompt"), (["x", "--stop", "a", "--stop", "\udce9"], "--stop"), (["toy", "\udce9"], "the prompt")],
)
def test_a_prompt_or_a_stop_string_of_other_bytes_than_utf_8_is_refused(words: list[str], text: str, command: Command) -> None:
    code, out, err = command("run", *words)
    assert (code, out) == (1, "") and err.startswith(f"error: {text} must be UTF-8, in a locale of UTF-8, got ") and err.count("\n") == 1


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_the_same_on_standard_input(errors: str) -> None:
    code, out, err = piped("run", "toy/", stdin=b"caf\xe9", PYTHONIOENCODING=f"utf-8:{errors}")
    assert (code, out) == (1, b"") and err.startswith(b"error: the prompt must be UTF-8, in a locale of UTF-8") and err.count(b"\n") == 1


@pytest.mark.parametrize(
    ("made", "option", "said"),
    [
        (None, "--keys", "--keys FILE: No such file or directory; make one with quintet keys add"),
        (None, "--api-key-file", "--api-key-file FILE: No such file or directory; write keys into it, one a line, and chmod 600 it"),
        (None, "--config", "--config FILE: No such file or directory."),
        (None, "--uds", "cannot listen on FILE: No such file or directory; choose another path with --uds."),
        (b"", "--keys", "--keys FILE is not a key store; make one with quintet keys add"),
        (b"", "--api-key-file", "--api-key-file FILE holds no API key; write keys into it, one a line, and chmod 600 it"),
        (b"", "--moderation", "--moderation: file: prompt is missing; it must be "),
        (b"", "--tls-cert", "--tls-cert FILE and --tls-key FILE must be a certificate and its key in PEM."),
        (b"\xff\x00", "--keys", "--keys FILE is not a key store; make one with quintet keys add"),
        (b"\xff\x00", "--config", "--config FILE must be UTF-8; the byte at offset 0 is not."),
        (b"\xff\x00", "--moderation", "--moderation: file must be UTF-8; the byte at offset 0 is not."),
    ],
)
def test_a_file_that_cannot_be_used_is_told_with_its_option_and_what_to_do(
    made: bytes | None, option: str, said: str, tmp_path: Path, command: Command
) -> None:
    file = tmp_path / "gone" / "file" if made is None else tmp_path / "file"
    if made is not None:
        file.write_bytes(made)
        file.chmod(0o600)
    value = f"toy={file}" if option == "--moderation" else str(file)
    more = ["--tls-key", str(file)] if option == "--tls-cert" else []
    port = [] if option == "--uds" else ["--port", "0"]
    code, out, err = command("serve", "--toy", *port, option, value, *more)
    assert (code, out) == (1, "") and err.startswith(f"error: {said.replace('FILE', str(file))}")


@pytest.mark.parametrize("option", ["--mmproj", "--draft"])
def test_a_file_beside_the_model_is_told_with_its_option(option: str, tmp_path: Path, command: Command) -> None:
    write_tiny(tmp_path / "tiny.gguf", TinySpec("tiny"))
    (tmp_path / "file").write_bytes(b"GGU")
    code, out, err = command("serve", f"{tmp_path}/tiny.gguf", "--port", "0", option, f"{tmp_path}/file")
    assert (code, out, err.splitlines()[-1].startswith(f"error: {option}: file: has only 3 bytes: ")) == (1, "", True), err


@pytest.mark.parametrize("read", [lambda file: KeyFile(file).read(), lambda file: KeyStore(file).read()])
def test_a_file_of_keys_that_may_not_be_read_is_told_as_that(
    read: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.touch(0o600)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read all
    with pytest.raises(KeyFileError, match="keys: Permission denied; chown it to the user who runs this"):
        read(file)
