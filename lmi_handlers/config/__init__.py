"""Options from serving.properties and the environment, and the limits that they set for requests."""
