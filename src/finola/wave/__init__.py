"""One-way waves (§3): the speeds a recurrence holds, how well it keeps to them, and a start made of plane waves."""
