"""What a node and a fleet tell: status, alarms, logs, figures, plots and reports."""
