"""Figures of columns over all sites' tables, from sums of what each site adds, without a cell of few rows.

`survey` is the conversation: what a site adds in each stage (`site`), and what the sums of it give. `hiding` and
`disclosure` decide which counts may be shown, `value_spread` makes quantiles and a histogram of counts. Nothing here
knows networks, policies or files.
"""
