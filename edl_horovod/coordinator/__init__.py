"""Once per job: decides who is in the ring, talks to the workers, serves the rendezvous."""
