"""Batches: requests in a file, computed when nothing else is to be done, each once as far as anybody can see. Nothing of HTTP.

::

    whoever asks --> Desk (one thread) --> Store (SQLite) and Folder (files)
                       ^
    Runner (the event loop) --> compute, which is given

A line's seed, its id and its time are fixed before it is computed. So a line that is computed twice, because a process was killed before
the first answer was on the disk, gives the same bytes twice, and which of them are kept is nobody's concern.
"""
