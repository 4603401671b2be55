"""What a node and a fleet tell: status, alarms, logs, figures, plots and reports."""

from p2pfl.plugins import face

__getattr__ = face(__name__)
