"""The process boundary: the protocol, the engine process, and the web workers' client for it."""
