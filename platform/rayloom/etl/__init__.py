"""Raw files to a dataset version: sources, steps, rules, splits, and the hand-off from Spark to Ray Data."""
