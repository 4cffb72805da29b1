"""Lists published deployments of differential privacy, to compare an epsilon with. Each figure has its
source.

Epsilons of different units and periods do not compare number by number: one per user and day adds up over the
days, one for a whole release does not.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deployment:
    """Holds one published guarantee. `unit` is the unit of privacy of the epsilon; `delta` is None where the
    source states none; `local` marks local differential privacy, where no curator is trusted.

    `source` names the publication of the figure. `checked` names the second place where the figure was
    compared when this list was last reviewed (17 November 2026).
    """

    who: str
    what: str
    epsilon: float
    delta: float | None
    unit: str
    source: str
    url: str
    checked: str
    local: bool = False

    @property
    def price(self) -> str:
        delta_words = "" if self.delta is None else f", delta {self.delta:g}"
        return f"epsilon {self.epsilon:g}{delta_words}"


_LIST = "Desfontaines, A list of real-world uses of differential privacy"
_LIST_URL = "https://desfontain.es/blog/real-world-differential-privacy.html"
_REGISTRY = "OpenDP deployments registry, 15 July 2026"
_APPLE = f"Apple, Differential Privacy Overview, per donation; as user-days in {_LIST}"
_CENSUS = "Census Bureau Sets Key Parameters to Protect Privacy in 2020 Census Results, 9 June 2021"
_CENSUS_URL = "https://www.census.gov/newsroom/press-releases/2021/2020-census-key-parameters.html"
_GBOARD = "Google Research, Advances in private training for production on-device language models, 2024"
_GBOARD_URL = (
    "https://research.google/blog/advances-in-private-training-for-production-on-device-language-models/"
)

DEPLOYMENTS = (
    Deployment(
        "U.S. Census Bureau", "2020 census, redistricting data, persons (rho 2.56)", 17.14, 1e-10,
        "a person, the whole file", _CENSUS, _CENSUS_URL, checked=_REGISTRY,
    ),
    Deployment(
        "U.S. Census Bureau", "2020 census, redistricting data, housing units (rho 0.07)", 2.47, 1e-10,
        "a housing unit, the whole file", _CENSUS, _CENSUS_URL, checked=_REGISTRY,
    ),
    Deployment(
        "Israel, Ministry of Health", "registry of live births of 2014, synthetic copy", 9.98, None,
        "a birth, the whole file", "Hod & Canetti 2024, arXiv:2405.00267, abstract",
        "https://arxiv.org/abs/2405.00267", checked=_REGISTRY,
    ),
    Deployment(
        "Wikimedia", "page views by country (rho 0.015)", 1, 1e-7, "a device and day, 10 page views",
        "Wikimedia, Pageviews Differential Privacy: Current, Privacy parameters (\"roughly\")",
        "https://analytics.wikimedia.org/published/datasets/country_project_page/00_README.html",
        checked=_REGISTRY,
    ),
    Deployment(
        "Apple", "QuickType: new words", 16, None, "a user and day", _APPLE, _LIST_URL,
        checked=_LIST, local=True,
    ),
    Deployment(
        "Apple", "popular emojis", 4, None, "a user and day", _APPLE, _LIST_URL,
        checked=_REGISTRY, local=True,
    ),
    Deployment(
        "Apple", "health types in use", 2, None, "a user and day", _APPLE, _LIST_URL,
        checked=_REGISTRY, local=True,
    ),
    Deployment(
        "Apple", "Safari: domains that crash or drain energy", 8, None, "a user and day", _APPLE, _LIST_URL,
        checked=_LIST, local=True,
    ),
    Deployment(
        "Microsoft", "Windows telemetry: time spent in apps", 1.672, None, "a user and six hours",
        "Ding, Kulkarni & Yekhanin 2017, Collecting Telemetry Data Privately",
        "https://www.microsoft.com/en-us/research/publication/collecting-telemetry-data-privately/",
        checked=_REGISTRY, local=True,
    ),
    Deployment(
        "Google", "COVID-19 community mobility reports", 2.64, None, "a user and day",
        "Aktay et al. 2020, arXiv:2004.04145", "https://arxiv.org/abs/2004.04145", checked=_REGISTRY,
    ),
    Deployment(
        "Google", "COVID-19 vaccination search insights", 2.19, 1e-5, "a user and day",
        "arXiv:2107.01179, abstract", "https://arxiv.org/abs/2107.01179", checked=_REGISTRY,
    ),
    Deployment(
        "Google", "COVID-19 search trends symptoms", 1.68, None, "a user and day",
        "arXiv:2009.01265, abstract", "https://arxiv.org/abs/2009.01265", checked=_REGISTRY,
    ),
    Deployment(
        "Google", "Gboard language models, the strongest of over 30", 0.994, 1e-10, "a user, one model",
        _GBOARD, _GBOARD_URL, checked="the post's text",
    ),
    Deployment(
        "Google", "Gboard language models, the weakest of over 30", 13.69, 1e-10, "a user, one model",
        _GBOARD, _GBOARD_URL, checked="the post's text",
    ),
    Deployment(
        "LinkedIn", "Audience Engagements API", 34.9, 7e-9, "a member, one analyst and month",
        "Rogers et al. 2020, arXiv:2002.05839", "https://arxiv.org/abs/2002.05839", checked=_REGISTRY,
    ),
    Deployment(
        "LinkedIn", "labor market insights, top jobs", 4.8, 4e-10, "one hiring, a month",
        "Rogers et al. 2020, arXiv:2010.13981", "https://arxiv.org/abs/2010.13981", checked=_REGISTRY,
    ),
    Deployment(
        "Facebook", "Full URLs data set, for 96.6% of users", 1.453, 1e-5, "a user, all kinds of action",
        _LIST, _LIST_URL, checked=_REGISTRY,
    ),
)  # fmt: skip


def beside(epsilon: float) -> tuple[tuple[Deployment, ...], tuple[Deployment, ...]]:
    """Return the published deployments with a smaller epsilon, and those with this epsilon or a larger one;
    both by rising epsilon."""
    ordered = sorted(DEPLOYMENTS, key=lambda deployment: deployment.epsilon)
    return (
        tuple(deployment for deployment in ordered if deployment.epsilon < epsilon),
        tuple(deployment for deployment in ordered if deployment.epsilon >= epsilon),
    )
