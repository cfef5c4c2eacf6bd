"""ResNet on CIFAR-10 as nodes of a Spark cluster: the same program, started by ``spark-submit``. See README.md."""

import argparse

import resnet_cifar_dist
from pyspark import SparkConf, SparkContext

from firesteel.tfcluster import TFCluster

if __name__ == "__main__":
    sc = SparkContext(conf=SparkConf().setAppName("resnet_cifar"))
    executors = int(sc.getConf().get("spark.executor.instances") or 1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--cluster_size", help="number of nodes", type=int, default=executors)
    parser.add_argument("--num_ps", help="number of parameter servers", type=int, default=0)
    parser.add_argument("--tensorboard", help="start TensorBoard beside the first worker", action="store_true")
    args, rem = parser.parse_known_args()
    cluster = TFCluster.run(
        sc,
        resnet_cifar_dist.main_fun,
        rem,
        args.cluster_size,
        args.num_ps,
        args.tensorboard,
        TFCluster.InputMode.TENSORFLOW,
        master_node="chief",
    )
    cluster.shutdown()
    sc.stop()
