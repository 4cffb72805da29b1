"""Private hypothesis tests: each releases a p-value that takes its own noise into account, so that under a
true null hypothesis it is at most a with probability at most a, for every a (some tests: asymptotically).

A test is a `Mechanism`: its price is known before anything is read, and it releases a `TestResult`. What is
done with released p-values is post-processing and costs nothing: `benjamini_hochberg`, `Saffron` and
`LordPlusPlus` may be used on them as on any others.

    test = ProportionTest(public=..., column="smoker", chance=0.2, epsilon=1)
    curator.ask(test).value.pvalue

Rows in which a value that the test needs is missing are left out. The number of the other rows is private,
and where a test needs it, it is bought with noise as part of the test.
"""

from .chi_squared import CrossCounts, GoodnessOfFitTest, IndependenceTest
from .means import GroupSums, TwoSampleMeanTest
from .proportion import ProportionTest, YesNo
from .result import TestResult

__all__ = [
    "CrossCounts",
    "GoodnessOfFitTest",
    "GroupSums",
    "IndependenceTest",
    "ProportionTest",
    "TestResult",
    "TwoSampleMeanTest",
    "YesNo",
]
