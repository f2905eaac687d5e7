"""Rayloom: raw records to a served model on one Ray cluster.

Importing the package imports nothing heavy: each module names what it needs, and the order in which modules may import
each other is held by `tests/test_architecture.py`.
"""
