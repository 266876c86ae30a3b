"""`lmi replay`: sends recorded requests to a server, and says how its answers differ from the recorded ones."""
