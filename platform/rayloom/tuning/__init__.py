"""Sweeps: many trainings of one pipeline file, with other settings each, to find the best."""
