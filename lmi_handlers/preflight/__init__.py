"""What is read and checked before a process starts."""
