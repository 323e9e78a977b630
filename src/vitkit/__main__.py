"""`python -m vitkit` is the `vitkit` command."""

from vitkit.cli.entry import main

if __name__ == "__main__":
    raise SystemExit(main())
