"""More than one machine: several replicas of a model behind one engine boundary, placed by Ray.

::

    front            | HTTP, keys, limits, ledger, dialects, text, stops: the same code, in one process
      | Backend      |   pool: picks a replica for each request, adds and removes replicas        pool, routing, scaling
    engine           |   one per replica: requests in flight, supervision                         backends/native/front
      | wire, TCP    |   the same messages as to a worker on this machine                         remote
    worker           | its process, on the machine where Ray put it                               host, ray

Ray decides where a replica is and brings it back; what is computed never passes through it. Why: docs/decisions/0047-several-machines.md.
"""
