"""What Aleph Alpha's API writes."""
