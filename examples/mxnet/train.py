"""Trains small networks on made-up images, on whichever engine is loaded.

Prints every epoch's loss in hexadecimal, and on the standard error the times of an epoch and of small operations. The
losses must be the same, bit by bit, on MXNet's own engine and on raddle.
"""

import os
import sys
import time

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd


def images(count, size=12):
    """Bars, horizontal or vertical, in one of two places, with noise."""
    rng = np.random.RandomState(1)
    labels = rng.randint(0, 4, count)
    pixels = rng.rand(count, 1, size, size).astype("float32") * 0.8
    for picture, label in zip(pixels, labels):
        at = 2 if label < 2 else size - 4
        if label % 2:
            picture[0, at : at + 2] += 0.5
        else:
            picture[0, :, at : at + 2] += 0.5
    return pixels, labels.astype("float32")


def perceptron():
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Flatten(), gluon.nn.Dense(128, activation="relu"), gluon.nn.Dropout(0.2), gluon.nn.Dense(4))
    return net


def convolutions():
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(8, 3, activation="relu"), gluon.nn.BatchNorm(), gluon.nn.MaxPool2D(),
            gluon.nn.Conv2D(16, 3, activation="relu"), gluon.nn.Flatten(), gluon.nn.Dense(4))
    return net


def train(name, net, epochs, hybrid, workers):
    mx.random.seed(3)
    np.random.seed(3)
    net.initialize(mx.init.Xavier())
    if hybrid:
        net.hybridize()
    dataset = gluon.data.ArrayDataset(*images(1024))
    batches = gluon.data.DataLoader(dataset, batch_size=64, shuffle=True, num_workers=workers, timeout=100)
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.003})
    loss_of, times = gluon.loss.SoftmaxCrossEntropyLoss(), []
    for _ in range(epochs):
        start, total = time.perf_counter(), nd.zeros((1,))
        for data, labels in batches:
            # Loading processes send arrays in shared memory.
            data, labels = data.as_in_context(mx.cpu()), labels.as_in_context(mx.cpu())
            with autograd.record():
                loss = loss_of(net(data), labels)
            loss.backward()
            trainer.step(len(data))
            total += loss.mean()
        print(f"{name}: {float(total.asscalar()).hex()}", flush=True)
        times.append(time.perf_counter() - start)
    print(f"{name}: {sorted(times)[len(times) // 2] * 1000:.1f} ms an epoch", file=sys.stderr)
    return float(total.asscalar()) / len(batches)


def loops():
    """Prints what small operations take at best, in microseconds."""
    array, other = nd.ones((16,)), nd.ones((16,))

    def add():
        array[:] += other

    def add_and_wait():
        array[:] += other
        array.wait_to_read()

    def make():
        return array + other

    for name, operation in ("add in place", add), ("add in place and wait", add_and_wait), ("make a sum", make):
        times = []
        for _ in range(20):
            start = time.perf_counter()
            for _ in range(500):
                operation()
            nd.waitall()
            times.append(time.perf_counter() - start)
        print(f"{name}: {min(times) * 2000:.2f} us", file=sys.stderr)


def main():
    nd.ones((1,)).wait_to_read()
    threads = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
    on_raddle = any(thread.startswith("raddle") for thread in threads)
    print("on raddle" if on_raddle else "on MXNet's own engine", file=sys.stderr)
    assert on_raddle == ("raddle" in os.environ.get("LD_PRELOAD", "")), "the preloaded engine is not in use"
    last = train("perceptron", perceptron(), 6, True, 0)
    train("perceptron, operation by operation", perceptron(), 3, False, 0)
    train("convolutions", convolutions(), 4, True, 0)
    train("perceptron, with two loading processes", perceptron(), 3, True, 2)
    loops()
    assert last < 0.3, f"the perceptron has learned too little: its loss is {last}"


if __name__ == "__main__":
    main()
