"""``python -m firesteel``: the command line, where the ``firesteel`` script is not on PATH."""

from firesteel.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
