"""Which tokens are kept. Policies are pure functions of token numbers and hold no state."""
