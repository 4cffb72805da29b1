"""Checks, before the charge, that a checkpoint fits on the disk."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from .._errors import InvalidInput


def check_disk_space(checkpoint: Path, trainer: Any) -> None:
    """Write a file about as large as a checkpoint of `trainer`, and remove it, so that a full disk is noticed
    before the charge.

    Nothing is checked where the folder does not exist, which `segments.train` refuses, or where a checkpoint
    exists already.
    """
    parameters = getattr(getattr(trainer, "model", None), "parameters", None)
    count = sum(int(p.numel()) for p in parameters()) if callable(parameters) else 0
    # Four floats of 4 bytes per parameter: the weight, two moments of an optimizer and an average. Half a
    # megabyte for everything else: an estimate, not measured.
    size = 16 * count + (1 << 19)
    if not checkpoint.parent.is_dir() or checkpoint.exists():
        return
    trial = checkpoint.with_name(checkpoint.name + ".trial")
    try:
        with trial.open("xb") as file:
            for start in range(0, size, 1 << 20):
                file.write(bytes(min(1 << 20, size - start)))
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise InvalidInput(
            f"{trial} exists already, and a trial file is written there. Nothing was charged or trained. "
            f"Remove it."
        ) from None
    except ValueError as error:
        # A NUL in the path.
        raise InvalidInput(
            f"a checkpoint cannot be written at {str(checkpoint)!r} ({error}). Nothing was charged or "
            f"trained."
        ) from None
    except OSError as error:
        # A name that is too long cannot be removed either.
        with suppress(OSError):
            trial.unlink(missing_ok=True)
        raise InvalidInput(
            f"a checkpoint of about {size / 1e6:.1f} MB cannot be written at {checkpoint} "
            f"({error.strerror}). Nothing was charged or trained."
        ) from None
    trial.unlink()
