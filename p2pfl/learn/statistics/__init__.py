"""Figures of columns over all sites' tables, from sums of what each site adds, without a cell of few rows.

`survey` is the conversation: what a site adds in each stage, and what the sums of it give. `hiding` decides which
counts may be shown, `spread` makes quantiles and a histogram of counts. Nothing here knows networks, policies or files.
"""
