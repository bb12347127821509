"""Each round before it is run: who takes part, on which batches, at which rate. Drawn from the seed alone."""
