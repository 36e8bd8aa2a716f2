"""The compute limiter's C code against a GPU in virtual time."""
