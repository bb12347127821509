"""The algebra: methods as chains of local transforms, a server optimizer and a combiner. Imports torch alone."""
