"""What people look at while a job runs."""
