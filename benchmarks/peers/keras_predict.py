"""`model.predict` as a user gets it: the same model, records, batch, threads; nothing written."""

import sys
import time
from pathlib import Path

import keras

from benchmarks.common import side_parser, write_numbers
from benchmarks.peers.pipeline import prediction_dataset

WARMUP_BATCHES = 20


def main() -> int:
    """Predict all records once; returns the exit code."""
    parser = side_parser(__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="a trained model")
    args = parser.parse_args()
    model = keras.models.load_model(args.model / "model.keras", compile=False)
    dataset = prediction_dataset(args.data, args.batch_size)
    model.predict(dataset.take(WARMUP_BATCHES), verbose=0)
    began = time.perf_counter()
    outputs = model.predict(dataset, verbose=0)
    seconds = time.perf_counter() - began
    write_numbers(args.place, {"records_per_second": len(outputs) / seconds})
    return 0


if __name__ == "__main__":
    sys.exit(main())
