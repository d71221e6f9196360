"""Pictures of results and of attention. Needs matplotlib, which nothing else of tinygpt does."""
