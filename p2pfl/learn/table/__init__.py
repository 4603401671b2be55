"""The built-in task `csv`: from a table with a target column to a model. docs/how-to/tables.md tells users about it.

`schema` is what all nodes agree on, `layout` how one node's file is written, `reading` brings the two together;
`encoding` makes inputs of what was read, `task` a `Task` of all that. `survey` and `proposal` look at tables to find a
schema. Only `task` and `model` import torch.
"""
