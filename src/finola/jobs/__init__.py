"""Long commands as many jobs: a pool of processes, the same on a Ray cluster, and a store of files and records."""
