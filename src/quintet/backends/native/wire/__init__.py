"""What front and worker say to each other, as values and as bytes."""
