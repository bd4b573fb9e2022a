"""Branchwise: typed decisions with probabilities, from one packed forward pass of a local model."""
