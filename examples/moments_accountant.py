"""The figure of Abadi et al. 2016 (arXiv:1607.00133, Figure 2): one training of a network, priced by strong
composition, by their moments accountant, and by the privacy loss distribution.

Run: python examples/moments_accountant.py [picture.png]
"""

import math
import sys

from discreet import accounting as acc

RATE, NOISE, DELTA = 0.01, 4.0, 1e-5


def strong_composition(rate: float, noise_multiplier: float, steps: int, delta: float) -> float:
    """Return the epsilon of their strong-composition line, which is for the figure only and not a valid
    bound: to charge, use the `advanced` accountant.

    One Gaussian step is (x, d)-DP with x = sqrt(2 ln(1.25 / d)) / noise_multiplier, where d is `step_delta`.
    A step on a sample is taken as (rate x, rate d)-DP, which for x is right only if x is small. Half of
    `delta` is spent on the d of all steps, half on the composition theorem, in which step_epsilon^2 stands
    for step_epsilon (exp(step_epsilon) - 1).
    """
    step_delta = delta / (2 * steps * rate)
    step_epsilon = rate * math.sqrt(2 * math.log(1.25 / step_delta)) / noise_multiplier
    return math.sqrt(2 * steps * math.log(2 / delta)) * step_epsilon + steps * step_epsilon * step_epsilon


if __name__ == "__main__":
    epochs = (1, 2, 5, 10, 20, 50, 100, 200, 400)
    counts = [round(epoch / RATE) for epoch in epochs]
    step = acc.Gaussian(noise_multiplier=NOISE).sampled(RATE)
    curves = {
        "strong composition": [strong_composition(RATE, NOISE, n, DELTA) for n in counts],
        "moments accountant (2016)": [acc.moments.epsilon(RATE, NOISE, n, DELTA) for n in counts],
        "privacy loss distribution": [acc.epsilon(step.repeated(n), delta=DELTA) for n in counts],
    }
    print(f"epsilon at delta {DELTA:g}, rate {RATE:g}, noise {NOISE:g}\n")
    print(f"{'epochs':26}" + "".join(f"{epoch:8}" for epoch in epochs))
    for name, curve in curves.items():
        print(f"{name:26}" + "".join(f"{epsilon:8.3f}" for epsilon in curve))
    if sys.argv[-1].endswith(".png"):
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(8, 4.8), layout="constrained")
        for name, curve in curves.items():
            axes.plot(epochs, curve, "o-", lw=2, label=name)
        axes.set(xlabel="epochs", ylabel=f"epsilon at delta {DELTA:g}", xlim=(0, 400), ylim=(0, None))
        axes.legend(frameon=False)
        figure.savefig(sys.argv[-1], dpi=150)
