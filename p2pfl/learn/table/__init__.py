"""The built-in task `csv`: from a table with a target column to a model. docs/how-to/tables.md explains it to users.

`rows` reads text, `schema` is common to all nodes, `reading` applies it to one node's file; `task` combines everything
in a `Task`. `column`, `proposal` and `merging` find a schema.
"""
