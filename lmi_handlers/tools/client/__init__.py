"""How the tools ask a server, directly or on AWS, and read its answers in any of our APIs."""
