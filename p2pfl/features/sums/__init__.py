"""Secure sums: members of a federation learn the sum of their vectors, and nobody a summand.

Here belong the protocol of the sums, as a pure state machine (`protocol.Sums`: events in, effects out, time and chance
as arguments), what it is made of, and what attaches it to a node's sessions (`talk`, `sessions`). Upon it stand rounds
that are sums (`rounds`): what shared noise and trees have in common; and statistics and agreed schemas. The protocol,
and why it is this one: docs/decisions/0035-secure-sums.md.
"""

FEATURE = "p2pfl.features.sums.rounds:SummedFeature"
