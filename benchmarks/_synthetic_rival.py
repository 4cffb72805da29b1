"""MST of private-pgm, for `synthetic.py`: run as a script by a Python that has jax, networkx and pandas.

Arguments: a checkout of the authors' repository, a file of codes (npz: `codes`, `sizes`), epsilon, delta, how
many runs, where to write (npz). The mechanism is theirs, mechanisms/mst.py, with the mbi of the same checkout
(the mbi 2.0 on the package index has no longer the interface which that file calls); nothing of it is
changed, and nothing of it is here.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]


def main() -> None:
    checkout, path, epsilon, delta, runs, target = sys.argv[1:7]
    sys.path[:0] = [str(Path(checkout) / "src"), str(Path(checkout) / "mechanisms")]
    from mbi import Dataset, Domain  # type: ignore[import-not-found]
    from mst import MST  # type: ignore[import-not-found]

    arrays = np.load(path)
    results: dict[str, Any] = {}
    names = [f"c{i}" for i in range(len(arrays["sizes"]))]
    domain = Domain(names, [int(n) for n in arrays["sizes"]])
    for i in range(int(runs)):
        # Its noise, its choices and its rows come from numpy's global generator.
        np.random.seed(i)  # noqa: NPY002
        data = Dataset(pd.DataFrame(arrays["codes"], columns=names), domain)
        start = time.process_time()
        copy = MST(data, float(epsilon), float(delta))
        results[f"seconds{i}"] = np.array(time.process_time() - start)
        results[f"run{i}"] = copy.df[names].to_numpy(np.int64)
        print(f"mst.py run {i}: {results[f'seconds{i}']:.1f} CPU-s", flush=True)
    np.savez(target, **results)


if __name__ == "__main__":
    main()
