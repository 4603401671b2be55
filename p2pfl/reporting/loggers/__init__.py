"""Logs that other people's programs keep, by the entry point group `p2pfl.loggers`: `--log NAME:PLACE`.

An entry point names a class that is made with PLACE, a text, and has `write(row)` and `close()`, as a
`p2pfl.reporting.logs.Sink`. If it has `needs`, that is the module without which a run is refused. A row has only
figures that may be shown: `[privacy]` takes the others out before.
"""
