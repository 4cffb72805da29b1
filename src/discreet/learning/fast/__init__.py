"""Runs layers by hand instead of by autograd, where a user would notice the difference in speed. Other
modules use only the names in `__all__`.

Measured on one thread, as multiples of the time of plain, non-private torch: a step of logistic regression
takes 1.1 by hand and 1.3 by autograd, one of an MLP 1.26 and 1.43. An LSTM is 1.4 times as fast by hand as by
autograd with 32 units and 16 examples, and no faster from 128 units on. Every layer here can also be run by
autograd, with the same taps (the tensors that per-example gradients are computed from, `taps`):
`Performance(by_hand=False)`, or `ClippingEngine(by_hand=False)`, does so. Norms are bounded by the same
functions of `bounds` either way.
"""

from .recurrence import lstm, takes_lstm
from .stack import LinearStack, stack_of

__all__ = ["LinearStack", "lstm", "stack_of", "takes_lstm"]
