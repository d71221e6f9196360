"""`tinygpt sample`: generate text."""
