"""`python -m edl_horovod.worker --config config.yaml`: one rank."""

from edl_horovod.worker.main import code_of_main, end

if __name__ == "__main__":
    end(code_of_main())
