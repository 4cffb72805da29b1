"""Writes what stories do anew: `python -m tests.frozen [--decided] [STORY ...]`.

Layer B and messages are written; layer A only with `--decided`. README.md says when.
"""

from __future__ import annotations

import sys

from . import files
from .stage import play, text_of, written
from .stories import STORIES


def main(words: list[str]) -> int:
    decided, names = "--decided" in words, [word for word in words if word != "--decided"]
    if unknown := [name for name in names if name not in STORIES]:
        sys.stderr.write(f"no such story: {', '.join(unknown)}. There are: {', '.join(STORIES)}\n")
        return 2
    differ = 0
    for name in names or STORIES:
        plain, noisy = play(STORIES[name], noise=False), play(STORIES[name], noise=True)
        lines = files.layer_a(name, plain)
        changed = [layer for layer in ("a",) if decided and files.write(layer, name, written(plain.facts))]
        differ += bool(lines) and not decided
        noise = written(noisy.facts)
        same = files.path_of("a", name).exists() and files.path_of("a", name).read_text() == noise
        changed += [layer for layer in ("b",) if files.write(layer, name, None if same else noise)]
        texts = text_of(noisy.messages) or None
        changed += [layer for layer in ("messages",) if files.write(layer, name, texts)]
        sys.stdout.write(f"{name}: {', '.join(changed) or 'as before'}\n")
        sys.stdout.writelines(f"  layer A: {line}\n" for line in lines[:20])
    if not names and decided:
        _remove_others()
    if differ:
        sys.stdout.write(f"{differ} stories differ from layer A, which was not written: see README.md.\n")
    return int(differ > 0)


def _remove_others() -> None:
    """Remove the files of stories that are no more."""
    for layer in ("a", "b", "messages"):
        for path in (files.HERE / layer).glob("*"):
            if path.stem not in STORIES:
                path.unlink()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
