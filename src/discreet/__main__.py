"""Runs the command line as `python -m discreet`, where the command `discreet` is not on the path."""

from .app.cli import main

if __name__ == "__main__":
    main()
