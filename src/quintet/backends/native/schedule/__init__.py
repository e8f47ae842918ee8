"""Who runs in each step, over which pages, and what came of it. Pure: no clock, threads, I/O, and no compiled core."""
