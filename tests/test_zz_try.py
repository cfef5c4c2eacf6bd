import sys, time, threading, faulthandler
sys.path.insert(0,"tests")
from frontends.test_pipeline_async import *
def test_x(spark, graph):
    faulthandler.dump_traceback_later(40, repeat=True, file=open("/tmp/pl_trace.txt","w"))
    t=time.time()
    found={}
    def fit(name, params, counts):
        t0=time.time()
        found[name] = weight(stage(graph, port=0, acquireLock=True, **params).fit(ones(spark, *counts)))
        print(name, found[name], time.time()-t0, flush=True)
    few = {"partitions": 2, "miniBatchSize": 30, "iters": 3, "verbose": 1}
    rounds = {"partitions": 8, "miniBatchSize": -1, "iters": 2, "partitionShuffles": 3}
    work = {"few": (few, (20, 20, 20, 20, 10, 10)), "rounds": (rounds, (20, 20, 20))}
    for i in range(3):
        threads = [threading.Thread(target=fit, args=(name, *args)) for name, args in work.items()]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(i, found, time.time()-t, flush=True)
    faulthandler.cancel_dump_traceback_later()
