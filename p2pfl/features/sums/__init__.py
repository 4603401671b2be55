"""Secure sums: members of a federation learn the sum of their vectors, and nobody a summand.

Here belong the protocol of the sums, as a pure state machine (`protocol.Sums`: events in, effects out, time and chance
as arguments), and what it is made of. What attaches it to a node, over a side channel, is not here yet; no node has it.
The protocol, and why it is this one: docs/decisions/0035-secure-sums.md.
"""
