"""Gradient-boosted trees from sums: all nodes grow the same trees, step by step, and none shows its own numbers.

There is no network, no clock, no chance and no torch in here. `TreeGrowth` is one node's share, a state machine:

    settings = tree_settings(schema, options)             # checked; the same at all nodes, as the schema is
    site = SiteRows(raw_cells(columns, schema), targets, held)
    node = TreeGrowth.begin(schema, settings, site)       # or TreeGrowth.unpack(packed, schema, settings, site)
    while not node.done:
        part = node.next_part()                           # this node's summand; the same until its sum is taken
        node.take(total, members)                         # the sum of all parts: dict of int64 arrays by name
    forest = node.forest()                                # outputs(cells); forest.to_xgboost

**A part** has named arrays of whole numbers (int64), none below 0; `node.most(members)` has for each entry the largest
that the sum can be, so that entries need few bits. Rows are rounded before they are added: a sum is exact, and so the
same whichever node has a row. `node.most`, `node.label` and `node.state.step` are known without the rows: a node can
follow sums in which it was not.

**Steps.** Three sums of counts lead to the bins. A round takes `max_depth` sums, one for each level of all its trees
(more where a level has over 2^20 entries); the first of a round also has the loss so far. One more has the last loss.

| label | arrays | entries |
|---|---|---|
| bins i of 3 | `buckets` (all), `targets` (classes, or sum and rows) | rows, in at most 2,560 buckets a column |
| round r, level l | `gradients`, `hessians`, `rows` (leaves, bins of all columns) | what the level above leaves open |
| the same, level 1, and loss | `losses` (4) | sum and rows, trained on and held out |

**GrowthState.** `pack()` is the same bytes at all nodes that have taken the same sums, some 6 kB a tree of depth 6. It
has settings, cuts or bins, trees so far, the leaves of this level and the sums of the level above (8 MB at most);
whatever else a node needs follows from that and its rows. Decisions use additions, multiplications and divisions in
float64, which every processor rounds alike.

What carries the sums (`features/trees`, whose head says why all sums are of the same members) takes the parts as whole
numbers, never by way of float64, of exactly the same at most 2047 members; names `label`, `state.step` and a digest of
`pack()` in the terms, and `part.data` as the digest of the data in all steps; and keeps `pack()` before the next part
leaves the node. `unpack` does not prove that a state is right: believe one only if more than t members have its digest.
"""
