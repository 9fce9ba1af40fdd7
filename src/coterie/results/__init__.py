"""What one gets back in Python: runs, comparisons and sweeps, just made or read from their folders."""
