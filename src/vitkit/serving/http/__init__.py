"""The server: connections, requests, answers in batches, processes."""
