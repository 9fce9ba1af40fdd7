"""The live page: `coterie dashboard`."""
