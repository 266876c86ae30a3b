"""What TGI's API writes."""
