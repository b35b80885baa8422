"""Reports for people, made from the frozen report and nothing else: rich renderables, or lines of text without rich."""
