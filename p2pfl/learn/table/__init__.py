"""The built-in task `csv`: from a table with a target column to a model. docs/how-to/tables.md explains it to users.

`schema` is common to all nodes, `layout` describes one node's file, `reading` applies both; `encoding` turns columns
into inputs, and `task` combines everything in a `Task`. `profile` and `proposal` examine tables to find a schema.
Only `task` and `networks` import torch.
"""
