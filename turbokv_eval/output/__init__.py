"""Results as people read them: text, Markdown, CSV, one HTML page."""
