"""What MindIE's API writes."""
