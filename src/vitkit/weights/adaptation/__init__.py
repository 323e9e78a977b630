"""adaptation."""
