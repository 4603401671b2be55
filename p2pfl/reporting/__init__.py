"""Reports of a node and of a fleet: status, alarms, logs, figures, plots and reports."""
