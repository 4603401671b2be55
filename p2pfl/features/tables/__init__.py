"""Own tables: nodes agree on a schema before there is a model. The task itself is `p2pfl.learn.table`."""
