"""`python -m edl_horovod.worker --config config.yaml`: one rank."""

from edl_horovod.worker.ending import code_of, end
from edl_horovod.worker.main import main

if __name__ == "__main__":
    end(code_of(main))
