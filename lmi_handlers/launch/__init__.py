"""The processes of a server: what they are, and how they start and end."""
