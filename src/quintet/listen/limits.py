"""How many connections there may be: fewer than descriptors, so that some are left for the engines, guides and files."""

from __future__ import annotations

import resource

from quintet.listen.crowd import SPARE
from quintet.listen.sockets import ListenError

KEPT = 128
"""Descriptors that no connection gets: for engines, the guides' process and a socket for each guide that is tried, logs and files."""

MOST = 8192
"""The limit where none was chosen: each connection costs about 15 kB."""

_MOST_DESCRIPTORS = 65536  # where the system allows a thousand million, some programs take it for the length of a list


def raise_descriptors() -> int:
    """Let this process and its children have as many descriptors as they may; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return _MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def most_connections(wanted: int | None, descriptors: int) -> int:
    """How many connections there may be, beside ``SPARE`` more.

    Raises:
        ListenError: there are fewer descriptors than ``wanted`` ones need, or than any need.
    """
    room = descriptors - KEPT - SPARE
    if room < 1:
        raise ListenError(f"this process may have {descriptors} open files, and needs more than {KEPT + SPARE}; see `ulimit -n`.")
    if wanted is not None and wanted > room:
        raise ListenError(
            f"--max-connections must be at most {room}, since this process may have {descriptors} open files (`ulimit -n`), got {wanted}."
        )
    return min(MOST, room) if wanted is None else wanted
