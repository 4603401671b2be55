"""Trees that all nodes grow together (`model = "trees"` of the task `csv`): each level is one secure sum.

Here belong the algorithm of such sums, what is kept of them, and what trees exclude. `p2pfl.learn.trees`
makes a node's part of a sum and decides by it; `p2pfl.features.sums.rounds` goes from sum to sum. Why it is done in
this way: docs/decisions/0038-trees.md.
"""

FEATURE = "p2pfl.features.trees.rounds:TreesFeature"
CHECKS = "p2pfl.features.trees.rounds:TreesCheck"
