"""What LMI's API writes."""
