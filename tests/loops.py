"""Many small cases in one test: as tests of their own, each costs more than what it checks (about 4 ms)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def for_each(
    names: str | Sequence[str], cases: Iterable[Any], ids: Iterable[str] | Callable[[Any], str] | None = None
) -> Any:
    """Call a test in a loop, with each case as its argument, or with several names as its arguments. A case that
    fails is named by a note, which pytest shows below the traceback.

    As `pytest.mark.parametrize`, for cases that are quick and need no fixture of their own.
    """
    keys = [part.strip() for part in names.split(",")] if isinstance(names, str) else list(names)
    values = [(case,) if len(keys) == 1 else tuple(case) for case in cases]
    if ids is None or callable(ids):
        text = ids or str
        shown = ["-".join(text(part) for part in case) for case in values]
    else:
        shown = list(ids)
    assert values
    assert len(values) == len(shown)

    def decorator(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def looped(**fixtures: Any) -> None:
            for name, case in zip(shown, values, strict=True):
                try:
                    test(**fixtures, **dict(zip(keys, case, strict=True)))
                except BaseException as error:
                    error.add_note(f"in the case {name}")
                    raise

        signature = inspect.signature(test)
        left = [p for key, p in signature.parameters.items() if key not in keys]
        looped.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return looped

    return decorator
