"""Programs for the base's own Python. They are sent as text; nothing here is imported by the tool."""
