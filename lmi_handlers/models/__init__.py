"""Several models on one server: a process that loads and unloads them, and what web workers know of them."""
