"""Tables and counts that look anonymous, and four attacks on them: homogeneity and background knowledge
against k-anonymity, two releases together, differencing, and linkage of film ratings.

Run: python examples/not_anonymous.py [picture.png]
"""

import sys

import numpy as np
import pyarrow as pa

from discreet import auditing, mechanisms
from discreet.sampling import Entropy
from discreet.tables import rand_hie

# What a neighbor knows of somebody in the first year of the RAND Health Insurance Experiment.
QUASI_IDENTIFIERS = ("age", "sex", "site", "education")
table = pa.Table.from_batches(rand_hie(year=1).batches(["person", *QUASI_IDENTIFIERS, "health"]))

# k-anonymity: ages, sites and schooling are generalized until everybody shares theirs with k - 1 others. For
# how many people does the health still follow, because everybody in their class has the same? And for how
# many does it follow for a neighbor who knows that they are not in excellent health?
classes = []
print("k-anonymous: health given away by the class alone, and to a neighbor who knows a little")
for k in (2, 5, 10, 20):
    anonymous = auditing.mondrian(table, QUASI_IDENTIFIERS, k)
    alone = auditing.homogeneity(anonymous, QUASI_IDENTIFIERS, "health").share
    informed = auditing.background_knowledge(
        anonymous, QUASI_IDENTIFIERS, "health", ruled_out=["excellent"]
    ).share
    classes.append((k, alone, informed))
    print(f"k = {k:2}  {alone:6.1%}  {informed:6.1%}")

# Composition: two releases about the same people, both 5-anonymous, and an attacker who intersects their
# classes.
columns = {"first": ("age", "sex"), "second": ("site", "education", "age")}
releases = {name: auditing.mondrian(table, those, 5) for name, those in columns.items()}
shares = {
    f"{name} alone": auditing.homogeneity(release, columns[name], "health").share
    for name, release in releases.items()
}
shares["both"] = auditing.intersection(
    releases["first"], releases["second"], person="person", sensitive="health",
    first_class=columns["first"], second_class=columns["second"],
).share  # fmt: skip
print("\ntwo 5-anonymous releases: health given away")
for name, share in shares.items():
    print(f"{name:12}  {share:6.1%}")

# Differencing: how many of 200 people are in fair or poor health, and how many without this one? The private
# counts cost epsilon 1 for all 400 questions together.
PEOPLE = 200
secret = np.isin(np.array(table["health"].to_pylist()[:PEOPLE], dtype=object), ["fair", "poor"])
random, entropy = np.random.default_rng(), Entropy()
noise = mechanisms.IntegerLaplace.for_epsilon(1 / (2 * PEOPLE))
askers = {
    "exact": lambda group: int((group & secret).sum()),
    "off by up to 1": lambda group: int((group & secret).sum()) + int(random.integers(-1, 2)),
    "private": lambda group: int(noise(np.array([(group & secret).sum()]), entropy=entropy)[0]),
}
guessed = {name: float((auditing.differencing(ask, PEOPLE) == secret).mean()) for name, ask in askers.items()}
guessed["one guess"] = float(max(secret.mean(), 1 - secret.mean()))
print("\ntwo counts per person: whose health is guessed right (one guess: 'healthy' for all)")
for name, share in guessed.items():
    print(f"{name:14}  {share:4.0%}")

# Linkage (Narayanan & Shmatikov 2008): film ratings under numbers instead of names, made up with the long
# tail of real ones. An attacker knows a few of somebody's ratings, give or take a star and a fortnight.
ratings = auditing.made_up_ratings(seed=3)
films = [(known, *auditing.linked(ratings, ratings, range(0, 400, 4), items=known)) for known in (2, 4, 6, 8)]
print(f"\nfilms known of one of {ratings.users:,} people: this person found, a wrong one found")
for known, right, wrong in films:
    print(f"{known}  {right:4.0%}  {wrong:4.0%}")

if sys.argv[-1].endswith(".png"):
    from matplotlib import pyplot

    figure, ((a, b), (c, d)) = pyplot.subplots(2, 2, figsize=(10, 7), layout="constrained")
    positions = np.arange(len(classes))
    a.bar(positions - 0.2, [x[1] for x in classes], 0.38, color="#b8c4ce", label="class alone")
    a.bar(positions + 0.2, [x[2] for x in classes], 0.38, color="#c0392b", label="to a neighbor")
    a.set_xticks(positions, [f"k = {x[0]}" for x in classes])
    b.bar(list(shares), list(shares.values()), color=["#b8c4ce", "#b8c4ce", "#c0392b"])
    c.bar(list(guessed), list(guessed.values()), color=["#c0392b", "#b8c4ce", "#0b6e99", "#1f2933"])
    d.plot([x[0] for x in films], [x[1:] for x in films], "o-", label=["person found", "wrong person found"])
    titles = ("k-anonymity: health given away", "two releases: health given away",
              "two counts per person: guessed right", "film ratings without names")  # fmt: skip
    for axis, title in zip((a, b, c, d), titles, strict=True):
        axis.set_title(title, loc="left")
        axis.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        axis.spines[["top", "right"]].set_visible(False)
    a.legend(frameon=False)
    d.legend(frameon=False)
    d.set_xlabel("films known of somebody")
    figure.savefig(sys.argv[-1], dpi=150)
