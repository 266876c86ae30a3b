"""Telemetry: CloudWatch metrics as log lines, OpenTelemetry metrics and traces."""
