"""Rounds with shared noise (`[privacy] noise = "shared"`): each is one secure sum over all nodes.

Here belong the algorithm of such rounds, how nodes tell each other where they stand, and how one that is behind gets
the state of the others. `p2pfl.learn.privacy.rounds` computes a node's part of a sum and the step by it, and
`p2pfl.features.sums` has the sums. Why it is done in this way: docs/decisions/0036-shared-noise.md.
"""

FEATURE = "p2pfl.features.shared_noise.rounds:SharedNoiseFeature"
CHECKS = "p2pfl.features.shared_noise.rounds:SharedNoiseCheck"
