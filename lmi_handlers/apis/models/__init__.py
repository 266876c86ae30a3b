"""Several models on one server: the routes that load and unload them, and those about all of them."""
