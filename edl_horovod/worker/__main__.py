"""`python -m edl_horovod.worker --config config.yaml`: one rank."""

from edl_horovod.worker.main import code_of, end, main

if __name__ == "__main__":
    end(code_of(main))
