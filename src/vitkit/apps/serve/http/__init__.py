"""The HTTP server: connections, requests, responses in batches, processes."""
