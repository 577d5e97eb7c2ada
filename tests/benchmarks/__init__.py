"""What ctxstore costs, as ratios to the plain driver in the same run: ``make bench``. Nothing here is a timed test."""
