"""A survey of people who trust nobody: plan it, collect it, estimate it, and see what trust would have saved.

Run: python examples/local_survey.py
"""

import numpy as np

from discreet import BudgetExceeded, accounting, local, sampling

ANSWERS = ["never", "once", "a few times", "often", "every day"]
PEOPLE, EPSILON = 20_000, 1
random, entropy = np.random.default_rng(0), sampling.Entropy()
truth = random.choice(len(ANSWERS), PEOPLE, p=[0.55, 0.2, 0.12, 0.08, 0.05])
shares = np.bincount(truth, minlength=len(ANSWERS)) / PEOPLE

# Before anybody is asked: which way of asking is best, and how far off will it be?
for offer in local.predictions(epsilon=EPSILON, domain=len(ANSWERS), people=PEOPLE)[:3]:
    print(
        f"{type(offer.oracle).__name__:16} standard error {offer.mean_squared_error**0.5:.4f}, "
        f"{offer.bits} bits"
    )
oracle = local.best(epsilon=EPSILON, domain=len(ANSWERS), people=PEOPLE)

# On every device: one report, exact in integers, private before it leaves. Here all at once.
reports = oracle.respond(truth, entropy=entropy)

# At the collector: unbiased estimates with their error, then shares that add up to one.
release = oracle.estimate(reports)
fixed, likely = local.consistent(release.value), local.expectation_maximization(oracle, reports)
print(
    f"\n{'answer':12} {'truth':>7} {'estimate':>9} {'consistent':>11} {'likeliest':>10}   (all "
    f"within {release.error(0.95):.3f})"
)
for i, answer in enumerate(ANSWERS):
    print(f"{answer:12} {shares[i]:7.3f} {release.value[i]:9.3f} {fixed[i]:11.3f} {likely[i]:10.3f}")

# A device keeps its own budget: a question that is asked again gets the same answer, and too much is refused.
device = local.ClientBudget(epsilon=EPSILON)
first = device.answer("how often?", oracle, 3, entropy=entropy)
same = first == device.answer("how often?", oracle, 3, entropy=entropy)
try:
    device.answer("with whom?", oracle, 1, entropy=entropy)
except BudgetExceeded as refusal:
    print(
        f"\nasked again: {'the same answer, free' if same else 'another answer'}; another question: {refusal}"
    )

# A shuffler in between hides who sent what: the same reports cost each sender far less towards those who see
# only its output.
shuffler = local.Shuffler(oracle, least=PEOPLE)
shuffler.add(reports)
event = shuffler.flush(entropy=entropy).event
print(
    f"\nshuffled, the same reports cost epsilon = {accounting.epsilon(event, delta=1e-6):.3f} at "
    f"delta = 1e-6 instead of {EPSILON}"
)

# A mean of numbers, and the same count by a trusted curator.
ages = random.normal(45, 15, PEOPLE).clip(18, 90)
mean = local.HybridMean(epsilon=EPSILON, low=18, high=90)
told = mean.estimate(mean.respond(ages, entropy=entropy))
print(f"mean age {told.value:.1f} +- {told.error(0.95):.1f}, truth {ages.mean():.1f}")
central = sampling.discrete_laplace(1 / EPSILON, 1000, entropy)
local_error = PEOPLE * oracle.mean_squared_error(PEOPLE) ** 0.5
print(
    f"error of one count, in people: {local_error:.0f} locally, "
    f"{np.sqrt((central.astype(float) ** 2).mean()):.1f} with a trusted curator"
)
