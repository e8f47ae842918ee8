"""Unix sockets that are taken, left behind or in use; sockets from whoever started the process."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from quintet.listen import sockets
from quintet.listen.sockets import Listener, ListenError, inherited, listen, listen_unix


def test_a_unix_socket_is_its_owners_alone_unless_said_otherwise_and_goes_with_the_server(tmp_path: Path) -> None:
    for mode in (0o600, 0o660):
        path = tmp_path / f"{mode:o}.sock"
        one = Listener.owning(listen_unix(path, mode))
        assert stat.S_IMODE(path.stat().st_mode) == mode
        assert one.local
        assert sockets.url(one.sock) == "http://localhost"
        one.close()
        assert not path.exists()


def test_a_socket_that_a_killed_server_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    listen_unix(path, 0o600).close()
    assert path.exists()
    with listen_unix(path, 0o600), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_a_socket_in_use_is_left_to_its_server(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with listen_unix(path, 0o600), pytest.raises(ListenError, match="is in use by another program; choose another with --uds"):
        listen_unix(path, 0o600)
    assert path.exists()


def test_a_socket_whose_server_takes_nobody_is_in_use_and_nobody_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with contextlib.ExitStack() as used:
        stopped = used.enter_context(listen_unix(path, 0o600))
        stopped.listen(0)
        for _ in range(2):  # more than its backlog takes
            client = used.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect(str(path))
        with pytest.raises(ListenError, match="is in use by another program"):
            listen_unix(path, 0o600)


@pytest.mark.parametrize("make", [lambda path: path.write_bytes(b"mine"), Path.mkdir, lambda path: path.symlink_to("/nowhere")])
def test_what_is_no_socket_is_never_removed(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "s"
    make(path)
    with pytest.raises(ListenError, match="is no socket"):
        listen_unix(path, 0o600)
    assert os.path.lexists(path)


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ListenError, match="cannot listen on .*: No such file"):
        listen_unix(tmp_path / "no" / "s", 0o600)
    with pytest.raises(ListenError, match="cannot listen on .*too long"):
        listen_unix(tmp_path / ("s" * 120), 0o600)


def test_of_many_that_start_at_once_on_a_dead_socket_one_has_it(tmp_path: Path) -> None:
    """Each could otherwise remove what another has just made."""
    path = tmp_path / "s"
    listen_unix(path, 0o600).close()
    code = f"""
import sys
from collections.abc import Callable
from pathlib import Path
from quintet.listen.sockets import listen_unix
sys.stdin.read(1)
try:
    sock = listen_unix(Path({str(path)!r}), 0o600)
except Exception as error:
    print("no", flush=True)
else:
    print("yes", flush=True)
sys.stdin.read()
"""
    all_ = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=0)
        for _ in range(6)
    ]
    for each in all_:
        assert each.stdin
        each.stdin.write("g")
        each.stdin.flush()
    said = [each.stdout.readline().strip() for each in all_ if each.stdout]
    for each in all_:
        each.communicate(timeout=60)
    assert sorted(said) == ["no"] * 5 + ["yes"]


def test_a_file_that_is_anothers_by_now_stays(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = Listener.owning(listen_unix(path, 0o600))
    path.unlink()
    with listen_unix(path, 0o600):
        first.close()
        assert path.exists()


def test_what_is_given_to_another_process_keeps_its_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    one = Listener.owning(listen_unix(path, 0o600))
    one.give()
    one.close()
    assert path.exists()


def test_sockets_that_are_meant_for_another_process_are_not_taken() -> None:
    for environment in ({}, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}, {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "x"}):
        given = dict(environment)
        assert inherited(given, os.getpid()).listeners == ()
        assert given == {}, "nor told of to the engines"


def test_a_descriptor_that_is_no_socket_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        monkeypatch.setattr(sockets, "FIRST", file.fileno())
        with pytest.raises(ListenError, match=f"descriptor {file.fileno()}, which LISTEN_FDS tells of, is no socket"):
            inherited({"LISTEN_PID": "7", "LISTEN_FDS": "1"}, 7)


def test_a_descriptor_that_is_not_open_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        closed = file.fileno()
    monkeypatch.setattr(sockets, "FIRST", closed)
    with pytest.raises(ListenError, match=f"descriptor {closed}, which LISTEN_FDS tells of, is no socket: Bad file descriptor"):
        inherited({"LISTEN_PID": "7", "LISTEN_FDS": "1"}, 7)


def test_inherited_sockets_have_the_names_that_they_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [listen("127.0.0.1", 0) for _ in range(3)]
    first = max(one.fileno() for one in made) + 10
    for at, one in enumerate(made):
        os.dup2(one.fileno(), first + at)
    monkeypatch.setattr(sockets, "FIRST", first)
    given = inherited({"LISTEN_PID": "7", "LISTEN_FDS": "3", "LISTEN_FDNAMES": "quintet.socket:admin"}, 7)
    assert [one.name for one in given.listeners] == ["public", "admin", "public"]
    assert [one.sock.getsockname() for one in given.listeners] == [one.getsockname() for one in made]
    assert given.ready is None
    for each in (*made, *(one.sock for one in given.listeners)):
        each.close()
