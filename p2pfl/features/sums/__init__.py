"""Secure sums: members of a federation learn the sum of their vectors, and nobody a summand.

Here belong the protocol of the sums, as a pure state machine (`protocol.Sums`: events in, effects out, time and chance
as arguments), what it is made of, and what attaches it to a node's sessions (`talk`, over the side channel of
`channel`). The protocol, and why it is this one: docs/decisions/0035-secure-sums.md.
"""

SUM = "p2pfl.features.sums.together:SumTogether"
NODE_SUM = "p2pfl.features.sums.node_sum:sum_at_node"
