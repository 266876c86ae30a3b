"""What the server tells others about itself: CloudWatch metrics as log lines, OpenTelemetry metrics and traces."""
