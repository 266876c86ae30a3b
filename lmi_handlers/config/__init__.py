"""serving.properties, the environment and their options; what a request may ask for under them."""
