"""What runs inside the pods of a job."""
