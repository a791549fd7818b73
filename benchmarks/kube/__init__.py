"""How the Kubernetes half scales: thousands of pods, a thousand connected workers."""
