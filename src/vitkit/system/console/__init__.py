"""What is said while something works: sentences, bars, tables."""
