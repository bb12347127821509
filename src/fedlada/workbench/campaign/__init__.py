"""Many runs for one question: each is run once, kept by what it is, and goes on where it stopped."""
