"""An example of how to extend lmi-handlers: a backend, a formatter and an API."""
