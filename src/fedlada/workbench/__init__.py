"""Many runs, and the people who start and read them: experiments, campaigns, reports, the command line."""
