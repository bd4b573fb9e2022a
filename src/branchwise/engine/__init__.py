"""Plan, run, score, assemble: the wiring between contexts and decisions. No maths lives here."""
