"""The built-in task `csv`: from a table with a target column to a model. docs/how-to/tables.md explains it to users.

`schema` is common to all nodes, `layout` describes one node's file, `reading` applies both; `encoding` makes inputs of
the columns, `task` a `Task` of all that. `survey` and `proposal` look at tables to find a schema. Only `task` and
`model` import torch.
"""
