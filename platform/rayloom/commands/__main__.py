"""`python -m rayloom.commands` is `rayloom`."""

from rayloom.commands import main

if __name__ == "__main__":
    main()
