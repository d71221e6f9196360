"""In what form a kept token is stored. Storage must not know how a policy decides."""
