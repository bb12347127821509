"""An app for Flower: what the server and the nodes share, and what each of them runs."""
