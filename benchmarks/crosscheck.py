"""Hundreds of random events, priced by us and by the rivals: is anybody's certified upper bound below
somebody else's certified lower bound?

A contradiction is a bug in one of the two; each is printed with both numbers. Rivals: dp-accounting's PLD
(pessimistic, so an upper bound) and RDP (upper), prv-accountant (an interval), autodp's RDP of subsampled
Gaussians (upper). Ours: `acc.bounds`.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable

from discreet import accounting as acc

EVENTS, OTHERS = 240, 200
SEED = 20261115
SLACK = 1e-9

Case = tuple[str, acc.Event, float, object]


def cases() -> list[Case]:
    """Random single-kind and mixed compositions, as ours and as dp-accounting's events."""
    import dp_accounting as dpa

    draw = random.Random(SEED)
    found: list[Case] = []
    for _ in range(EVENTS):
        delta = 10 ** -draw.uniform(3, 9)
        kind = draw.choice(["dpsgd", "gaussian", "laplace", "mixed"])
        noise, rate = round(math.exp(draw.uniform(-0.5, 2.5)), 4), round(10 ** -draw.uniform(0.5, 3.5), 6)
        steps = int(10 ** draw.uniform(0, 3.5))
        sampled = acc.Gaussian(noise_multiplier=noise).sampled(rate).repeated(steps)
        theirs = dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(noise)), steps)
        if kind == "dpsgd":
            found.append((f"dpsgd q={rate} s={noise} n={steps}", sampled, delta, theirs))
        elif kind == "gaussian":
            times = 1 + steps // 50
            event = acc.Gaussian(noise_multiplier=4 * noise).repeated(times)
            found.append(
                (
                    f"gaussian s={4 * noise} n={times}",
                    event,
                    delta,
                    dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(4 * noise), times),
                )
            )
        elif kind == "laplace":
            times = 1 + steps // 50
            event = acc.Laplace(noise_multiplier=10 * noise).repeated(times)
            found.append(
                (
                    f"laplace b={10 * noise} n={times}",
                    event,
                    delta,
                    dpa.SelfComposedDpEvent(dpa.LaplaceDpEvent(10 * noise), times),
                )
            )
        else:
            both = acc.compose(
                [sampled, acc.Laplace(noise_multiplier=5 * noise), acc.Gaussian(noise_multiplier=3 * noise)]
            )
            composed = dpa.ComposedDpEvent(
                [theirs, dpa.LaplaceDpEvent(5 * noise), dpa.GaussianDpEvent(3 * noise)]
            )
            found.append((f"mixed q={rate} s={noise} n={steps}", both, delta, composed))
    return found


def other_cases() -> list[Case]:
    """Events of which only one of the rival's accountants has a price: discrete noise, fixed-size and
    truncated samples, tuning, rho."""
    from dp_accounting import dp_event as dpa

    draw = random.Random(SEED + 1)
    found: list[Case] = []
    for _ in range(OTHERS):
        delta = 10 ** -draw.uniform(3, 8)
        noise, times = round(math.exp(draw.uniform(0, 2)), 3), int(10 ** draw.uniform(0, 2))
        size, sample = 1000, draw.randrange(5, 200)
        trials, rho, shift = draw.uniform(1.5, 20), round(10 ** -draw.uniform(1, 4), 6), draw.randrange(1, 5)
        replaced = acc.Gaussian(noise_multiplier=noise, neighbors="replace")
        zeroed = acc.Gaussian(noise_multiplier=noise, neighbors="zero_out")
        limit = min(size, sample + int(10 * math.sqrt(sample)))
        kinds: dict[str, tuple[acc.Event, object]] = {
            f"discrete-laplace a={1 / noise:.4f} s={shift} n={times}": (
                acc.DiscreteLaplace(scale=noise, sensitivity=shift),
                dpa.DiscreteLaplaceDpEvent(1 / noise, shift),
            ),
            f"fixed-size m={sample} s={noise} n={times}": (
                acc.SampledWithoutReplacement(event=replaced, size=size, sample=sample),
                dpa.SampledWithoutReplacementDpEvent(size, sample, dpa.GaussianDpEvent(noise)),
            ),
            f"truncated m={sample} s={noise} n={times}": (
                acc.TruncatedPoisson(event=zeroed, rate=sample / size, size=size, limit=limit),
                dpa.TruncatedSubsampledGaussianDpEvent(size, sample / size, limit, noise),
            ),
            f"tuning mean={trials:.2f} rho={rho} n={times}": (
                acc.RepeatAndSelect(event=acc.ZCDP(rho=rho), trials=acc.geometric(1 / trials)),
                dpa.RepeatAndSelectDpEvent(dpa.ZCDpEvent(rho), trials, 1),
            ),
            f"zcdp rho={rho} n={times}": (acc.ZCDP(rho=rho), dpa.ZCDpEvent(rho)),
        }
        name = draw.choice(list(kinds))
        ours, theirs = kinds[name]
        found.append((name, ours.repeated(times), delta, dpa.SelfComposedDpEvent(theirs, times)))
    return found


