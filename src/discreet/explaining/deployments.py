"""Published deployments of differential privacy, to set an epsilon beside. Each figure has its source.

Epsilons of different units and periods do not compare number by number: one per user and day adds up over the
days, one for a whole release does not.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deployment:
    """One published guarantee. `unit` is what the epsilon is for; `local` says that no curator is trusted."""

    who: str
    what: str
    epsilon: float
    delta: float | None
    unit: str
    source: str
    url: str
    local: bool = False

    @property
    def price(self) -> str:
        more = "" if self.delta is None else f", delta {self.delta:g}"
        return f"epsilon {self.epsilon:g}{more}"


_LIST = "Desfontaines, A list of real-world uses of differential privacy"
_APPLE = f"Apple, Differential Privacy Overview; read as user-days by {_LIST}"
_APPLE_URL = "https://desfontain.es/blog/real-world-differential-privacy.html"
_CENSUS = "Census Bureau Sets Key Parameters to Protect Privacy in 2020 Census Results, 9 June 2021"
_CENSUS_URL = "https://www.census.gov/newsroom/press-releases/2021/2020-census-key-parameters.html"

_GBOARD = "Google Research, Advances in private training for production on-device language models, 2024"
_GBOARD_URL = (
    "https://research.google/blog/advances-in-private-training-for-production-on-device-language-models/"
)

DEPLOYMENTS = (
    Deployment(
        "U.S. Census Bureau", "2020 census, redistricting data, persons", 17.14, None,
        "a person, the whole file", _CENSUS, _CENSUS_URL,
    ),
    Deployment(
        "U.S. Census Bureau", "2020 census, redistricting data, housing units", 2.47, None,
        "a housing unit, the whole file", _CENSUS, _CENSUS_URL,
    ),
    Deployment("Apple", "QuickType: new words", 16, None, "a user and day", _APPLE, _APPLE_URL, local=True),
    Deployment("Apple", "popular emojis", 4, None, "a user and day", _APPLE, _APPLE_URL, local=True),
    Deployment("Apple", "health types in use", 2, None, "a user and day", _APPLE, _APPLE_URL, local=True),
    Deployment(
        "Apple", "Safari: domains that crash or drain energy", 8, None, "a user and day", _APPLE, _APPLE_URL,
        local=True,
    ),
    Deployment(
        "Google", "COVID-19 vaccination search insights", 2.19, 1e-5, "a user and day",
        "arXiv:2107.01179, abstract", "https://arxiv.org/abs/2107.01179",
    ),
    Deployment(
        "Google", "COVID-19 search trends symptoms", 1.68, None, "a user and day",
        "arXiv:2009.01265, abstract", "https://arxiv.org/abs/2009.01265",
    ),
    Deployment(
        "Google", "Gboard language models, the strongest of over 30", 0.994, 1e-10, "a user, one model",
        _GBOARD, _GBOARD_URL,
    ),
    Deployment(
        "Google", "Gboard language models, the weakest of over 30", 13.69, 1e-10, "a user, one model",
        _GBOARD, _GBOARD_URL,
    ),
    Deployment(
        "LinkedIn", "Audience Engagements API", 34.9, 7e-9, "a member, one analyst and month",
        "Rogers et al. 2020, arXiv:2002.05839", "https://arxiv.org/abs/2002.05839",
    ),
    Deployment(
        "Facebook", "Full URLs data set, for 96.6% of users", 1.453, 1e-5, "a user, all kinds of action",
        _LIST, _APPLE_URL,
    ),
)  # fmt: skip


def beside(epsilon: float) -> tuple[tuple[Deployment, ...], tuple[Deployment, ...]]:
    """Return the published deployments with a smaller epsilon, and those with this or a larger one, each in
    order."""
    ordered = sorted(DEPLOYMENTS, key=lambda one: one.epsilon)
    return (
        tuple(one for one in ordered if one.epsilon < epsilon),
        tuple(one for one in ordered if one.epsilon >= epsilon),
    )
