"""Rayloom: raw records to a served model on one Ray cluster.

Importing the package imports nothing heavy: each module names what it needs, and the order in which modules may import
each other is held by `tests/test_architecture.py`.
"""

import gc

# Every process of a job imports a million objects, and Python would look for garbage among the newest of them after each 700:
# a fifth of the seconds in which Ray Train and torch are imported, and they are most of a start.
gc.set_threshold(10_000)
