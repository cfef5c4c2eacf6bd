"""ResNet on CIFAR-10, run by hand: alone, or in several shells with ``TF_CONFIG``. See README.md.

python resnet_cifar_main.py --data_dir=… --num_gpus=0 --train_epochs=1
"""

import resnet_cifar_dist
from absl import app, flags


def main(_):
    resnet_cifar_dist.run(flags.FLAGS)


if __name__ == "__main__":
    app.run(main)
