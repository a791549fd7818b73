"""The process that exists once per job: it decides who is in the ring and serves the rendezvous."""
