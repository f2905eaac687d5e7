"""Jobs: what `python -m jobs.NAME` and `ray job submit -- python -m jobs.NAME` run."""
