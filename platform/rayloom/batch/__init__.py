"""Batch prediction without Ray: files cut into blocks (`inputs`), a block into a part (`scoring`), what is whole (`output`)."""