def their_price(name: str, event: object, delta: float) -> tuple[str, float]:
    """By the rival's accountant that has one, under the relation of the event."""
    import dp_accounting as dpa
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    relations = dpa.NeighboringRelation
    kind = name.split()[0]
    if kind == "discrete-laplace":
        return "dp-accounting pld", PLDAccountant(value_discretization_interval=1e-3).compose(
            event
        ).get_epsilon(delta)
    if kind == "truncated":
        priced = PLDAccountant(relations.REPLACE_SPECIAL, value_discretization_interval=1e-3)
        return "dp-accounting pld", priced.compose(event).get_epsilon(delta)
    relation = relations.REPLACE_ONE if kind == "fixed-size" else relations.ADD_OR_REMOVE_ONE
    return "dp-accounting rdp", RdpAccountant(neighboring_relation=relation).compose(event).get_epsilon(delta)


def their_upper(event: object, delta: float) -> dict[str, float]:
    """dp-accounting's upper bounds."""
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    pld, rdp = PLDAccountant(value_discretization_interval=1e-3), RdpAccountant()
    return {
        name: a.compose(event).get_epsilon(delta)
        for name, a in (("dp-accounting pld", pld), ("dp-accounting rdp", rdp))
    }


def prv_interval(text: str, delta: float) -> tuple[float, float] | None:
    from prv_accountant import PRVAccountant
    from prv_accountant.privacy_random_variables import PoissonSubsampledGaussianMechanism

    rate, noise, steps = (float(part.split("=")[1]) for part in text.split()[1:])
    prv = PoissonSubsampledGaussianMechanism(noise_multiplier=noise, sampling_probability=rate)
    try:
        accountant = PRVAccountant(
            prvs=prv, max_self_compositions=int(steps), eps_error=0.05, delta_error=delta / 1000
        )
        low, _, high = accountant.compute_epsilon(delta=delta, num_self_compositions=int(steps))
    except (RuntimeError, ValueError, MemoryError, OverflowError):
        return None
    return low, high


def autodp_upper(text: str, delta: float) -> float:
    from autodp.autodp_core import Mechanism  # noqa: F401 - tells whether it is installed
    from autodp.mechanism_zoo import GaussianMechanism
    from autodp.transformer_zoo import AmplificationBySampling, Composition

    rate, noise, steps = (float(part.split("=")[1]) for part in text.split()[1:])
    base = AmplificationBySampling(PoissonSampling=True)(
        GaussianMechanism(noise), rate, improved_bound_flag=True
    )
    return float(Composition()([base], [int(steps)]).get_approxDP(delta))


def contradictions(
    name: str, ours: tuple[float, float], upper: float | None, lower: float | None, rival: str
) -> list[str]:
    found = []
    if upper is not None and upper < ours[0] * (1 - SLACK) - SLACK:
        found.append(f"{name}: {rival} claims at most {upper:.8g}, ours proves at least {ours[0]:.8g}")
    if lower is not None and lower > ours[1] * (1 + SLACK) + SLACK:
        found.append(f"{name}: {rival} claims at least {lower:.8g}, ours proves at most {ours[1]:.8g}")
    return found


def attempt(run: Callable[[], float]) -> float | None:
    try:
        value = run()
    except Exception:  # a rival that is not installed, or fails on a case, has nothing to compare
        return None
    return value if math.isfinite(value) else None


def main() -> int:
    problems: list[str] = []
    unpriced: dict[str, str] = {}
    compared = {"dp-accounting pld": 0, "dp-accounting rdp": 0, "prv-accountant": 0, "autodp": 0}
    for i, (name, event, delta, theirs) in enumerate(cases()):
        ours = acc.bounds(event, delta=delta)
        for rival, upper in their_upper(theirs, delta).items():
            compared[rival] += 1
            problems += contradictions(name, ours, upper, None, rival)
        if name.startswith("dpsgd") and i % 3 == 0:
            interval = prv_interval(name, delta)
            if interval is not None:
                compared["prv-accountant"] += 1
                problems += contradictions(name, ours, interval[1], interval[0], "prv-accountant")
        if name.startswith("dpsgd"):
            upper = attempt(lambda name=name, delta=delta: autodp_upper(name, delta))
            if upper is not None:
                compared["autodp"] += 1
                problems += contradictions(name, ours, upper, None, "autodp")
    for name, event, delta, theirs in other_cases():
        try:
            rival, upper = their_price(name, theirs, delta)
        except Exception as refused:  # nothing to compare, but it should be seen
            unpriced[name.split()[0]] = f"{type(refused).__name__}: {refused}"
            continue
        compared[rival] += 1
        problems += contradictions(name, acc.bounds(event, delta=delta), upper, None, rival)
    for kind, why in unpriced.items():
        print(f"crosscheck: {kind} has no price there: {why[:120]}")
    for rival, count in compared.items():
        print(f"crosscheck.{rival:<20} {count:>4} events compared")
    for line in problems:
        print(f"CONTRADICTION {line}")
    print(f"crosscheck: {len(problems)} contradictions   target 0   {'ok' if not problems else 'MISSED'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
