"""What is said of an answer's length before it is written: short, medium or long."""
