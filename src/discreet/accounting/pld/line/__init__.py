"""Composition on the line: the integral for delta, by characteristic functions of the unrounded losses.

`transform` and `fading` evaluate the characteristic function of one sampled Gaussian step with an error
bound, `steps` cuts rare huge losses off, `line` integrates, `ladder` climbs to the accuracy that was asked
for.
"""
