"""The privacy loss accountant against dp-accounting and prv-accountant, in one process: time at equal
tolerance, and at their defaults.

Each rival runs at its default mesh, and again at the coarsest mesh whose upper bound is within 1e-4 of the
truth (found by making it finer fourfold; given up, and counted with the last time, once a run takes longer
than PATIENCE). Our time is for both ends of the interval, theirs for an upper bound.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from discreet import accounting as acc
from discreet.accounting import pld

TOLERANCE = 1e-4
PATIENCE = 4.0
SLOWEST, LARGEST_MB = 2.0, 1024
GRID = [  # rate, noise multiplier, steps, delta
    (256 / 60_000, 1.1, 14_063, 1e-5),
    (0.01, 4.0, 10_000, 1e-5),
    (0.1, 2.0, 500, 1e-6),
    (0.001, 0.7, 20_000, 1e-7),
    (0.5, 20.0, 1_000, 1e-6),
    (0.02, 0.5, 200, 1e-5),
    (0.001, 1.0, 1_000, 1e-8),
    (0.3, 5.0, 50, 1e-4),
]
EXTREMES = [
    (1e-6, 0.3, 10**7, 1e-5),
    (1e-4, 5.0, 10**7, 1e-9),
    (0.01, 30.0, 10**7, 1e-15),
    (0.5, 1.0, 1_000, 1e-12),
    (1e-3, 10.0, 1, 1e-5),
]


def seconds(run: Callable[[], Any], repeats: int = 5) -> tuple[float, Any]:
    """Median CPU time after one warm-up (none if the first run is slow), and the result."""
    start = time.process_time()
    value = run()
    first = time.process_time() - start
    if first > 0.5:
        return first, value
    times = []
    for _ in range(repeats):
        start = time.process_time()
        value = run()
        times.append(time.process_time() - start)
    return statistics.median(times), value


def line(name: str, text: str, target: str, ok: bool) -> bool:
    print(f"accounting.{name:<34} {text:<78} target {target:<9} {'ok' if ok else 'MISSED'}", flush=True)
    return ok


def run_of(rate: float, noise: float, steps: int) -> acc.Event:
    return acc.Gaussian(noise_multiplier=noise).sampled(rate).repeated(steps)


def google(rate: float, noise: float, steps: int, delta: float, mesh: float) -> float:
    from dp_accounting import dp_event
    from dp_accounting.pld import pld_privacy_accountant

    accountant = pld_privacy_accountant.PLDAccountant(value_discretization_interval=mesh)
    accountant.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)), steps)
    return float(accountant.get_epsilon(delta))


def microsoft(rate: float, noise: float, steps: int, delta: float, error: float) -> float:
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    mechanism = PoissonSubsampledGaussianMechanism(noise_multiplier=noise, sampling_probability=rate)
    accountant = PRVAccountant(
        prvs=[mechanism], max_self_compositions=[steps], eps_error=error, delta_error=delta * 1e-3
    )
    return float(accountant.compute_epsilon(delta=delta, num_self_compositions=[steps])[2])


def coarsest(rival: Callable[[float], float], mesh: float, goal: float) -> tuple[float, bool]:
    """Time at the coarsest mesh with a value of at most `goal`; whether it was reached at all."""
    spent = 0.0
    while True:
        try:
            spent, value = seconds(lambda: rival(mesh), repeats=1)  # noqa: B023
        except (MemoryError, RuntimeError, ValueError):
            return max(spent, PATIENCE), False
        if value <= goal:
            return spent, True
        if spent > PATIENCE:
            return spent, False
        mesh /= 4


def against(name: str, rival: Callable[..., float], default: float, factor: float) -> bool:
    plain, fitted, unreached = [], [], 0
    for rate, noise, steps, delta in GRID:
        event = run_of(rate, noise, steps)
        ours, (low, high) = seconds(lambda: pld.bounds(event, delta))  # noqa: B023
        bound = lambda mesh: rival(rate, noise, steps, delta, mesh)  # noqa: B023, E731
        theirs, value = seconds(lambda: bound(default), repeats=1)  # noqa: B023
        equal, reached = coarsest(bound, max(default, 0.01 * high), low * (1 + TOLERANCE))
        unreached += not reached
        plain.append(theirs / ours)
        fitted.append(equal / ours)
        print(
            f"  rate {rate:<9.4g} noise {noise:<5g} steps {steps:<7d} delta {delta:<7g} ours "
            f"[{low:.6f}, {high:.6f}] {ours * 1e3:7.1f} ms   "
            f"{name} default {value:10.6f} {theirs * 1e3:8.1f} ms   equal tolerance "
            f"{'' if reached else '>'}{equal * 1e3:8.1f} ms",
            flush=True,
        )
    a, b = statistics.median(plain), statistics.median(fitted)
    text = f"{a:.0f}x faster than {name} at its default mesh, {b:.0f}x at equal tolerance"
    text += f" ({unreached} of {len(GRID)} not reached)" if unreached else ""
    return line(f"pld_epsilon_vs_{name}", text, f">= {factor:g}x", min(a, b) >= factor)


def calibration() -> bool:
    from dp_accounting import dp_event, mechanism_calibration
    from dp_accounting.pld import pld_privacy_accountant

    rate, steps, delta = 256 / 60_000, 14_063, 1e-5
    ours, noise = seconds(
        lambda: acc.calibrate(lambda s: run_of(rate, s, steps), epsilon=1.0, delta=delta), repeats=3
    )

    def rival() -> float:
        return float(
            mechanism_calibration.calibrate_dp_mechanism(
                pld_privacy_accountant.PLDAccountant,
                lambda s: dp_event.SelfComposedDpEvent(
                    dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(s)), steps
                ),
                1.0,
                delta,
                mechanism_calibration.LowerEndpointAndGuess(0.1, 1.0),
                tol=1e-4,
            )
        )

    theirs, other = seconds(rival, repeats=1)
    text = (
        f"ours {noise:.5f} in {ours * 1e3:.0f} ms, dp_accounting {other:.5f} in {theirs * 1e3:.0f} ms: "
        f"{theirs / ours:.0f}x faster"
    )
    return line("pld_calibrate", text, ">= 10x", theirs / ours >= 10)


def both_ends() -> bool:
    """What the lower end costs beside the upper one."""
    ratios = []
    for rate, noise, steps, delta in GRID:
        event = run_of(rate, noise, steps)
        upper, _ = seconds(lambda: pld.epsilon(event, delta))  # noqa: B023
        both, (low, high) = seconds(lambda: pld.bounds(event, delta))  # noqa: B023
        ratios.append(both / upper)
        print(
            f"  rate {rate:<9.4g} noise {noise:<5g} steps {steps:<7d} delta {delta:<7g} upper end "
            f"{upper * 1e3:.1f} ms, both ends {both * 1e3:.1f} ms: [{low:.6f}, {high:.6f}]",
            flush=True,
        )
    middle = statistics.median(ratios)
    return line("pld_both_ends", f"{middle:.2f}x the time of the upper end alone", "<= 2x", middle <= 2)


def limits() -> bool:
    slowest = 0.0
    for rate, noise, steps, delta in EXTREMES:
        spent, high = seconds(lambda: pld.epsilon(run_of(rate, noise, steps), delta), repeats=1)  # noqa: B023
        slowest = max(slowest, spent)
        print(
            f"  rate {rate:<9.4g} noise {noise:<5g} steps {steps:<9d} delta {delta:<7g} epsilon "
            f"{high:.6g} in {spent * 1e3:.0f} ms"
        )
    schedule = acc.compose([run_of(0.01, 1 + i / 50, 100) for i in range(100)])
    spent, _ = seconds(lambda: pld.epsilon(schedule, 1e-6), repeats=1)
    slowest = max(slowest, spent)
    print(f"  a schedule of 100 different noises, 100 steps each, in {spent * 1e3:.0f} ms")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    fast = line("pld_slowest", f"{slowest:.2f} s", f"<= {SLOWEST:g} s", slowest <= SLOWEST)
    return (
        line("pld_memory", f"{memory:.0f} MB at most so far", f"<= {LARGEST_MB} MB", memory <= LARGEST_MB)
        and fast
    )


def main() -> int:
    good = [both_ends(), limits()]
    try:
        import dp_accounting  # noqa: F401
        import prv_accountant  # noqa: F401
    except ImportError:
        print("accounting: rivals are not installed (make peers); nothing to compare with")
        return 1 - int(all(good))
    good.append(against("dp_accounting", google, 1e-4, 3))
    good.append(against("prv_accountant", microsoft, 0.1, 10))
    good.append(calibration())
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
