"""Tools that use a server from outside. The server finds their commands by name, and imports none of them."""
