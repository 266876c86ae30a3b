"""The process boundary: the protocol, the engine process behind it, and the web worker's client of it."""
