"""Lists the methods of synthesis by their names, such as "aim"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import _require
from .._public import Public
from .._require import Real
from .aim import AIM
from .arguments import check_instance
from .baselines import MWEM
from .domain import Domain
from .marginal_trees import MST, Independent
from .privbayes import PrivBayes
from .synthesizer import Synthesizer

METHODS: dict[str, type[Synthesizer]] = {m.method: m for m in (AIM, MST, MWEM, PrivBayes, Independent)}
# With more columns than this, "auto" is MST: AIM scores all triples of columns in each round, which takes too
# long. A round number, chosen by hand and not tuned.
_MAX_AIM_COLUMNS = 40


def method_for(
    name: str, public: Public, domain: Domain, *, epsilon: Real, delta: float, **options: Any
) -> Synthesizer:
    """Return the method of this name for an epsilon and delta; "auto" is AIM, MST for very wide tables, or
    independent columns where there is only one."""
    cls = method_class(name, domain, options)
    return cls.for_privacy(public, domain, epsilon=epsilon, delta=delta, **options)


def method_class(name: str, domain: Domain, options: Mapping[str, Any]) -> type[Synthesizer]:
    """Return the class of the method of this name for a domain; options that it does not have are refused."""
    _require.one_of(("auto", *METHODS), method=name)
    check_instance(Domain, domain=domain)
    if name == "auto":
        columns = len(domain.columns)
        name = "independent" if columns == 1 else "aim" if columns <= _MAX_AIM_COLUMNS else "mst"
    cls = METHODS[name]
    # Dataclass fields include class variables, such as `method` and `error_in_scores`.
    reserved = {"public", "domain", "rho", "epsilon", "delta", "method", "error_in_scores"}
    allowed = set(getattr(cls, "__dataclass_fields__", {})) - reserved
    # The message does not name those that `Session.synthesize` takes as its own arguments.
    own = sorted(allowed - {"rows_per_unit", "constraints"})
    for option in options:
        if option not in allowed:
            raise _require.fail("an option", option, f"of {name}: {', '.join(own) or 'it has none'}")
    return cls
