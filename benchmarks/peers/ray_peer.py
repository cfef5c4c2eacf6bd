"""Ray Train with two CPU workers, fed by Ray Data from the same Parquet files."""

import os

os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")

import logging
import tempfile

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from turn import WORKERS, Turn


def train(config):
    import ray.train.torch
    import torch
    from torch import nn

    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(config["width"], config["hidden"]), nn.ReLU(), nn.Linear(config["hidden"], 10))
    model = ray.train.torch.prepare_model(model)
    optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.01), nn.CrossEntropyLoss()
    shard = ray.train.get_dataset_shard("train")
    for _ in range(config["epochs"]):
        for batch in shard.iter_torch_batches(
            batch_size=config["batch"], dtypes={"features": torch.float32, "label": torch.int64}
        ):
            optimizer.zero_grad()
            loss(model(batch["features"]), batch["label"]).backward()
            optimizer.step()


def main():
    from turn import HIDDEN, WIDTH

    turn = Turn()
    # A slot beside the workers': Ray Data's reading wants one of its own, or nothing ever moves.
    ray.init(num_cpus=WORKERS + 1, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    data = ray.data.read_parquet(turn.parquet)
    rows = data.count()

    def fit(epochs):
        config = {"width": WIDTH, "hidden": HIDDEN, "epochs": epochs, "batch": turn.batch // WORKERS}
        with tempfile.TemporaryDirectory() as storage:
            TorchTrainer(
                train,
                train_loop_config=config,
                torch_config=TorchConfig(backend="gloo"),
                scaling_config=ScalingConfig(num_workers=WORKERS, use_gpu=False),
                run_config=RunConfig(storage_path=storage),
                datasets={"train": data},
            ).fit()

    turn.measure(fit, rows)
    ray.shutdown()


if __name__ == "__main__":
    main()
