"""What the repository must keep to, beside what compilers and linters check."""
