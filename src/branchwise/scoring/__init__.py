"""From node scores to probabilities. Numbers in, numbers out; natural logarithms throughout."""
