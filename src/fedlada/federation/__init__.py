"""The plan of each round: which clients take part, on which batches, at which rate. Fixed by the seed alone."""
