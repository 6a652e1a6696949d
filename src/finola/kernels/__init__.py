"""Fast path of the recurrence: few large matrix products forward, and a custom autograd function backward."""
