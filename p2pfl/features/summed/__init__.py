"""Rounds that are sums: what the courses of shared noise and of trees have in common.

Here belong the course as the driver sees it, the loop that sums step by step (`in_step`), how nodes tell each other
where they stand, and how one that is behind gets the state of the others. What is summed, and what a sum does to the
state, says the room of each course. It brings a node nothing but alarms by itself.
"""

FEATURE = "p2pfl.features.summed.feature:SummedFeature"
