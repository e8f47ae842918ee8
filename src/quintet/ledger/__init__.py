"""The ledger: one durable row for each request that was admitted, whatever ends before it does. Nothing of HTTP.

::

    Ledger (the event loop's side) --> Writer (a thread) --> Store (SQLite)      report (another process) --> the same file
"""
