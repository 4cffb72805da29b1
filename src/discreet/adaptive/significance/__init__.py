"""Private hypothesis tests: each releases a p-value that already counts its own noise, so that true nulls
stay below a level as rarely as they should.

A test is a `Mechanism`: it has a price before anything is read, and releases a `TestResult`. What is done
with p-values afterwards is free: `benjamini_hochberg`, `Saffron`, `LordPlusPlus` may be used on them as on
any others.

    test = ProportionTest(public=..., column="smoker", chance=0.2, epsilon=1)
    curator.ask(test).value.pvalue

Rows without one of the values that a test needs count nowhere. How many rows remain is private under
add_remove, and bought.
"""

from .chi_squared import CrossCounts, GoodnessOfFitTest, IndependenceTest
from .means import GroupSums, TwoSampleMeanTest
from .proportion import ProportionTest, YesNo
from .ranks import CorrelationTest, KruskalWallisTest, MannWhitneyTest
from .result import TestResult

__all__ = [
    "CorrelationTest",
    "CrossCounts",
    "GoodnessOfFitTest",
    "GroupSums",
    "IndependenceTest",
    "KruskalWallisTest",
    "MannWhitneyTest",
    "ProportionTest",
    "TestResult",
    "TwoSampleMeanTest",
    "YesNo",
]
