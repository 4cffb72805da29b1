"""diffprivlib's logistic regression, run by the Python that `DISCREET_DIFFPRIVLIB_PYTHON` names.

`_tabular_rival.py given.npz out.npz`: arrays x, y, x_test, y_test, epsilons, norm, repeats; out has the
accuracy for each epsilon, and the CPU seconds of each fit.
"""

import sys
import time
import warnings

import numpy as np
from diffprivlib.models import LogisticRegression


def main() -> None:
    warnings.simplefilter("ignore")
    given = np.load(sys.argv[1])
    accuracies, seconds = [], []
    for epsilon in given["epsilons"]:
        for _ in range(int(given["repeats"])):
            model = LogisticRegression(epsilon=float(epsilon), data_norm=float(given["norm"]), max_iter=1000)
            start = time.process_time()
            model.fit(given["x"], given["y"])
            seconds.append(time.process_time() - start)
        accuracies.append(model.score(given["x_test"], given["y_test"]))
    np.savez(sys.argv[2], accuracies=np.array(accuracies), seconds=np.array(seconds))


if __name__ == "__main__":
    main()
