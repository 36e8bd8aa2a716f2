"""The test bench: everything here may use the product, the product never imports it."""
