"""Secure sums: members of a federation learn the sum of their vectors, and nobody a summand.

The protocol is a pure state machine (`protocol.Sums`), which `talk` and `sessions` attach to a node; rounds that are
sums (`rounds`), statistics and agreed schemas stand upon it. Why it is this one: docs/decisions/0035-secure-sums.md.
"""

FEATURE = "p2pfl.features.sums.rounds:SummedFeature"
