"""An example of how to extend lmi-handlers: a backend, a formatter, an API, a command and a page."""
