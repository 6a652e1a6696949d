"""One-way wave equations (§3): analysis of the speeds of a recurrence, residuals, and wave initialisation."""
