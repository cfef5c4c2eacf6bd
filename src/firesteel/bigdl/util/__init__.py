"""What rows and results are held in."""
